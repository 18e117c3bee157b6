"""Whether the rails work, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.spark import reach
from ansible.module_utils.spark.netplan import Rail
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
