"""The phases on one node: a folder as its root, and commands that answer as they were told to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.diagnose import node as phases
from ansible.module_utils.spark.diagnose import read, runs
from ansible.module_utils.spark.diagnose.gathered import of_host, refusals, unloaded
from ansible.module_utils.spark.findings import Finding, finding
from ansible.module_utils.spark.link.legs import Leg
from ansible.module_utils.spark.link.run import Place

from tests.unit.fabric.machine import Machine

NODES = ["spark-01", "spark-02"]
RAILS: list[dict[str, Any]] = [
    {
        "rail": rail,
        "netdev": netdev,
        "rdma_device": device,
        "pci": None,
        "address": f"192.168.{200 + rail}.12",
        "peer_addresses": {"spark-02": f"192.168.{200 + rail}.13"},
    }
    for rail, (netdev, device) in enumerate((("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")))
]
LSPCI = """0000:01:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x2 (downgraded)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    for rail in RAILS:
        made.link(rail["netdev"], f"{rail['address']}/24")
        port = tmp_path / "sys/class/infiniband" / rail["rdma_device"] / "ports/1"
        for folder, text in (
            ("gids", gids.mapped(rail["address"])),
            ("gid_attrs/types", "RoCE v2"),
            ("gid_attrs/ndevs", rail["netdev"]),
        ):
            (port / folder).mkdir(parents=True)
            (port / folder / "3").write_text(text + "\n")
        (port / "state").write_text("4: ACTIVE\n")
        net = tmp_path / "sys/class/net" / rail["netdev"]
        (net / "statistics").mkdir(parents=True)
        (net / "statistics/tx_bytes").write_text("9007199254740993\n")
        (net / "carrier_changes").write_text("2\n")
        made.answer(
            "ethtool",
            "-i",
            rail["netdev"],
            stdout="driver: mlx5_core\nfirmware-version: 28.45\nbus-info: 0000:01:00.0\n",
        )
        made.answer("ethtool", rail["netdev"], stdout="\tSpeed: 200000Mb/s\n\tLink detected: yes\n")
    made.answer("lspci", stdout=LSPCI)
    made.answer("ib_write_bw", "--version", stdout="Version: 6.20\n", rc=1)
    made.answer("systemctl", "is-active", stdout="inactive\n", rc=3)
    return made


def place(machine: Machine) -> Place:
    return Place(machine, machine.root)


def asked(**changes: Any) -> phases.Asked:
    return phases.Asked(**{"node": "spark-01", "nodes": NODES, "rails": RAILS, "ports": [12000, 12001], **changes})


def test_an_end_is_read_completely(machine: Machine) -> None:
    machine.answer("dmesg", stdout="[ 9000.0] mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged\n")
    machine.answer("tc", stdout="qdisc tbf 8001: root refcnt 2 rate 200Kbit burst 16Kb lat 2s\n")
    found = read.read(place(machine), "spark-01", RAILS)
    first = found["functions"][0]
    assert (first["speed_mbps"], first["driver"], first["firmware"]) == (200000, "mlx5_core", "28.45")
    assert (first["pcie"]["width"], first["pcie"]["capable_width"]) == (2, 4)
    assert first["qdisc"] == ["qdisc tbf 8001: root refcnt 2 rate 200Kbit burst 16Kb lat 2s"]
    assert first["counters"]["tx_bytes"] == 9007199254740993, "beyond what a float can hold"
    assert [gid["index"] for gid in found["gids"]] == [3, 3]
    assert len(found["hot_plugs"]) == 1
    assert all(answer["reached"] for answer in found["answers"])
    assert found["versions"]["perftest"] == "6.20"
    assert not machine.ran("ib_write_bw", "-d"), "reading loads nothing"


def test_what_cannot_be_read_says_why_and_nothing_is_raised(machine: Machine) -> None:
    shutil.rmtree(machine.root / "sys")
    machine.links.clear()
    for tool in ("dmesg", "ethtool", "lspci", "tc", "ip"):
        machine.answer(tool, rc=127, stderr=f"{tool}: no such program")
    for rail in RAILS:
        machine.answer("ethtool", rail["netdev"], rc=127, stderr="ethtool: no such program")
    found = phases.look(place(machine), asked())
    assert found["read"]["unread"]["dmesg"] == "dmesg: no such program"
    assert [item["exists"] for item in found["read"]["functions"]] == [False, False]
    assert found["runs"][0]["skipped"].startswith("no rail of spark-01 is ready: enp1s0f0np0 is not there")
    assert found["not_listening"] == found["runs"][0]["skipped"]


def test_a_fault_of_ours_is_told_like_one_of_the_nodes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "read_devices", lambda root: 1 / 0)
    found = phases.look(place(machine), asked())
    assert found["read"] is None
    assert found["broken"].startswith("ZeroDivisionError")


@pytest.mark.parametrize(
    "change", [{"unloaded": "a rank serves on spark-02"}, {"unloaded": "nothing is run in check mode"}]
)
def test_nothing_is_loaded_where_it_must_not_be(machine: Machine, change: dict[str, Any]) -> None:
    found = phases.look(place(machine), asked(**change))
    assert found["read"]["functions"]
    assert [run["skipped"] for run in found["runs"]] == list(change.values())
    ran = phases.run(place(machine), asked(**change))
    assert {run["skipped"] for run in ran["runs"]} == set(change.values())
    assert not machine.ran("systemd-run")
    assert not machine.ran("ib_write_bw", "-d")


def test_a_rank_that_serves_here_is_not_disturbed(machine: Machine) -> None:
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    found = phases.look(place(machine), asked())
    assert found["not_listening"] == "spark-01: spark-rank.service is active"
    ran = phases.run(place(machine), asked())
    assert {run["skipped"] for run in ran["runs"]} == {"spark-01: spark-rank.service is active"}
    assert not machine.ran("systemd-run")


def test_runs_against_a_peer_that_is_away_say_so(machine: Machine) -> None:
    ran = phases.run(place(machine), asked(refused={"spark-02": "spark-02 was not asked: ssh timed out"}))
    assert [run["kind"] for run in ran["runs"]] == ["latency", "write", "both", "tcp"]
    assert {run["skipped"] for run in ran["runs"]} == {"spark-02 was not asked: ssh timed out"}


def test_a_rail_without_a_link_is_left_out_of_the_runs(machine: Machine) -> None:
    machine.link("enp1s0f0np0", "192.168.200.12/24", carrier=False)
    found = read.read(place(machine), "spark-01", RAILS)
    assert [rail["rail"] for rail in runs.usable(found, RAILS, "rdma")] == [1]
    assert next(item for item in found["answers"] if item["rail"] == 0)["reached"] is None


def test_which_runs_there_are(machine: Machine) -> None:
    legs = runs.between(NODES, transport="rdma", seconds=6)
    assert [(leg.kind, leg.source) for leg in legs] == [
        ("latency", "spark-01"),
        ("write", "spark-01"),
        ("both", "spark-01"),
        ("write", "spark-02"),
        ("tcp", "spark-01"),
    ]
    measuring_s = sum(leg.seconds for leg in legs) + runs.LOOPBACK_S
    assert measuring_s < 60
    assert len({leg.slot for leg in [*legs, runs.loopback("spark-01", 1, transport="rdma")]}) == len(legs) + 1
    three = runs.between(["a", "b", "c"], transport="rdma", seconds=6)
    assert sum(leg.seconds for leg in three) < 60
    assert [leg.kind for leg in runs.between(NODES, transport="tcp")] == ["tcp", "tcp"]
    assert runs.skipped(Leg("write", "a", "a", 9, 4), "why")["kind"] == "loopback"


@pytest.mark.parametrize(("late", "said"), [(1, ""), (2, "LINK_LISTENER_FAILED on spark-01: late")])
def test_a_late_listener_gets_a_second_chance(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, late: int, said: str
) -> None:
    failed = finding("LINK_LISTENER_FAILED", node="spark-01", found="late", expected="a listener")
    answers: list[tuple[list[Any], list[Finding]]] = [([], [failed])] * late + [([], [])]
    monkeypatch.setattr(runs, "listen", lambda *_: answers.pop(0))
    found = read.read(place(machine), "spark-01", RAILS)
    legs = runs.between(NODES, transport="rdma")
    assert runs.open_listeners(place(machine), "spark-01", found, RAILS, [12000, 12001], legs) == said


def test_the_last_look_leaves_no_listener(machine: Machine) -> None:
    found = phases.end(place(machine), asked())
    assert found["after"]["carrier_changes"] == {"enp1s0f0np0": 2, "enP2p1s0f0np0": 2}
    assert machine.ran("systemctl", "stop")


def test_what_hosts_left_behind() -> None:
    look = {"read": {"node": "spark-01"}, "not_listening": ""}
    names = {"facts": "f", "look": "l", "run": "r1 r2", "end": "e"}
    told = of_host(
        {"f": {"node": {"kernel": "6"}}, "l": look, "r1": {"skipped": True}, "r2": {"runs": []}}, names, asked=True
    )
    assert (told["look"], told["run"], told["end"], told["silent"]) == (look, {"runs": []}, None, None)
    away = of_host({"f": {"unreachable": True, "msg": "timed\n out"}}, names, asked=True)
    assert away["silent"] == "timed out"
    lost = of_host({"f": {"node": {}}, "l": {"unreachable": True, "msg": "lost"}}, names, asked=True)
    assert lost["silent"] == "lost"
    assert of_host({}, names, asked=False)["silent"] == "it is in the inventory and not in this run"
    looked = {"spark-01": look, "spark-02": {"skipped": True}, "spark-03": None}
    ssh = "Task failed: Make sure this host can be reached over ssh: timed out"
    facts = {"spark-01": {"node": {}}, "spark-02": {"unreachable": True, "msg": ssh}, "spark-03": {"node": {}}}
    assert refusals("spark-01", looked, facts) == {
        "spark-02": "spark-02 was not asked: timed out",
        "spark-03": "spark-03 was not asked: it has left the play",
    }
    assert "spark-01" not in refusals("spark-02", looked, facts)
    assert unloaded({"serving_nodes": ["spark-02"]}) == "a rank serves on spark-02"
