"""Whether the rails work, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.spark import reach
from ansible.module_utils.spark.netplan import Rail, read_devices
from ansible.module_utils.spark.runner import Completed

from tests.unit.fabric.machine import Machine, said

RAILS = [
    Rail(0, "enp1s0f0np0", "192.168.200.12", 24, {"spark-02": "192.168.200.13"}),
    Rail(1, "enP2p1s0f0np0", "192.168.201.12", 24, {"spark-02": "192.168.201.13"}),
]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    for rail in RAILS:
        machine.link(rail.netdev, rail.cidr)
    return machine


def watch(machine: Machine, clock: Clock, *, changed: bool) -> tuple[reach.Look, float]:
    return reach.watch(machine, RAILS, 1500, changed=changed, clock=clock, sleep=clock.sleep)


def test_an_unchanged_network_is_judged_at_once(machine: Machine) -> None:
    seen, spent = watch(machine, Clock(), changed=False)
    assert reach.judge(machine, "spark-01", RAILS, 1500, seen) == []
    assert spent == 0
    good = reach.confirmed("spark-01", RAILS, 1500, seen, spent)
    assert good.code == "FABRIC_CONFIRMED"
    assert "spark-02 on rail 1 (192.168.201.13)" in good.found


def test_pings_leave_by_the_rails_own_function_and_address(machine: Machine) -> None:
    watch(machine, Clock(), changed=False)
    sent = {call[7:] for call in machine.ran("ping")}
    assert sent == {("-I", rail.netdev, "-I", rail.address, rail.peers["spark-02"]) for rail in RAILS}


def test_a_changed_network_is_watched_for_five_seconds(machine: Machine) -> None:
    clock = Clock()
    _, spent = watch(machine, clock, changed=True)
    assert spent >= reach.SETTLE_S


def test_a_blink_after_a_change_is_not_judged(machine: Machine) -> None:
    clock = Clock()

    def blink(argv: object) -> Completed:
        return said(rc=1) if 2 <= clock.now < 4 else said()

    machine.answer("ping", to=blink)
    seen, spent = watch(machine, clock, changed=True)
    assert all(answer.reached for answer in seen.answers)
    assert spent >= 4 + reach.GOOD_IN_A_ROW - 1


def test_a_silent_peer_is_named_with_its_cause(machine: Machine) -> None:
    machine.answer("ping", "-n", "-q", "-c", "1", "-W", "2", "-I", "enP2p1s0f0np0", rc=1, stdout="100% packet loss\n")
    machine.answer("ip", "-j", "neighbour", stdout=json.dumps([{"dst": "192.168.201.13", "state": ["FAILED"]}]))
    clock = Clock()
    seen, spent = watch(machine, clock, changed=True)
    found = reach.judge(machine, "spark-01", RAILS, 1500, seen)
    assert [item.code for item in found] == ["FABRIC_RAIL_UNREACHABLE"]
    assert "rail 1 through enP2p1s0f0np0" in found[0].found
    assert "carrier 1" in found[0].evidence[0]
    assert "FAILED" in found[0].evidence[1]
    assert "100% packet loss" in found[0].evidence[2]
    assert spent >= reach.PATIENCE_S


def test_a_lost_address_is_one_finding(machine: Machine) -> None:
    machine.link("enp1s0f0np0")
    machine.answer("ping", rc=2)
    seen, _ = watch(machine, Clock(), changed=False)
    found = reach.judge(machine, "spark-01", RAILS[:1], 1500, reach.Look(seen.devices, seen.answers[:1]))
    assert [item.code for item in found] == ["FABRIC_ADDRESS_MISSING"]
    assert "no address" in found[0].evidence[0]


def test_a_dead_cable_is_not_a_lost_address(machine: Machine) -> None:
    machine.link("enp1s0f0np0", carrier=False)
    machine.answer("ping", rc=1)
    seen, _ = watch(machine, Clock(), changed=False)
    found = reach.judge(machine, "spark-01", RAILS, 1500, seen)
    assert [item.code for item in found] == ["FABRIC_LINK_DOWN", "FABRIC_RAIL_UNREACHABLE"]
    assert "rail 1" in found[1].found


def test_another_mtu(machine: Machine) -> None:
    machine.link("enp1s0f0np0", RAILS[0].cidr, mtu=9000)
    seen, _ = watch(machine, Clock(), changed=False)
    found = reach.judge(machine, "spark-01", RAILS, 1500, seen)
    assert [item.code for item in found] == ["FABRIC_MTU_DIFFERS"]


def test_a_node_alone_has_nobody_to_reach(machine: Machine) -> None:
    alone = [Rail(0, "enp1s0f0np0", "192.168.200.12", 24)]
    seen, spent = reach.watch(machine, alone, 1500, changed=False)
    assert reach.judge(machine, "spark-01", alone, 1500, seen) == []
    assert "no peers" in reach.confirmed("spark-01", alone, 1500, seen, spent).found


# --- the operator's own path -----------------------------------------------------------------------------------------

CAME = ("10.77.0.1", "10.77.0.12")


def with_management(machine: Machine, *addresses: str, carrier: bool = True) -> reach.Management:
    machine.link("enP7s7", *addresses, carrier=carrier)
    return reach.Management("enP7s7", "10.77.0.12", "10.77.0.1")


def seen_with(machine: Machine, path: reach.Management) -> list[str]:
    clock = Clock()
    seen, _ = reach.watch(machine, RAILS, 1500, changed=True, path=path, clock=clock, sleep=clock.sleep)
    return [f"{item.code}: {item.found}" for item in reach.judge(machine, "spark-01", RAILS, 1500, seen)]


def test_the_operators_path_is_watched_as_well(machine: Machine) -> None:
    path = with_management(machine, "10.77.0.12/24")
    assert reach.management(read_devices(machine), CAME) == path
    assert reach.management(read_devices(machine), None) is None
    assert reach.management(read_devices(machine), ("10.9.9.1", "10.9.9.2")) is None
    assert seen_with(machine, path) == []


@pytest.mark.parametrize(
    ("addresses", "carrier", "found"),
    [
        (["10.77.0.99/24"], True, "enP7s7 lost 10.77.0.12"),
        (["10.77.0.12/24"], False, "enP7s7 has no carrier"),
    ],
)
def test_a_lost_path_is_fatal(addresses: list[str], carrier: bool, found: str, machine: Machine) -> None:
    assert seen_with(machine, with_management(machine, *addresses, carrier=carrier)) == [
        f"FABRIC_MANAGEMENT_LOST: {found}"
    ]


def test_a_rail_that_takes_the_operators_way_is_fatal(machine: Machine) -> None:
    path = with_management(machine, "10.77.0.12/24")
    machine.answer("ip", "-j", "route", "get", stdout=json.dumps([{"dst": "10.77.0.1", "dev": "enp1s0f0np0"}]))
    assert "leads over enp1s0f0np0 instead of enP7s7" in seen_with(machine, path)[0]
    machine.answer("ip", "-j", "route", "get", rc=2, stderr="RTNETLINK answers: Network is unreachable")
    assert "no route to 10.77.0.1" in seen_with(machine, path)[0]
    machine.answer("ip", "-j", "route", "get", stdout=json.dumps([{"dst": "10.77.0.1", "dev": "enP9s9"}]))
    assert seen_with(machine, path) == [], "two ways into one network were there before"


def test_the_session_is_found_above_sudo(tmp_path: Path) -> None:
    for pid, parent, environment in (
        (40, 30, b"PATH=/bin\0"),
        (30, 1, b"A=b\0SSH_CONNECTION=10.0.2.2 5 10.0.2.15 22\0"),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "environ").write_bytes(environment)
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    assert reach.session(40, tmp_path) == ("10.0.2.2", "10.0.2.15")
    assert reach.session(41, tmp_path) is None
    (tmp_path / "30" / "environ").write_bytes(b"A=b\0")
    assert reach.session(40, tmp_path) is None


# --- frames of full size ---------------------------------------------------------------------------------------------

SUMMARY = "3 packets transmitted, {} received, 0% packet loss, time 602ms\n"


def test_frames_of_full_size_go_out_on_every_rail_and_may_not_be_fragmented(machine: Machine) -> None:
    machine.answer("ping", stdout=SUMMARY.format(3))
    carried = reach.carry(machine, RAILS, 9000)
    assert reach.not_carried(machine, "spark-01", RAILS, 9000, carried) == []
    assert {call[3:7] for call in machine.ran("ping")} == {("-M", "do", "-s", "8972")}
    measured = reach.mtu_measured(9000, carried)
    assert (measured["mtu"], measured["carried"], len(measured["rails"])) == (9000, True, 2)


def test_a_frame_lost_among_others_is_no_broken_mtu(machine: Machine) -> None:
    machine.answer("ping", stdout=SUMMARY.format(1))
    assert reach.not_carried(machine, "spark-01", RAILS, 9000, reach.carry(machine, RAILS, 9000)) == []


def test_full_frames_that_do_not_pass_are_named_with_the_size_that_does(machine: Machine) -> None:
    def answer(argv: object) -> Completed:
        call = list(argv)  # type: ignore[call-overload]
        small, first = "1472" in call, "enp1s0f0np0" in call
        return said(SUMMARY.format(3)) if small or first else said(SUMMARY.format(0), rc=1)

    machine.answer("ping", to=answer)
    carried = reach.carry(machine, RAILS, 9000)
    found = reach.not_carried(machine, "spark-01", RAILS, 9000, carried)
    assert [item.code for item in found] == ["FABRIC_MTU_NOT_CARRIED"]
    assert "on rail 1 through enP2p1s0f0np0" in found[0].found
    assert "-s 8972: 3 packets transmitted, 0 received" in found[0].evidence[0]
    assert "-s 1472: 3 packets transmitted, 3 received" in found[0].evidence[1]
    assert not reach.mtu_measured(9000, carried)["carried"]


def test_what_the_kernel_said_of_the_size_is_evidence(machine: Machine) -> None:
    machine.answer("ping", rc=1, stdout=SUMMARY.format(0), stderr="ping: local error: message too long, mtu=1500\n")
    found = reach.not_carried(machine, "spark-01", RAILS, 1500, reach.carry(machine, RAILS, 1500))
    assert "message too long, mtu=1500" in found[0].evidence[0]
    assert len(found[0].evidence) == 1
