"""QEMU's command line and monitor."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.errors import LabError
from lab.machines import Machines, load
from lab.vm import build, qemu


@pytest.fixture
def machines() -> Machines:
    return load("lab-fabric")


def shared(machines: Machines) -> Machines:
    return dataclasses.replace(machines, vm=dataclasses.replace(machines.vm, shared_port=True))


def values(argv: Sequence[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def netdevs(machines: Machines, index: int) -> dict[str, str]:
    found = values(qemu.network(machines, index), "-netdev")
    return {re.search(r"\bid=(\w+)", line)[1]: line for line in found}  # type: ignore[index]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("one_port", [False, True])
def test_the_only_way_out_is_ssh_on_loopback(machines: Machines, index: int, one_port: bool) -> None:
    if one_port:
        machines = shared(machines)
    argv = qemu.argv(machines, index, Path("/image"), "tcg")
    assert "-nic" not in argv
    assert "-nodefaults" in argv
    by_kind: dict[str, list[str]] = {}
    for line in values(argv, "-netdev"):
        by_kind.setdefault(line.split(",")[0], []).append(line)
    assert set(by_kind) <= {"user", "dgram", "hubport"}
    (management,) = by_kind["user"]
    assert "restrict=on" in management.split(",")
    port = machines.nodes[index].ssh_port
    assert [part for part in management.split(",") if "fwd" in part] == [f"hostfwd=tcp:127.0.0.1:{port}-:22"]
    assert all("type=unix" in line and "type=inet" not in line for line in by_kind["dgram"])


def test_each_rail_is_a_cable_of_its_own(machines: Machines) -> None:
    here, there = netdevs(machines, 0), netdevs(machines, 1)
    assert set(here) == {"management", "rail0", "rail1"}
    for rail in ("rail0", "rail1"):
        ends = re.findall(r"(local|remote)\.path=([^,]+)", here[rail])
        far = re.findall(r"(local|remote)\.path=([^,]+)", there[rail])
        assert dict(ends)["local"] == dict(far)["remote"]
        assert dict(ends)["remote"] == dict(far)["local"]
    assert here["rail0"].split("remote.path=")[1] != here["rail1"].split("remote.path=")[1]


def test_a_shared_port_has_one_cable_and_all_functions_on_it(machines: Machines) -> None:
    found = netdevs(shared(machines), 0)
    hub = [line for line in found.values() if "hubid=0" in line]
    assert len(hub) == 3
    assert "netdev=cable" in found["port"]
    assert [name for name, line in found.items() if line.startswith("dgram")] == ["cable"]


def test_nics_sit_where_the_guest_looks_for_them(machines: Machines) -> None:
    links = {path.stem.removeprefix("10-"): path.read_text() for path in build.GUEST.glob("etc/systemd/network/*.link")}
    slots = {name: int(re.search(r"pci-0000:00:(\w+)\.0", text)[1], 16) for name, text in links.items()}  # type: ignore[index]
    assert slots == {
        "enP7s7": qemu.MANAGEMENT_SLOT,
        "enp1s0f0np0": qemu.RAIL_SLOTS[0],
        "enP2p1s0f0np0": qemu.RAIL_SLOTS[1],
    }
    devices = [line for line in values(qemu.network(machines, 0), "-device") if "netdev=rail" in line]
    assert [f"addr={slot:#x}" in device for slot, device in zip(qemu.RAIL_SLOTS, devices, strict=True)] == [True, True]
    assert all("speed=200000,duplex=full" in device for device in devices)


def test_no_address_is_used_twice(machines: Machines) -> None:
    macs = [mac for index in (0, 1) for mac in re.findall(r"mac=([0-9a-f:]+)", " ".join(qemu.network(machines, index)))]
    assert len(macs) == len(set(macs)) == 6


@pytest.mark.parametrize(("accel", "wanted"), [("kvm", "kvm"), ("tcg", "tcg,thread=multi")])
def test_accelerator(machines: Machines, accel: str, wanted: str) -> None:
    argv = qemu.argv(machines, 0, Path("/image"), accel)
    assert values(argv, "-accel")[0].startswith(wanted)
    assert values(argv, "-m") == [str(machines.vm.memory_mib)]


# --- monitor


class Qemu(threading.Thread):
    """QEMU's end of the monitor's socket: a greeting, then what the script says for each command."""

    def __init__(self, path: Path, script: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        super().__init__(daemon=True)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(path))
        self.server.listen(1)
        self.script = {"qmp_capabilities": [{"return": {}}], **script}
        self.seen: list[dict[str, Any]] = []

    def run(self) -> None:
        connection, _ = self.server.accept()
        with connection, connection.makefile("rwb") as lines:
            lines.write(b'{"QMP": {"version": {}, "capabilities": []}}\n')
            lines.flush()
            for line in lines:
                command = json.loads(line)
                self.seen.append(command)
                answers = self.script.get(command["execute"])
                if answers is None:
                    return
                for answer in answers:
                    lines.write(json.dumps(answer).encode() + b"\n")
                lines.flush()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Qemu]:
    found = Qemu(
        tmp_path / qemu.files(0)["monitor"],
        {
            "stop": [{"event": "STOP", "timestamp": {}}, {"return": {}}],
            "cont": [{"error": {"class": "GenericError", "desc": "Resetting the machine is required"}}],
            "human-monitor-command": [{"return": "Error: Device 'virtio0' has no snapshots\r\n"}],
        },
    )
    found.start()
    yield found
    found.server.close()


def test_events_are_not_answers(machine: Qemu, tmp_path: Path) -> None:
    with qemu.Monitor(tmp_path, 0) as monitor:
        assert monitor.execute("stop") == {}
    assert [command["execute"] for command in machine.seen] == ["qmp_capabilities", "stop"]


def test_a_refusal_names_the_command(machine: Qemu, tmp_path: Path) -> None:
    with qemu.Monitor(tmp_path, 0) as monitor, pytest.raises(LabError, match="refuses cont: Resetting"):
        monitor.execute("cont")


def test_the_human_monitor_is_silent_when_it_works(machine: Qemu, tmp_path: Path) -> None:
    with qemu.Monitor(tmp_path, 0) as monitor, pytest.raises(LabError, match="loadvm factory: Error: Device"):
        monitor.human("loadvm factory")
    assert machine.seen[1]["arguments"] == {"command-line": "loadvm factory"}


def test_the_end_of_qemu_is_not_waited_for(machine: Qemu, tmp_path: Path) -> None:
    with qemu.Monitor(tmp_path, 0) as monitor, pytest.raises(LabError, match="ended during quit"):
        monitor.execute("quit")


def test_a_deep_clone_has_a_monitor_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    machine = Qemu(Path(qemu.files(0)["monitor"]), {"stop": [{"return": {}}]})
    machine.start()
    with qemu.Monitor(deep, 0) as monitor:
        assert monitor.execute("stop") == {}
    machine.server.close()


def test_no_monitor(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no answer from QEMU's monitor"):
        qemu.Monitor(tmp_path, 0)
