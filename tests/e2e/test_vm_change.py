"""A change of the network that is not confirmed, and the way back, on the VM pair: by timer, after a power cut, with
the controller killed at each step, and by reset.yml. What is compared is every file, unit state and address.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .virtual_pair import PROJECT, VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

HEAD, WORKER = "spark-01", "spark-02"
OURS = "/etc/netplan/40-spark-fabric.yaml"
STATE = "/var/lib/spark-cluster"
FUNCTIONS = ("enp1s0f0np0", "enP2p1s0f0np0")
HOSTS = {HEAD: 12, WORKER: 13}
# On an emulated machine a module takes seconds, and the threshold of the link is another test's business.
SITE: dict[str, Any] = {"link_check_min_gbps": 0.0001, "link_check_seconds": 3, "fabric_rollback_s": 240}


def rails(node: str) -> list[dict[str, Any]]:
    peer = WORKER if node == HEAD else HEAD
    return [
        {
            "rail": rail,
            "netdev": netdev,
            "address": f"192.168.{200 + rail}.{HOSTS[node]}",
            "prefix": 24,
            "peer_addresses": {peer: f"192.168.{200 + rail}.{HOSTS[peer]}"},
        }
        for rail, netdev in enumerate(FUNCTIONS)
    ]


def text(node: str, mtu: int = 1500, renderer: str = "NetworkManager") -> str:
    lines = ["network:", "  version: 2", "  ethernets:"]
    for rail in rails(node):
        lines += [f"    {rail['netdev']}:", f"      renderer: {renderer}"]
        lines += [f"      addresses: [{rail['address']}/24]", "      link-local: []", f"      mtu: {mtu}"]
    return "\n".join(lines) + "\n"


def orphans(pair: VirtualPair, node: str) -> list[str]:
    found = pair.sh(node, "for f in /etc/netplan/90-NM-*.yaml; do tr -d '\\0' < $f | grep -q . || echo $f; done")
    return found.split()


def change(pair: VirtualPair, node: str, rollback_s: int, **changes: Any) -> dict[str, Any]:
    """What the role does on one node, up to where it would confirm."""
    key = f"net.ipv4.conf.{FUNCTIONS[0]}.arp_ignore"
    sysctl = {"path": "/etc/sysctl.d/40-spark-fabric.conf", "text": f"{key} = 1\n", "values": {key: "1"}}
    given: dict[str, Any] = {"node": node, "path": OURS, "text": text(node), "rails": rails(node), "sysctl": sysctl}
    given |= {"orphans": orphans(pair, node), "rollback_s": rollback_s}
    done = pair.module(node, "fabric_netplan", **{**given, **changes})
    assert not done["failed"], done
    assert done["armed"]
    return done


def both(act: Any) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, (HEAD, WORKER)))


def foreign(found: dict[str, Any]) -> dict[str, Any]:
    """A snapshot without our own folder for state, which a rollback leaves and a reset removes."""
    return {
        node: {**entry, "files": {p: f for p, f in entry["files"].items() if not p.startswith(f"{STATE}/")}}
        for node, entry in found.items()
    }


def until_settled(pair: VirtualPair, node: str, within_s: float) -> float:
    """Wait until the node has no change pending any more; the seconds that it took."""
    began = time.monotonic()
    # On the node itself: a console command costs more than the precision that is wanted.
    script = f"for i in $(seq {int(within_s)}); do [ -e {STATE}/rollback/state.json ] || exit 0; sleep 1; done; exit 1"
    pair.sh(node, script)
    return time.monotonic() - began


def reset_by_modules(pair: VirtualPair, node: str) -> None:
    network = pair.module(node, "node_reset", node=node, phase="network")
    assert not network["failed"], network
    rest = pair.module(node, "node_reset", node=node, phase="rest", armed=network["armed"])
    assert not rest["failed"], rest
    assert [item["code"] for item in rest["findings"]] == ["RESET_DONE"], rest


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


# --- whole plays -----------------------------------------------------------------------------------------------------


def playbook(pair: VirtualPair, name: str, **variables: Any) -> list[str]:
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(pair.inventory), name]
    return [*argv, "-e", json.dumps(variables)]


ENVIRONMENT = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "PYTHONUNBUFFERED": "1"}


def killed_at(pair: VirtualPair, task: str, after_s: float) -> None:
    """Start site.yml and kill the controller, all of it, some seconds after it has announced a task."""
    controller = subprocess.Popen(
        playbook(pair, "site.yml", **SITE | {"fabric_rollback_s": 45}),
        cwd=PROJECT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert controller.stdout is not None
    try:
        seen = []
        for line in controller.stdout:
            seen.append(line)
            if task in line:
                break
        else:
            raise AssertionError(f"{task} was never begun:\n{''.join(seen)}")
        time.sleep(after_s)
    finally:
        # The group is its own: the controller, its workers and their ssh.
        os.killpg(controller.pid, signal.SIGKILL)
        controller.wait()


@pytest.fixture
def after_a_kill(vm_pair: VirtualPair, factory: dict[str, Any]) -> Iterator[None]:
    yield
    both(lambda node: reset_by_modules(vm_pair, node))
    assert changed_paths(factory, vm_pair.snapshot()) == {}, "every byte is back after this kill point"


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "after_s", "confirmed"),
    [
        ("fabric : Give the functions their addresses", 0.5, False),
        ("fabric : Give the functions their addresses", 6, False),
        ("fabric : Go on only if every node was changed", 0, False),
        ("fabric : Reach every peer on every rail", 3, False),
        ("fabric : Keep the change", 0.5, None),
    ],
    ids=["before the write", "during the change", "after the apply", "before confirming", "while confirming"],
)
def test_a_killed_controller_leaves_what_was_there(
    vm_pair: VirtualPair,
    factory: dict[str, Any],
    after_a_kill: None,
    task: str,
    after_s: float,
    confirmed: bool | None,
) -> None:
    killed_at(vm_pair, task, after_s)
    # A module that was begun goes on without its controller: only then the timer's time counts.
    time.sleep(20)
    both(lambda node: until_settled(vm_pair, node, 120))
    after = foreign(vm_pair.snapshot())
    if confirmed is False:
        assert changed_paths(foreign(factory), after) == {}
        return
    for node in vm_pair.nodes:
        has_file, has_unit = OURS in after[node]["files"], "spark-fabric-rollback" in after[node]["units"]
        addresses = dict(map(tuple, after[node]["addresses"]))  # type: ignore[arg-type]
        assert has_file == bool(addresses[FUNCTIONS[0]]), "all of it or nothing"
        assert not has_unit


@pytest.mark.long
def test_reset_after_success_brings_every_byte_back_and_site_works_again(
    vm_pair: VirtualPair, factory: dict[str, Any]
) -> None:
    first = vm_pair.play("site.yml", **SITE)
    assert first.rc == 0, first.output[-6000:]
    configured = vm_pair.snapshot()

    argv = playbook(vm_pair, "reset.yml")
    unasked = subprocess.run(
        argv, cwd=PROJECT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert unasked.returncode != 0, "without an answer nothing is taken back"
    assert "-e reset_confirmed=true" in unasked.stdout
    predicted = vm_pair.play("reset.yml", check=True)
    assert predicted.rc == 0, predicted.output[-6000:]
    assert "-    enp1s0f0np0:" in predicted.output, "--diff shows the file that would go"
    assert "715 NUL bytes" in predicted.output
    assert changed_paths(configured, vm_pair.snapshot()) == {}

    back = vm_pair.play("reset.yml", reset_confirmed=True)
    assert back.rc == 0, back.output[-6000:]
    assert "RESET_DONE" in back.codes("lab-fabric")
    assert changed_paths(factory, vm_pair.snapshot()) == {}

    second = vm_pair.play("reset.yml", reset_confirmed=True)
    assert second.rc == 0, second.output[-6000:]
    assert not any(second.changed.values()), second.result("lab-fabric")["changed"]
    assert changed_paths(factory, vm_pair.snapshot()) == {}

    again = vm_pair.play("site.yml", **SITE)
    assert again.rc == 0, again.output[-6000:]
    gone = vm_pair.play("reset.yml", reset_confirmed=True)
    assert gone.rc == 0, gone.output[-6000:]
    assert changed_paths(factory, vm_pair.snapshot()) == {}
