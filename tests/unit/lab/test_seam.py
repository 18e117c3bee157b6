"""The stand-ins answer in the form of the real tools and show the fault that the state file sets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.factory import CX7
from lab.seam import seam, state

PORT = "enp1s0f0np0"


@pytest.fixture
def node() -> dict[str, Any]:
    return state.factory("spark-01", CX7)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for netdev in CX7:
        (tmp_path / netdev / "statistics").mkdir(parents=True)
        (tmp_path / netdev / "carrier").write_text("1\n")
        (tmp_path / netdev / "statistics" / "tx_bytes").write_text("4096\n")
    return tmp_path


def test_the_state_file_is_json(node: dict[str, Any]) -> None:
    assert json.loads(json.dumps(node)) == node


def test_nvidia_smi_query(node: dict[str, Any]) -> None:
    asked = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    assert seam.nvidia_smi(node, asked) == (0, "NVIDIA GB10, 580.95.05, [N/A]\n", "")
    node["gpu"]["driver_version"] = "575.1"
    assert seam.nvidia_smi(node, ["--query-gpu=driver_version", "--format=csv"]) == (0, "driver_version\n575.1\n", "")
    assert seam.nvidia_smi(node, ["--query-gpu=nonsense", "--format=csv"])[0] == 2


def test_nvidia_smi_processes(node: dict[str, Any]) -> None:
    asked = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
    assert seam.nvidia_smi(node, asked) == (0, "", "")
    node["gpu"]["processes"] = [{"pid": 41, "name": "VLLM::Worker"}]
    assert seam.nvidia_smi(node, asked) == (0, "41, VLLM::Worker, [N/A]\n", "")


def test_nvidia_smi_table_is_straight(node: dict[str, Any]) -> None:
    rc, text, _ = seam.nvidia_smi(node, [])
    assert rc == 0
    assert "Driver Version: 580.95.05" in text
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}


@pytest.mark.parametrize(
    ("failure", "rc", "said"),
    [
        ("mismatch", 18, "Driver/library version mismatch"),
        ("not_loaded", 9, "couldn't communicate"),
        ("no_devices", 6, "No devices"),
    ],
)
def test_nvidia_smi_failures(node: dict[str, Any], failure: str, rc: int, said: str) -> None:
    node["gpu"]["failure"] = failure
    code, text, _ = seam.nvidia_smi(node, ["--query-gpu=name"])
    assert code == rc
    assert said in text


def test_modinfo(node: dict[str, Any]) -> None:
    assert seam.modinfo(node, ["-F", "version", "nvidia"]) == (0, "580.95.05\n", "")
    node["modules"]["nvidia"]["6.17.0"] = None
    assert seam.modinfo(node, ["-k", "6.17.0", "-F", "version", "nvidia"]) == (
        1,
        "",
        "modinfo: ERROR: Module nvidia not found.\n",
    )
    assert seam.modinfo(node, ["-k", "6.14.0", "-F", "version", "nvidia"]) == (0, "580.95.05\n", "")
    assert seam.modinfo(node, ["overlay"]) is None


def test_lspci(node: dict[str, Any]) -> None:
    answer = seam.lspci(node, ["-D"])
    assert answer is not None
    assert [line.split()[0] for line in answer[1].splitlines()] == ["0000:01:00.0", "0002:01:00.0"]
    node["cx7"][PORT]["link_status"]["width"] = 2
    answer = seam.lspci(node, ["-vv", "-s", "0000:01:00.0"])
    assert answer is not None
    assert "LnkCap:\tPort #0, Speed 32GT/s, Width x4" in answer[1]
    assert "LnkSta:\tSpeed 32GT/s, Width x2 (downgraded)" in answer[1]
    assert "0002:" not in answer[1]
    assert seam.lspci(node, ["-s", "0000:00:1f.0"]) is None
    assert seam.lspci(node, ["-d", "8086:"]) is None
    assert seam.lspci(node, ["-d", "15b3:"]) == seam.lspci(node, [])


def test_ethtool_link(node: dict[str, Any], sysfs: Path) -> None:
    answer = seam.ethtool(node, [PORT], sysfs)
    assert answer is not None
    assert f"Settings for {PORT}:" in answer[1]
    assert "\tSpeed: 200000Mb/s\n" in answer[1]
    assert "\tLink detected: yes\n" in answer[1]
    (sysfs / PORT / "carrier").write_text("0\n")
    answer = seam.ethtool(node, [PORT], sysfs)
    assert answer is not None
    assert "\tSpeed: Unknown!\n" in answer[1]
    assert "\tLink detected: no\n" in answer[1]


def test_ethtool_counters_follow_the_traffic(node: dict[str, Any], sysfs: Path) -> None:
    node["cx7"][PORT]["counters"]["tx_bytes_phy"] = 1 << 60
    answer = seam.ethtool(node, ["-S", PORT], sysfs)
    assert answer is not None
    counters = dict(re.findall(r"^     (\S+): (\d+)$", answer[1], re.M))
    assert answer[1].startswith("NIC statistics:\n")
    assert int(counters["tx_bytes_phy"]) == (1 << 60) + 4096
    assert counters["rx_discards_phy"] == "0"


def test_ethtool_driver(node: dict[str, Any], sysfs: Path) -> None:
    answer = seam.ethtool(node, ["-i", PORT], sysfs)
    assert answer is not None
    assert "bus-info: 0000:01:00.0\n" in answer[1]


@pytest.mark.parametrize("argv", [["enP7s7"], ["--version"], ["-K", PORT, "tso", "off"], ["-S", "lo"]])
def test_ethtool_leaves_the_rest_to_the_real_one(node: dict[str, Any], sysfs: Path, argv: list[str]) -> None:
    assert seam.ethtool(node, argv, sysfs) is None


def test_a_command_replaced_as_a_whole(
    node: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node["replace"] = {"nvidia-smi": {"rc": 3, "stdout": "out\n", "stderr": "err\n"}}
    file = tmp_path / "state.json"
    file.write_text(json.dumps(node))
    monkeypatch.setattr(seam, "STATE", file)
    assert seam.main("nvidia-smi", ["-L"]) == 3
    assert capsys.readouterr() == ("out\n", "err\n")


def test_clamp_lowers_what_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"process": {"rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 1 << 60, "soft": 1 << 60}]}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(spec))
    monkeypatch.setattr(seam, "may_raise", lambda: True)
    seam.clamp(file, "process")
    assert json.loads(file.read_text()) == spec
    monkeypatch.setattr(seam, "may_raise", lambda: False)
    monkeypatch.setattr("resource.getrlimit", lambda which: (4096, 8192))
    seam.clamp(file, "process")
    assert json.loads(file.read_text())["process"]["rlimits"] == [
        {"type": "RLIMIT_MEMLOCK", "hard": 8192, "soft": 8192}
    ]
