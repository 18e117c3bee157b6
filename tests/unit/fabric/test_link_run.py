"""Listeners and clients: real TCP on loopback, and perftest as it was recorded."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.spark.gids import Resolved
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.link import tcp
from ansible.module_utils.spark.runner import Completed, run

from tests.unit.fabric.machine import Machine, said

FIXTURES = Path(__file__).parent.parent / "fixtures" / "perftest"
RAILS = [
    {"rail": 0, "netdev": "enp1s0f0np0", "address": "127.0.0.1", "peer_addresses": {"spark-02": "127.0.0.1"}},
    {"rail": 1, "netdev": "enP2p1s0f0np0", "address": "127.0.0.2", "peer_addresses": {"spark-02": "127.0.0.2"}},
]
GIDS = [
    Resolved(0, "enp1s0f0np0", "rocep1s0f0", 1, 1, "::ffff:7f00:1", "127.0.0.1"),
    Resolved(1, "enP2p1s0f0np0", "roceP2p1s0f0", 1, 3, "::ffff:7f00:2", "127.0.0.2"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def place(machine: Machine) -> link.Place:
    return link.Place(machine, machine.root, python=sys.executable)


def test_a_stream_over_each_rail_at_once(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    receivers = [
        threading.Thread(
            target=subprocess.run, args=([sys.executable, tcp.__file__, "receive", address, str(port), "20"],)
        )
        for address, port in zip(("127.0.0.1", "127.0.0.2"), ports, strict=True)
    ]
    for receiver in receivers:
        receiver.start()
    for address, port in zip(("127.0.0.1", "127.0.0.2"), ports, strict=True):
        wait_for(address, port)
    place = link.Place(run, tmp_path, python=sys.executable)
    numbers, found = link.measure(
        place, "spark-01", link.lanes_to("spark-02", RAILS, ports), seconds=1, min_gbps=0.001, transport="tcp"
    )
    for receiver in receivers:
        receiver.join(timeout=20)
    assert [item.code for item in found] == ["LINK_OK"]
    assert numbers["transport"] == "tcp"
    assert numbers["overlap_share"] > 0.9
    assert numbers["sum_gbps"] == pytest.approx(sum(rail["gbps"] for rail in numbers["rails"]), abs=1e-3)
    assert all(rail["gbps"] > 0 for rail in numbers["rails"])


def wait_for(address: str, port: int) -> None:
    """A connection would use the receiver up, so the kernel is asked."""
    encoded = ":%04X" % port  # noqa: UP031
    for _ in range(200):
        if any(encoded in line.split()[1] and line.split()[3] == "0A" for line in tcp_table()):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"nothing listens on {address}:{port}")


def tcp_table() -> list[str]:
    return Path("/proc/net/tcp").read_text().splitlines()[1:]


def test_no_listener_is_named(tmp_path: Path) -> None:
    place = link.Place(run, tmp_path, python=sys.executable)
    lanes = link.lanes_to("spark-02", RAILS[:1], [free_port()])
    numbers, found = link.measure(place, "spark-01", lanes, seconds=1, min_gbps=1, transport="tcp")
    assert [item.code for item in found] == ["LINK_HALF", "LINK_NO_LISTENER"]
    assert (numbers["sum_gbps"], numbers["verdict"]) == (None, "LINK_NO_LISTENER")


def test_perftest_is_asked_for_each_functions_own_gid(place: link.Place, machine: Machine) -> None:
    output = (FIXTURES / "bw-dual-b-client.out").read_text()

    def client(argv: Sequence[str]) -> Completed:
        threading.Event().wait(0.2)
        return Completed(tuple(argv), 0, output, "")

    machine.answer("ib_write_bw", to=client)
    lanes = link.lanes_to("spark-02", RAILS, [12000, 12001], GIDS)
    numbers, found = link.measure(place, "spark-01", lanes, seconds=12, min_gbps=0.1, transport="rdma")
    calls = sorted(machine.ran("ib_write_bw"))
    assert [call[call.index("-x") + 1] for call in calls] == ["3", "1"]
    assert {call[-1] for call in calls} == {"127.0.0.1", "127.0.0.2"}
    assert [item.code for item in found] == ["LINK_OK"]
    assert numbers["sum_gbps"] == pytest.approx(2 * 0.097944)
    assert numbers["rails"][1]["gid_index"] == 3


def test_counters_are_differences(place: link.Place, machine: Machine) -> None:
    folder = machine.root / "sys/class/net/enp1s0f0np0/statistics"
    folder.mkdir(parents=True)
    (folder / "tx_bytes").write_text("9007199254740993\n")
    (folder / "rx_errors").write_text("0\n")

    def client(argv: Sequence[str]) -> Completed:
        (folder / "tx_bytes").write_text("9007199254741000\n")
        return Completed(tuple(argv), 1, "", "IB device mlx5_9 not found\n")

    machine.answer("ib_write_bw", to=client)
    lanes = link.lanes_to("spark-02", RAILS[:1], [12000], GIDS)
    numbers, found = link.measure(place, "spark-01", lanes, seconds=1, min_gbps=1, transport="rdma")
    assert numbers["rails"][0]["counters"] == {"tx_bytes": 7}
    assert found[-1].code == "LINK_DEVICE_NOT_FOUND"


# --- listening -------------------------------------------------------------------------------------------------------


def sockets(*ports: int, process: str = "ib_write_bw") -> str:
    return "".join(f'LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:* users:(("{process}",pid=77,fd=3))\n' for port in ports)


def listen(place: link.Place) -> tuple[list[str], list[dict[str, object]]]:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    lanes = link.lanes_of(RAILS, [12000, 12001], GIDS)
    started, found = link.listen(place, "spark-02", lanes, 12, clock=lambda: now[0], sleep=sleep)
    return [item.code for item in found], started


def test_each_listener_has_its_own_end_time(place: link.Place, machine: Machine) -> None:
    tables = ["", sockets(12000), sockets(12000, 12001)]
    machine.answer("ss", to=lambda argv: said(tables.pop(0) if len(tables) > 1 else tables[0]))
    machine.answer("systemctl", "is-active", stdout="active\n")
    codes, started = listen(place)
    assert codes == []
    assert [item["port"] for item in started] == [12000, 12001]
    runs = machine.ran("systemd-run")
    assert [f"--property=RuntimeMaxSec={12 + link.PATIENCE_S}" in call for call in runs] == [True, True]
    assert [call[call.index("-x") + 1] for call in runs] == ["1", "3"]


def test_a_listener_of_an_earlier_run_is_stopped_and_named(place: link.Place, machine: Machine) -> None:
    machine.answer("ss", stdout=sockets(12000, 12001))
    machine.answer("systemctl", "is-active", stdout="active\n")
    codes, _ = listen(place)
    assert codes == ["LINK_LISTENER_STALE", "LINK_LISTENER_STALE"]
    assert [call[-1] for call in machine.ran("systemctl", "stop")] == [
        "spark-link-12000.service",
        "spark-link-12001.service",
    ]


def test_somebody_elses_listener_is_left_alone(place: link.Place, machine: Machine) -> None:
    machine.answer("ss", stdout=sockets(12001, process="nc"))
    machine.answer("systemctl", "is-active", stdout="inactive\n", rc=3)
    lanes = link.lanes_of(RAILS, [12000, 12001], GIDS)
    _, found = link.listen(place, "spark-02", lanes, 12)
    assert [item.code for item in found] == ["LINK_PORT_BUSY"]
    assert "nc[77]" in found[0].remedy
    assert not machine.ran("systemctl", "stop")
    assert not machine.ran("systemd-run")


def test_without_perftest_nothing_is_started(place: link.Place, machine: Machine) -> None:
    machine.answer("ib_write_bw", rc=127, stderr="ib_write_bw: no such program")
    assert listen(place) == (["LINK_TOOL_MISSING"], [])
    assert not machine.ran("systemd-run")


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("IB device mlx5_9 not found\n Unable to find the Infiniband/RoCE device\n", "LINK_DEVICE_NOT_FOUND"),
        ("something new\n", "LINK_LISTENER_FAILED"),
    ],
)
def test_a_listener_that_does_not_start(stderr: str, code: str, place: link.Place, machine: Machine) -> None:
    def start(argv: Sequence[str]) -> Completed:
        port = next(item for item in argv if item.startswith("--unit=")).split("-")[-1].removesuffix(".service")
        (place.folder / f"{port}.err").write_text(stderr)
        return said()

    machine.answer("systemd-run", to=start)
    machine.answer("systemctl", "is-active", stdout="inactive\n", rc=3)
    codes, _ = listen(place)
    assert codes == [code, code]


# --- while a rank serves ---------------------------------------------------------------------------------------------


def test_a_serving_rank_is_seen_by_its_unit_or_its_container(machine: Machine) -> None:
    assert link.serving(machine) is None
    machine.answer("docker", "ps", stdout="0123456789abcdef\n")
    assert link.serving(machine) == "container spark-rank 0123456789ab is running"
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    assert link.serving(machine) == "spark-rank.service is active"


def test_the_last_verdict_is_told_instead(place: link.Place, machine: Machine) -> None:
    assert "no measurement since this boot" in link.not_loaded("spark-01", "a rank serves", link.last(place)).found
    link.remember(place, {"verdict": "LINK_OK", "sum_gbps": 185.14, "to": "spark-02", "rails": [1, 2]})
    told = link.not_loaded("spark-01", "a rank serves", link.last(place))
    assert (told.code, told.severity) == ("LINK_NOT_LOADED", "note")
    assert "LINK_OK, 185.14 Gb/s to spark-02" in told.found
    assert "rails" not in json.loads((machine.root / link.LAST).read_text())
