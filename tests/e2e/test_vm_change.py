"""A change of the network that is not confirmed, and the way back, on machines with kernels of their own: by timer,
after a power cut, with large frames. What is compared is every file, unit state and address.
"""

from __future__ import annotations

from typing import Any

import pytest

from .change import (
    FUNCTIONS,
    OURS,
    STATE,
    WORKER,
    both,
    change,
    foreign,
    rails,
    reset_by_modules,
    text,
    until_settled,
)
from .virtual_pair import VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def factory(vm_pair: VirtualPair) -> dict[str, Any]:
    return vm_pair.snapshot()


# --- one node, by module calls ---------------------------------------------------------------------------------------


def test_a_change_that_nobody_confirms_goes_back_by_the_nodes_own_timer(
    vm_pair: VirtualPair, factory: dict[str, Any]
) -> None:
    done = change(vm_pair, WORKER, rollback_s=600)
    assert [item["path"] for item in done["quarantined"]]
    configured = vm_pair.snapshot()[WORKER]
    assert OURS in configured["files"]
    assert ["enp1s0f0np0", ["192.168.200.13"]] in configured["addresses"]
    # The next run finds its change waiting and gives it the whole time again: here, hardly any.
    again = change(vm_pair, WORKER, rollback_s=3)
    assert (again["changed"], again["applied"]) == (False, False)
    until_settled(vm_pair, WORKER, 90)
    assert vm_pair.sh(WORKER, f"cat /proc/sys/net/ipv4/conf/{FUNCTIONS[0]}/arp_ignore").strip() == "0"
    assert changed_paths(foreign(factory), foreign(vm_pair.snapshot())) == {}
    late = vm_pair.module(WORKER, "fabric_confirm", node=WORKER, rails=rails(WORKER), state="kept")
    assert [item["code"] for item in late["findings"]] == ["FABRIC_ROLLED_BACK"]
    assert "not confirmed in time" in late["findings"][0]["evidence"][0]


def test_the_reset_after_it_leaves_not_a_byte(vm_pair: VirtualPair, factory: dict[str, Any]) -> None:
    reset_by_modules(vm_pair, WORKER)
    assert changed_paths(factory, vm_pair.snapshot()) == {}


# --- power cuts ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_power_cut_between_apply_and_confirm_is_finished_by_the_boot_unit(
    vm_pair: VirtualPair, factory: dict[str, Any]
) -> None:
    change(vm_pair, WORKER, rollback_s=900)
    vm_pair.lab("crash", WORKER)
    until_settled(vm_pair, WORKER, 120)
    assert changed_paths(foreign(factory), foreign(vm_pair.snapshot())) == {}
    report = vm_pair.sh(WORKER, f"cat {STATE}/rollback/last.json")
    assert "the node restarted before the change was confirmed" in report
    reset_by_modules(vm_pair, WORKER)
    assert changed_paths(factory, vm_pair.snapshot()) == {}


@pytest.mark.long
def test_a_power_cut_right_after_confirming_keeps_the_change(vm_pair: VirtualPair, factory: dict[str, Any]) -> None:
    change(vm_pair, WORKER, rollback_s=900)
    kept = vm_pair.module(WORKER, "fabric_confirm", node=WORKER, rails=rails(WORKER), state="kept")
    assert not kept["failed"], kept
    vm_pair.lab("crash", WORKER)
    after = vm_pair.snapshot()[WORKER]
    assert OURS in after["files"]
    assert ["enp1s0f0np0", ["192.168.200.13"]] in after["addresses"]
    reset_by_modules(vm_pair, WORKER)
    assert changed_paths(factory, vm_pair.snapshot()) == {}


# --- MTU -------------------------------------------------------------------------------------------------------------


def proven(pair: VirtualPair, mtu: int) -> list[dict[str, Any]]:
    both(lambda node: change(pair, node, rollback_s=600, text=text(node, mtu), mtu=mtu))
    return both(lambda node: pair.module(node, "fabric_confirm", node=node, rails=rails(node), mtu=mtu, armed=True))


@pytest.mark.long
def test_large_frames_are_kept_where_they_pass_both_ways_and_else_all_goes_back(
    vm_pair: VirtualPair, factory: dict[str, Any]
) -> None:
    found = proven(vm_pair, 9000)
    assert not any(item["failed"] for item in found), found
    assert all(item["measurements"]["mtu"]["carried"] for item in found)
    assert [rail["payload_bytes"] for rail in found[0]["measurements"]["mtu"]["rails"]] == [8972, 8972]
    both(lambda node: vm_pair.module(node, "fabric_confirm", node=node, rails=rails(node), state="reverted"))
    assert changed_paths(foreign(factory), foreign(vm_pair.snapshot())) == {}
    # The second rail loses what is large, in one direction only.
    rule = f"add table netdev t; add chain netdev t c {{ type filter hook ingress device {FUNCTIONS[1]} priority 0; }}"
    vm_pair.sh(WORKER, f"nft '{rule}; add rule netdev t c meta length > 1600 drop'")
    try:
        found = proven(vm_pair, 9000)
        said = [item for result in found for item in result["findings"] if item["severity"] == "fatal"]
        assert {item["code"] for item in said} == {"FABRIC_MTU_NOT_CARRIED"}, found
        assert all("rail 1" in item["found"] for item in said)
        assert any("-s 1472: 3 packets transmitted, 3 received" in item["evidence"][1] for item in said)
        both(lambda node: vm_pair.module(node, "fabric_confirm", node=node, rails=rails(node), state="reverted"))
    finally:
        vm_pair.sh(WORKER, "nft delete table netdev t")
    assert changed_paths(foreign(factory), foreign(vm_pair.snapshot())) == {}
    both(lambda node: reset_by_modules(vm_pair, node))
    assert changed_paths(factory, vm_pair.snapshot()) == {}
