"""Listeners and clients: a real keeper and real TCP on loopback, and perftest as it was recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import reset
from ansible.module_utils.spark.gids import Resolved
from ansible.module_utils.spark.link import keeper, report, samples
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.link.legs import Leg, ask_port, link_legs, ports_of
from ansible.module_utils.spark.runner import Completed, run

from tests.unit.fabric.machine import Machine, said

FIXTURES = Path(__file__).parent.parent / "fixtures" / "perftest"
RAILS = [
    {"rail": 0, "netdev": "enp1s0f0np0", "address": "127.0.0.1", "peer_addresses": {"spark-02": "127.0.0.1"}},
    {"rail": 1, "netdev": "enP2p1s0f0np0", "address": "127.0.0.2", "peer_addresses": {"spark-02": "127.0.0.2"}},
]
FAR_RAILS = [{**rail, "peer_addresses": {"spark-01": rail["address"]}} for rail in RAILS]
GIDS = [
    Resolved(0, "enp1s0f0np0", "rocep1s0f0", 1, 1, "::ffff:7f00:1", "127.0.0.1"),
    Resolved(1, "enP2p1s0f0np0", "roceP2p1s0f0", 1, 3, "::ffff:7f00:2", "127.0.0.2"),
]
PAIR = ("spark-01", "spark-02")
FORWARD = Leg("write", "spark-01", "spark-02", 0, 12)
OVER_TCP = Leg("tcp", "spark-01", "spark-02", 0, 1)
LIMITS = report.Limits(0.001, 0.001, "tcp")


@pytest.fixture
def base() -> tuple[int, int]:
    """Two ports with room above them, most likely free: their place follows from this process."""
    first = 20000 + os.getpid() % 2000 * 16
    return first, first + 1


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def place(machine: Machine) -> link.Place:
    return link.Place(machine, machine.root, python=sys.executable)


def spec_of(folder: Path, base: Sequence[int], listeners: list[dict[str, Any]], **more: Any) -> Path:
    spec = {
        "node": "spark-02",
        "folder": str(folder),
        "rails": [
            {"rail": rail["rail"], "netdev": "lo", "address": rail["address"], "device": None} for rail in FAR_RAILS
        ],
        "ask_port": ask_port(base),
        "clients": 1,
        "life_s": 30,
        "listeners": listeners,
        **more,
    }
    path = folder / "keeper.json"
    path.write_text(json.dumps(spec))
    return path


@pytest.fixture
def keep(tmp_path: Path, base: tuple[int, int]) -> Iterator[Any]:
    """Start a keeper with these listeners, and wait until it says that all have settled."""
    started: list[subprocess.Popen[bytes]] = []

    def start(listeners: list[dict[str, Any]], **more: Any) -> subprocess.Popen[bytes]:
        folder = tmp_path / "keeper"
        folder.mkdir()
        spec = spec_of(folder, base, listeners, **more)
        child = subprocess.Popen([sys.executable, "-I", keeper.__file__, str(spec)])
        started.append(child)
        for _ in range(200):
            status = folder / "status.json"
            if status.exists():
                told = json.loads(status.read_text())
                if len(told["listening"]) + len(told["ended"]) == len(listeners):
                    break
            time.sleep(0.05)
        return child

    yield start
    for child in started:
        if child.poll() is None:
            child.terminate()
        child.wait(timeout=10)


def tcp_listeners(base: Sequence[int], leg: Leg, end_s: float = 20) -> list[dict[str, Any]]:
    place = link.Place(run, python=sys.executable)
    lanes = link.lanes_of(leg, leg.target, FAR_RAILS, base)
    program = str(Path(keeper.__file__).with_name("tcp.py"))
    found = []
    for lane in lanes:
        argv = link.listen_argv(leg, lane, 20, place)
        found.append({"port": lane.port, "end_s": end_s, "argv": [*argv[:2], program, *argv[3:]]})
    return found


def test_a_leg_over_tcp_with_counters_of_both_ends(keep: Any, tmp_path: Path, base: tuple[int, int]) -> None:
    child = keep(tcp_listeners(base, OVER_TCP))
    place = link.Place(run, tmp_path, python=sys.executable)
    (leg_run,) = link.run_legs(place, "spark-01", [OVER_TCP], RAILS, base)
    assert all(stream.failure is None and (stream.gbps or 0) > 0 for stream in leg_run.streams)
    assert leg_run.peer is not None, "the keeper told what its node counted"
    assert child.wait(timeout=10) == 0, "it ended when its only client was done"
    assert [item.code for item in report.judge(leg_run, LIMITS)] == ["LINK_COUNTERS_SILENT", "LINK_OK"]
    measured = report.measurement([leg_run], {}, LIMITS)
    assert measured["sum_gbps"] == pytest.approx(sum(rail["gbps"] for rail in measured["rails"]), abs=1e-3)
    assert (measured["from"], measured["to"], len(measured["directions"])) == (*PAIR, 1)


def test_no_listener_is_named(tmp_path: Path, base: tuple[int, int]) -> None:
    place = link.Place(run, tmp_path, python=sys.executable)
    (leg_run,) = link.run_legs(place, "spark-01", [OVER_TCP], RAILS[:1], base)
    found = report.judge(leg_run, LIMITS)
    assert [item.code for item in found] == ["LINK_HALF", "LINK_NO_LISTENER"]
    measured = report.measurement([leg_run], {OVER_TCP: found}, LIMITS)
    assert (measured["sum_gbps"], measured["verdict"]) == (None, "LINK_NO_LISTENER")


def test_a_client_held_back_by_half_of_the_run_is_refused_by_the_counters(
    place: link.Place, machine: Machine, base: tuple[int, int]
) -> None:
    """Both clients run all of the time; one of them waits before its function moves anything."""
    output = (FIXTURES / "bw-dual-b-client.out").read_text()
    lock = threading.Lock()

    def count(device: str, packets: int) -> None:
        folder = machine.root / "sys/class/infiniband" / device / "ports/1/hw_counters"
        with lock:
            for name in ("sent_pkts", "rcvd_pkts"):
                path = folder / name
                path.write_text(str(int(path.read_text()) + packets))

    for gid in GIDS:
        folder = machine.root / "sys/class/infiniband" / gid.rdma_device / "ports/1/hw_counters"
        folder.mkdir(parents=True)
        (folder / "sent_pkts").write_text("0")
        (folder / "rcvd_pkts").write_text("0")

    def client(held_back: bool) -> Any:
        def perftest(argv: Sequence[str]) -> Completed:
            device = argv[argv.index("-d") + 1]
            for step in range(30):
                waiting = held_back and device == "roceP2p1s0f0" and step < 15
                ends = held_back and device == "rocep1s0f0" and step >= 20
                if not waiting and not ends:
                    count(device, 100)
                time.sleep(0.1)
            return Completed(tuple(argv), 0, output, "")

        return perftest

    for held_back, code in ((False, "LINK_OK"), (True, "LINK_NO_OVERLAP")):
        machine.answer("ib_write_bw", to=client(held_back))
        lanes = link.lanes_of(FORWARD, "spark-01", RAILS, base, GIDS)
        results, taken = link.run_together(place, FORWARD, lanes)
        streams = tuple(stream for stream, _ in results)
        leg_run = link.LegRun(FORWARD, tuple(lanes), streams, tuple(done for _, done in results), taken)
        found = report.judge(leg_run, report.Limits(0.1, 0.1))
        assert [item.code for item in found] == [code], found
    assert "by their counters" in found[0].found


def test_perftest_is_asked_for_each_functions_own_gid(
    place: link.Place, machine: Machine, base: tuple[int, int]
) -> None:
    output = (FIXTURES / "bw-dual-b-client.out").read_text()

    def client(argv: Sequence[str]) -> Completed:
        if "--version" in argv:
            return said("Version: 6.24\n", rc=1)
        (file,) = [item.partition("=")[2] for item in argv if item.startswith("--out_json_file=")]
        if argv[argv.index("-d") + 1] == "rocep1s0f0":
            Path(file).write_text((FIXTURES / "bw.json").read_text())
        threading.Event().wait(0.2)
        return Completed(tuple(argv), 0, output, "")

    machine.answer("ib_write_bw", to=client)
    both = Leg("both", *PAIR, 1, 12)
    runs = link.run_legs(place, "spark-01", [FORWARD, both], RAILS, base, GIDS)
    calls = sorted(call for call in machine.ran("ib_write_bw") if "--version" not in call and "-b" not in call)
    assert [call[call.index("-x") + 1] for call in calls] == ["3", "1"]
    assert {call[-1] for call in calls} == {"127.0.0.1", "127.0.0.2"}
    assert len([call for call in machine.ran("ib_write_bw") if "-b" in call]) == 2
    # One wrote JSON; the other one's table is read.
    assert [stream.gbps for stream in runs[0].streams] == [0.30, 0.097944]
    assert runs[1].lanes[0].port == ports_of(base, 1)[0]


def test_an_old_perftest_is_not_asked_for_json(place: link.Place, machine: Machine, base: tuple[int, int]) -> None:
    machine.answer("ib_write_bw", stdout=(FIXTURES / "bw-dual-b-client.out").read_text())
    machine.answer("ib_write_bw", "--version", stdout="Version: 6.06\n", rc=1)
    link.run_legs(place, "spark-01", [FORWARD], RAILS, base, GIDS)
    assert not [call for call in machine.ran("ib_write_bw") if any("json" in item for item in call)]


def test_a_failed_leg_ends_the_run_if_it_is_enough(place: link.Place, machine: Machine, base: tuple[int, int]) -> None:
    machine.answer("ib_write_bw", rc=1, stderr="IB device mlx5_9 not found\n")
    legs = link_legs(PAIR, transport="rdma", seconds=2)[1:3]
    runs = link.run_legs(place, "spark-01", legs, RAILS, base, GIDS, enough=lambda run: True)
    assert len(runs) == 1
    assert [item.code for item in report.judge(runs[0], report.Limits(1, 1))] == ["LINK_DEVICE_NOT_FOUND"] * 2


def test_latency_is_told_and_never_judged(place: link.Place, machine: Machine, base: tuple[int, int]) -> None:
    leg = Leg("latency", *PAIR, 2, 1)
    machine.answer("ib_write_lat", stdout=(FIXTURES / "lat-ok-client.out").read_text())
    (leg_run,) = link.run_legs(place, "spark-01", [leg], RAILS, base, GIDS)
    assert leg_run.latency_us == (430.57, 430.57)
    assert report.judge(leg_run, LIMITS) == []
    machine.answer("ib_write_lat", rc=1, stderr="Couldn't connect to 127.0.0.1:1\n")
    (leg_run,) = link.run_legs(place, "spark-01", [leg], RAILS, base, GIDS)
    assert [item.code for item in report.judge(leg_run, LIMITS)] == ["LINK_LATENCY_UNKNOWN"] * 2
    assert report.measurement([leg_run], {}, LIMITS) == {}


def test_counters_are_differences_of_whole_numbers(place: link.Place, machine: Machine, base: tuple[int, int]) -> None:
    folder = machine.root / "sys/class/net/enp1s0f0np0/statistics"
    folder.mkdir(parents=True)
    (folder / "tx_bytes").write_text("9007199254740993\n")
    (folder / "rx_errors").write_text("0\n")
    machine.answer("ethtool", "-S", stdout="NIC statistics:\n     tx_bytes_phy: 9007199254740993\n     rx0_kicks: 3\n")

    def client(argv: Sequence[str]) -> Completed:
        (folder / "tx_bytes").write_text("9007199254741000\n")
        machine.answer("ethtool", "-S", stdout="NIC statistics:\n     tx_bytes_phy: 9007199254740994\n")
        return Completed(tuple(argv), 1, "", "IB device mlx5_9 not found\n")

    machine.answer("ib_write_bw", to=client)
    machine.answer("ib_write_bw", "--version", stdout="Version: 6.06\n", rc=1)
    (leg_run,) = link.run_legs(place, "spark-01", [FORWARD], RAILS[:1], base, GIDS)
    assert leg_run.own == ({"tx_bytes": 7, "tx_bytes_phy": 1},)
    assert leg_run.peer is None


# --- the keeper ------------------------------------------------------------------------------------------------------


def test_a_listener_ends_at_its_own_time_and_the_keeper_at_its_own(keep: Any, base: tuple[int, int]) -> None:
    child = keep(tcp_listeners(base, OVER_TCP, end_s=1.0), life_s=2.5)
    ports = ports_of(base, 0)
    assert set(ports) <= keeper.listening()
    deadline = time.monotonic() + 10
    while set(ports) & keeper.listening() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert child.poll() is None, "the keeper still answers"
    assert keeper.ask(["127.0.0.1"], ask_port(base), {"want": "listeners"}) is not None
    assert child.wait(timeout=10) == 0


def test_the_keepers_end_is_that_of_its_listeners(keep: Any, base: tuple[int, int]) -> None:
    child = keep(tcp_listeners(base, OVER_TCP))
    child.terminate()
    child.wait(timeout=10)
    assert not set(ports_of(base, 0)) & keeper.listening()


def test_what_a_listener_printed_is_told(keep: Any, base: tuple[int, int]) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('Failed to modify QP 18 to RTR')"]
    keep([{"port": base[0], "end_s": 20, "argv": argv}, {"port": base[1], "end_s": 20, "argv": ["/nowhere"]}])
    answer = keeper.ask(["127.0.0.1"], ask_port(base), {"want": "listeners"})
    assert answer is not None
    told = answer["listeners"][str(base[0])]
    assert (told["rc"], told["err"].strip()) == (1, "Failed to modify QP 18 to RTR")
    lane = link.lanes_of(FORWARD, "spark-01", RAILS[:1], base, GIDS)
    assert link._far_words(["127.0.0.1"], ask_port(base), lane) == (
        f"listener on spark-02, port {base[0]}: exited 1: Failed to modify QP 18 to RTR",
    )
    assert keeper.ask(["127.0.0.1"], ask_port(base), {"want": "the moon"}) == {"error": "'the moon' is not answered"}


def test_nobody_answers_for_a_keeper_that_is_not_there(base: tuple[int, int]) -> None:
    assert keeper.ask(["127.0.0.1", "127.0.0.2"], ask_port(base), {"want": "counters"}, timeout_s=1) is None


def test_traffic_is_counted_where_the_hardware_counts_it(tmp_path: Path) -> None:
    rail = {"netdev": "enp1s0f0np0", "device": "rocep1s0f0", "ib_port": 1}
    assert keeper.moving(rail, tmp_path) is None
    statistics = tmp_path / "sys/class/net/enp1s0f0np0/statistics"
    port = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1"
    for folder, sent, got in (
        (statistics, "tx_bytes", "rx_bytes"),
        (port / "hw_counters", "sent_pkts", "rcvd_pkts"),
        (port / "counters", "port_xmit_data", "port_rcv_data"),
    ):
        folder.mkdir(parents=True)
        (folder / sent).write_text("7\n")
        (folder / got).write_text("5\n")
        factor = 4 if folder.name == "counters" else 1
        assert keeper.moving(rail, tmp_path) == (7 * factor, 5 * factor)


# --- samples ---------------------------------------------------------------------------------------------------------


def sampled(*rates: int) -> list[samples.Sample]:
    """Half a second between samples; each number is what the function sent in that half second."""
    taken, sent = [samples.Sample(0.0, 0, 0)], 0
    for step, rate in enumerate(rates, 1):
        sent += rate
        taken.append(samples.Sample(step / 2, sent, 0))
    return taken


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ([0, 100, 100, 100, 100, 0], [0, 90, 90, 90, 90, 0], 1.0),
        ([100] * 4 + [0] * 2, [0] * 2 + [100] * 4, 0.5),
        ([100] * 10, [100] * 9 + [0], 0.9),
        ([100] * 4 + [0] * 4, [0] * 4 + [100] * 4, 0.0),
        # A pause is part of a stream, an end is not.
        ([100] * 10, [100] * 4 + [0, 0] + [100] * 4, 1.0),
        ([100] * 10, [100] * 2 + [0] * 4 + [100] * 4, 0.6),
        # A handshake is no stream.
        ([100] * 8, [1] * 4 + [100] * 4, 0.5),
        ([0] * 4, [100] * 4, 0.0),
    ],
)
def test_functions_that_carry_together(first: list[int], second: list[int], share: float) -> None:
    found = samples.together([sampled(*first), sampled(*second)])
    assert found is not None
    assert found.share == pytest.approx(share)


def test_without_samples_nothing_is_said() -> None:
    assert samples.together([]) is None
    assert samples.together([sampled(0, 0), sampled(0, 0)]) is None
    assert samples.together([sampled(1, 2), []]) is None


# --- listening -------------------------------------------------------------------------------------------------------


def sockets(*ports: int, process: str = "ib_write_bw") -> str:
    return "".join(f'LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:* users:(("{process}",pid=77,fd=3))\n' for port in ports)


def listen(place: link.Place, legs: Sequence[Leg] = (FORWARD,)) -> tuple[list[str], list[dict[str, Any]]]:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    started, found = link.listen(
        place, "spark-02", FAR_RAILS, legs, (12000, 12001), GIDS, clock=lambda: now[0], sleep=sleep
    )
    return [item.code for item in found], started


def starts(place: link.Place, machine: Machine, **status: Any) -> None:
    """systemd-run answers as if the keeper had written this status."""

    def start(argv: Sequence[str]) -> Completed:
        (place.folder / "status.json").write_text(json.dumps(status))
        return said()

    machine.answer("systemd-run", to=start)


def test_all_listeners_of_a_node_are_one_unit_with_an_end_time(place: link.Place, machine: Machine) -> None:
    legs = link_legs(PAIR, transport="rdma", seconds=12)
    starts(place, machine, listening=[12000, 12001, 12002, 12003, 12004, 12005], ended={})
    codes, started = listen(place, legs)
    assert codes == []
    assert [(item["kind"], item["port"]) for item in started] == [
        *(("latency", 12004), ("latency", 12005)),
        *(("write", 12000), ("write", 12001)),
        *(("both", 12002), ("both", 12003)),
    ]
    (call,) = machine.ran("systemd-run")
    spec = json.loads((place.folder / "keeper.json").read_text())
    ends = [item["end_s"] for item in spec["listeners"]]
    assert ends == sorted(ends), "each has an end time of its own, in the order of the runs"
    assert ends[0] > link.PATIENCE_S
    assert f"--property=RuntimeMaxSec={spec['life_s'] + 5}" in call
    assert spec["life_s"] > max(ends)
    assert spec["clients"] == 1
    assert [item["argv"][item["argv"].index("-x") + 1] for item in spec["listeners"]] == ["1", "3"] * 3
    assert [item["argv"][0] for item in spec["listeners"]] == ["ib_write_lat"] * 2 + ["ib_write_bw"] * 4
    assert ["-b" in item["argv"] for item in spec["listeners"]] == [False] * 4 + [True] * 2


def test_nothing_is_started_where_no_leg_ends(place: link.Place, machine: Machine) -> None:
    assert listen(place, [Leg("write", "spark-02", "spark-01", 4, 12)]) == ([], [])
    assert not machine.calls


def test_a_keeper_of_an_earlier_run_is_stopped_and_named(place: link.Place, machine: Machine) -> None:
    tables = [sockets(12000, 12001), ""]
    machine.answer("ss", to=lambda argv: said(tables.pop(0)))
    machine.answer("systemctl", "list-units", stdout="spark-link.service loaded active running Link check\n")
    starts(place, machine, listening=[12000, 12001], ended={})
    codes, _ = listen(place)
    assert codes == ["LINK_LISTENER_STALE"]
    assert machine.ran("systemctl", "stop") == [("systemctl", "stop", "spark-link.service")]


def test_somebody_elses_listener_is_left_alone(place: link.Place, machine: Machine) -> None:
    machine.answer("ss", stdout=sockets(12001, process="nc"))
    _, found = link.listen(place, "spark-02", FAR_RAILS, [FORWARD], (12000, 12001), GIDS)
    assert [item.code for item in found] == ["LINK_PORT_BUSY"]
    assert "nc[77]" in found[0].remedy
    assert not machine.ran("systemctl", "stop")
    assert not machine.ran("systemd-run")


def test_the_port_of_the_questions_has_to_be_free_as_well(place: link.Place, machine: Machine) -> None:
    machine.answer("ss", stdout=sockets(ask_port((12000, 12001)), process="nc"))
    assert listen(place) == (["LINK_PORT_BUSY"], [])


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
        for port in (12000, 12001):
            (place.folder / f"{port}.err").write_text(stderr)
        (place.folder / "status.json").write_text(json.dumps({"listening": [], "ended": {"12000": 1, "12001": 1}}))
        return said()

    machine.answer("systemd-run", to=start)
    codes, _ = listen(place)
    assert codes == [code, code]
    assert machine.ran("systemctl", "stop") == [("systemctl", "stop", "spark-link.service")]


# --- while a rank serves ---------------------------------------------------------------------------------------------


def test_a_serving_rank_is_seen_by_its_unit_or_its_container(machine: Machine) -> None:
    assert link.not_now("spark-01", [], machine) is None
    assert link.not_now("spark-01", ["spark-02"], machine) == "a rank serves on spark-02"
    machine.answer("docker", "ps", stdout="0123456789abcdef\n")
    assert link.serving(machine, containers=False) is None
    assert link.serving(machine) == "container spark-rank 0123456789ab is running"
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    assert link.not_now("spark-01", ["spark-02"], machine) == "spark-rank.service is active"


def test_the_last_verdict_is_told_instead(place: link.Place, machine: Machine) -> None:
    assert "this node never measured it" in link.not_loaded("spark-01", "a rank serves", link.last(place)).found
    link.remember(place, {"verdict": "LINK_OK", "sum_gbps": 185.14, "to": "spark-02", "rails": [1], "directions": [2]})
    told = link.not_loaded("spark-01", "a rank serves", link.last(place))
    assert (told.code, told.severity) == ("LINK_NOT_LOADED", "note")
    assert "LINK_OK, 185.14 Gb/s to spark-02" in told.found
    assert {"rails", "directions"}.isdisjoint(json.loads((machine.root / link.LAST).read_text()))


def test_the_last_verdict_outlives_a_boot_and_says_so(place: link.Place, machine: Machine) -> None:
    boot = machine.root / link.BOOT
    boot.parent.mkdir(parents=True)
    boot.write_text("1c0ffee1\n")
    link.remember(place, {"verdict": "LINK_OK", "sum_gbps": 185.14, "to": "spark-02"})
    assert link.not_loaded("spark-01", "a rank serves", link.last(place)).found.endswith("of this boot")
    boot.write_text("2c0ffee2\n")
    assert link.not_loaded("spark-01", "a rank serves", link.last(place)).found.endswith("an earlier boot of this node")
    boot.unlink()
    assert link.not_loaded("spark-01", "a rank serves", link.last(place)).found.endswith("an earlier boot of this node")
    assert f"/{link.LAST}".startswith(f"{reset.OURS[2]}/"), "reset.yml takes it away with its folder"


@pytest.mark.parametrize("kept", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "[]", "", "\xff"])
def test_a_damaged_last_verdict_is_none(kept: str, place: link.Place, machine: Machine) -> None:
    (machine.root / link.LAST).parent.mkdir(parents=True)
    (machine.root / link.LAST).write_text(kept, encoding="latin-1")
    assert link.last(place) is None


# --- once more -------------------------------------------------------------------------------------------------------


def apart(run: link.LegRun) -> link.LegRun:
    """The same run with its second stream after the first one."""
    first, second = run.streams
    later = replace(second, began=first.ended + 1, ended=first.ended + 1 + second.seconds)
    return replace(run, streams=(first, later))


def test_a_leg_is_tried_once_more_over_listeners_that_start_again(
    keep: Any, tmp_path: Path, base: tuple[int, int]
) -> None:
    child = keep(tcp_listeners(base, OVER_TCP))
    place = link.Place(run, tmp_path, python=sys.executable)
    asked: list[link.LegRun] = []

    def always(leg_run: link.LegRun) -> bool:
        asked.append(leg_run)
        return True

    (leg_run,) = link.run_legs(place, "spark-01", [OVER_TCP], RAILS, base, again=always)
    assert len(asked) == 1, "never a third time, whatever is said"
    assert leg_run.first is asked[0]
    assert all(stream.failure is None and (stream.gbps or 0) > 0 for stream in leg_run.streams)
    assert child.wait(timeout=10) == 0
    measured = report.measurement([replace(leg_run, first=apart(asked[0]))], {}, LIMITS)
    assert (measured["tries"], measured["first_try"]["overlap_share"], measured["first_try"]["tries"]) == (2, 0, 1)
    told = report.judge(replace(leg_run, first=apart(asked[0])), LIMITS)[-1]
    assert (told.code, told.evidence[-1][:45]) == ("LINK_OK", "second try: in the first one the streams had ")


def test_only_streams_that_did_not_run_together_are_tried_again(
    keep: Any, tmp_path: Path, base: tuple[int, int]
) -> None:
    keep(tcp_listeners(base, OVER_TCP))
    place = link.Place(run, tmp_path, python=sys.executable)
    (leg_run,) = link.run_legs(place, "spark-01", [OVER_TCP], RAILS, base)
    assert (leg_run.first, report.measurement([leg_run], {}, LIMITS)["tries"]) == (None, 1)
    assert not report.proved_nothing(leg_run, LIMITS)
    assert not report.proved_nothing(leg_run, report.Limits(10**6, 10**6, "tcp")), "slow is slow twice"
    assert report.proved_nothing(apart(leg_run), LIMITS)
    twice = report.judge(replace(apart(leg_run), first=apart(leg_run)), LIMITS)[-1]
    assert (twice.code, twice.severity) == ("LINK_NO_OVERLAP", "fatal")


def test_a_figure_that_its_own_counters_contradict_is_tried_again_and_told(
    keep: Any, tmp_path: Path, base: tuple[int, int]
) -> None:
    keep(tcp_listeners(base, OVER_TCP))
    place = link.Place(run, tmp_path, python=sys.executable)
    (leg_run,) = link.run_legs(place, "spark-01", [OVER_TCP], RAILS, base)
    first, second = leg_run.streams
    sent = int((second.gbps or 0.0) * 1e9 / 8 * second.seconds)
    stalled = replace(
        leg_run, streams=(replace(first, gbps=0.0), second), own=({"tx_bytes_phy": sent}, {"tx_bytes_phy": sent})
    )
    assert report.proved_nothing(stalled, LIMITS)
    honest = replace(stalled, own=({"tx_bytes_phy": 0}, {"tx_bytes_phy": sent}))
    assert not report.proved_nothing(honest, LIMITS), "a rail that sent nothing is slow, and not badly measured"
    assert not report.proved_nothing(replace(stalled, streams=leg_run.streams), LIMITS), "what passed is not repeated"
    told = report.judge(replace(leg_run, first=stalled), LIMITS)[-1]
    assert (told.code, told.evidence[-1]) == (
        "LINK_OK",
        f"second try: in the first one rail {first.rail} reported 0.000 Gb/s, and sent more",
    )
    twice = report.judge(replace(stalled, first=stalled), LIMITS)
    assert [item.code for item in twice if item.severity == "fatal"] == ["LINK_RAIL_SLOW"]


def test_a_listener_starts_again_once_and_only_if_it_is_one(keep: Any, base: tuple[int, int]) -> None:
    keep(tcp_listeners(base, OVER_TCP))
    ports = list(ports_of(base, 0))

    def again(*which: Any) -> Any:
        return keeper.ask(["127.0.0.1"], ask_port(base), {"want": "again", "ports": which})

    assert again(1, "x", ports[0]) == {"started": [ports[0]]}
    assert again(ports[0]) == {"started": []}
    lane = link.lanes_of(OVER_TCP, "spark-01", RAILS, base)
    assert not link.listen_again(lane, ask_port(base)), "one of them has had its second start"


def test_without_a_far_end_that_knows_how_nothing_is_tried_again(base: tuple[int, int]) -> None:
    assert not link.listen_again(link.lanes_of(OVER_TCP, "spark-01", RAILS, base), ask_port(base), patience_s=0.5)


@pytest.mark.parametrize(
    "text", [b"[" * 4000, b"17", b'{"want": "again", "ports": [[]]}', b'{"want": "again", "ports": 7}']
)
def test_nonsense_to_the_keeper_ends_nothing(text: bytes, keep: Any, base: tuple[int, int]) -> None:
    child = keep(tcp_listeners(base, OVER_TCP))
    with socket.create_connection(("127.0.0.1", ask_port(base)), timeout=8) as connection:
        connection.sendall(text + b"\n")
        connection.makefile("rb").readline()
    answer = keeper.ask(["127.0.0.1"], ask_port(base), {"want": "status"})
    assert answer is not None
    assert sorted(answer["listening"]) == sorted(ports_of(base, 0))
    assert child.poll() is None
