"""The VM pair: a kernel of its own, soft-RoCE, real ``ib_write_bw``; one story, from factory state to a proven link."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .virtual_pair import PROJECT, VirtualPair, changed_paths, last_result

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HEAD, WORKER = "spark-01", "spark-02"
RAILS = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}


def netplan_files(pair: VirtualPair, node: str) -> dict[str, list[Any]]:
    return {path: facts for path, facts in pair.snapshot()[node]["files"].items() if path.startswith("/etc/netplan/")}


@pytest.fixture(scope="module")
def factory_netplan(vm_pair: VirtualPair) -> dict[str, dict[str, list[Any]]]:
    found = vm_pair.snapshot()
    return {
        node: {p: f for p, f in found[node]["files"].items() if p.startswith("/etc/netplan/")} for node in vm_pair.nodes
    }


def test_check_mode_on_factory_state_changes_nothing_and_claims_nothing_unproven(
    vm_pair: VirtualPair, factory_netplan: Any
) -> None:
    before = vm_pair.snapshot()
    outcome = vm_pair.play("site.yml", check=True)
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab-fabric")
    assert result["verdict"] == "predicted"
    assert "NOT_PROVEN_IN_CHECK_MODE" in outcome.codes("lab-fabric")
    assert "link" not in result["measurements"].get(HEAD, {})
    assert "40-spark-fabric.yaml" in outcome.output, "--diff shows the file that would be written"
    assert changed_paths(before, vm_pair.snapshot()) == {}


def test_site_moves_the_orphan_keeps_the_foreign_file_and_measures_both_rails(
    vm_pair: VirtualPair, factory_netplan: Any
) -> None:
    outcome = vm_pair.play("site.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab-fabric")
    assert result["verdict"] == "ok"
    nul = hashlib.sha256(bytes(715)).hexdigest()
    after = vm_pair.snapshot()
    for node in vm_pair.nodes:
        files = after[node]["files"]
        for path, facts in factory_netplan[node].items():
            if facts[0] == nul:
                assert path not in files, "the orphan is out of netplan's way"
                moved = [f for p, f in files.items() if p.startswith("/var/lib/spark-cluster/backup/") and f[0] == nul]
                assert moved == [facts], "bytes, mode, owner and time are kept"
            else:
                assert files[path] == facts, f"{path} is not ours"
        gids = {gid["rdma_device"]: gid for gid in result["measurements"][node]["gids"]}
        assert set(gids) == set(RAILS.values())
        assert result["module_executions"][node]["modules"] <= 40
    link = result["measurements"][HEAD]["link"]
    assert len(link["rails"]) == 2
    assert link["overlap_share"] >= 0.9
    assert link["sum_gbps"] >= link["min_gbps"] > 0


def test_the_second_run_changes_nothing(vm_pair: VirtualPair) -> None:
    before = vm_pair.snapshot()
    outcome = vm_pair.play("site.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    assert not any(outcome.changed.values()), outcome.result("lab-fabric")["changed"]
    assert changed_paths(before, vm_pair.snapshot()) == {}


@pytest.mark.long
def test_one_changed_byte_of_the_launcher_is_named_with_both_hashes(vm_pair: VirtualPair) -> None:
    files = last_result("lab-fabric", "site")["plan"]["bundle"]["files"]
    installed = vm_pair.module(WORKER, "node_bundle", node=WORKER, files=files)
    assert not installed["failed"], installed
    launch = next(item for item in files if item["path"].endswith("/launch"))
    vm_pair.sh(WORKER, f"sed -i 's/exec/Exec/' {launch['path']}")
    altered = vm_pair.sh(WORKER, f"sha256sum {launch['path']}").split()[0]
    refused = vm_pair.module(WORKER, "node_bundle", node=WORKER, files=files)
    assert refused["failed"]
    said = [item for item in refused["findings"] if item["severity"] == "fatal"]
    assert [item["code"] for item in said] == ["LAUNCHER_ALTERED"]
    assert altered in said[0]["found"]
    assert launch["sha256"] in said[0]["expected"]
    assert vm_pair.sh(WORKER, f"sha256sum {launch['path']}").split()[0] == altered, "somebody's edit is not overwritten"


# --- the link --------------------------------------------------------------------------------------------------------

PORTS = range(12000, 12010)


def link_options(pair: VirtualPair, node: str, **more: Any) -> dict[str, Any]:
    """What the role link_check would pass to its modules; one leg from the head to the worker unless told otherwise."""
    plan = last_result(pair.name, "site")["plan"]
    return {
        "node": node,
        "nodes": [HEAD, WORKER],
        "rails": next(entry["rails"] for entry in plan["nodes"] if entry["node"] == node),
        "ports": plan["link_check"]["ports"],
        "seconds": plan["link_check"]["seconds"],
        "legs": [{"kind": "write", "source": HEAD, "target": WORKER, "slot": 0, "seconds": 5}],
        **more,
    }


def fatal_codes(result: dict[str, Any]) -> set[str]:
    return {item["code"] for item in result["findings"] if item["severity"] == "fatal"}


def listening(pair: VirtualPair, node: str) -> list[int]:
    """Ports of the link check on which something listens."""
    ports = {int(line.split()[3].rpartition(":")[2]) for line in pair.sh(node, "ss -ltnH").splitlines()}
    return sorted(ports & set(PORTS))


@pytest.fixture
def listeners(vm_pair: VirtualPair) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start the worker's listeners; whatever is left of them afterwards is stopped."""

    def start(**more: Any) -> dict[str, Any]:
        return vm_pair.module(WORKER, "link_listen", **link_options(vm_pair, WORKER, **more))

    yield start
    vm_pair.console(WORKER, "systemctl", "stop", "spark-link.service")


def test_both_directions_were_measured_and_ran_together_by_their_counters(vm_pair: VirtualPair) -> None:
    measured = last_result(vm_pair.name, "site")["measurements"]
    legs = [leg for node in (HEAD, WORKER) for leg in measured[node]["link"]["directions"]]
    assert [(leg["kind"], leg["from"], leg["to"]) for leg in legs] == [
        ("write", HEAD, WORKER),
        ("both", HEAD, WORKER),
        ("write", WORKER, HEAD),
    ]
    for leg in legs:
        assert leg["counters_together_share"] >= 0.9, leg
        for rail in leg["rails"]:
            assert rail["counters"]["sent_pkts"] > 0
            assert rail["peer_counters"]["rcvd_pkts"] > 0, "the far end told what it counted"
    assert all(item["typical_us"] > 0 for item in measured[HEAD]["link"]["latency"])
    assert not listening(vm_pair, HEAD)
    assert not listening(vm_pair, WORKER)


def test_a_rank_that_serves_is_not_disturbed_and_the_last_verdict_is_told(vm_pair: VirtualPair) -> None:
    vm_pair.sh(HEAD, "systemd-run -q --unit=spark-rank.service sleep 300")
    try:
        told = vm_pair.module(HEAD, "link_listen", **link_options(vm_pair, HEAD, legs=[]))
    finally:
        vm_pair.sh(HEAD, "systemctl stop spark-rank.service")
    assert [item["code"] for item in told["findings"]] == ["LINK_NOT_LOADED"]
    assert "last: LINK_OK" in told["findings"][0]["found"]
    assert not listening(vm_pair, HEAD)


# What stands for an address that comes between plan and start: it takes the slot, and the rail's own entry a later one.
DRIFT = """
sysctl -qw net.ipv6.conf.{netdev}.disable_ipv6=0
ip addr del {address}/24 dev {netdev}
ip -6 addr add 2001:db8:77::1/64 dev {netdev} nodad
for i in $(seq 50); do cat /sys/class/infiniband/{device}/ports/1/gids/* | grep -q ^2001: && break; sleep 0.2; done
ip addr add {address}/24 dev {netdev}
for i in $(seq 50); do cat /sys/class/infiniband/{device}/ports/1/gids/* | grep -q {tail} && break; sleep 0.2; done
"""
SETTLED = """
ip -6 addr del 2001:db8:77::1/64 dev {netdev}
ip addr del {address}/24 dev {netdev}
sleep 1
ip addr add {address}/24 dev {netdev}
"""


def prestarted(pair: VirtualPair, node: str, rails: list[dict[str, Any]], variable: str | None) -> dict[str, Any]:
    """What `rankctl prestart` finds on the node for a plan that saw these GIDs. There is no engine to start there."""
    plan = {
        "node": node,
        "rank": 0,
        "role": "head",
        "cluster": pair.name,
        "model": "none",
        "config_sha256": "0",
        "argv": ["docker", "run", "none"],
        "environment": {},
        "image": {"reference": "none"},
        "weights": {"path": "/nowhere"},
        "transport": "rdma",
        "address_range": "192.168.200.0/23",
        "resolve": {"gids": rails, "gid_index_variable": variable},
    }
    path = "/etc/spark-cluster/plan.json"
    pair.sh(node, f"umask 077; printf '%s' {shlex.quote(json.dumps(plan))} > {path}")
    try:
        done = pair.console(node, "python3", "/usr/local/lib/spark-cluster/rankctl.pyz", "prestart")
        assert done.returncode == 78, done.stderr.decode()
        found: dict[str, Any] = json.loads(pair.sh(node, "cat /run/spark-cluster/rank.json"))
    finally:
        pair.sh(node, f"rm -f {path} /run/spark-cluster/rank.json")
    return found


def test_a_gid_that_moved_between_plan_and_start_is_used_where_it_is_and_said(vm_pair: VirtualPair) -> None:
    result = last_result(vm_pair.name, "site")
    planned = result["measurements"][HEAD]["gids"]
    address = planned[0]["address"]
    first, second = planned[0]["index"], planned[1]["index"]
    where = {"netdev": "enp1s0f0np0", "device": "rocep1s0f0", "address": address, "tail": planned[0]["gid"][-9:]}
    before = prestarted(vm_pair, HEAD, planned, None)
    assert before["gids"] == {"rocep1s0f0": first, "roceP2p1s0f0": second}
    assert not {item["code"] for item in before["findings"]} & {"GID_DRIFTED", "GID_MISSING", "GID_OUTSIDE_RANGE"}
    vm_pair.sh(HEAD, DRIFT.format(**where))
    try:
        after = prestarted(vm_pair, HEAD, planned, None)
        pinned = prestarted(vm_pair, HEAD, planned, "NCCL_IB_GID_INDEX")
    finally:
        vm_pair.sh(HEAD, SETTLED.format(**where))
    assert after["gids"]["rocep1s0f0"] != first
    assert after["gids"]["roceP2p1s0f0"] == second
    said = next(item for item in after["findings"] if item["code"] == "GID_DRIFTED")
    assert said["expected"] == f"rocep1s0f0: index {first}, as planned"
    codes = {item["code"] for item in pinned["findings"]}
    assert {"GID_DRIFTED", "RANK_GID_INDEX_SPLIT"} <= codes, "one number would be wrong on one of the two devices"
    assert "NCCL_IB_GID_INDEX" not in pinned["environment"]


@pytest.mark.long
def test_a_diagnosis_over_rdma_reads_both_ends_and_changes_nothing(vm_pair: VirtualPair) -> None:
    before = vm_pair.snapshot()
    outcome = vm_pair.play("diagnose.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    assert changed_paths(before, vm_pair.snapshot()) == {}
    measured = outcome.result(vm_pair.name)["measurements"]
    found = next(values["diagnosis"] for values in measured.values() if "diagnosis" in values)
    runs = {(run["kind"], run["from"]): run for run in found["runs"]}
    assert set(runs) == {
        *{("loopback", HEAD), ("loopback", WORKER), ("latency", HEAD), ("write", HEAD), ("write", WORKER)},
        *{("both", HEAD), ("tcp", HEAD)},
    }
    assert not [run["skipped"] for run in found["runs"] if run["skipped"]]
    assert sum(run["seconds"] for run in found["runs"]) < 60
    assert found["state"] == "healthy", found
    assert not listening(vm_pair, HEAD)
    assert not listening(vm_pair, WORKER)


def test_a_stale_server_is_named_and_a_slowed_rail_refused(
    vm_pair: VirtualPair, listeners: Callable[..., dict[str, Any]]
) -> None:
    threshold_gbps = 0.4 * last_result(vm_pair.name, "site")["measurements"][HEAD]["link"]["sum_gbps"]
    assert not listeners()["failed"]
    again = listeners()
    assert not again["failed"], again
    assert "LINK_LISTENER_STALE" in {item["code"] for item in again["findings"]}
    vm_pair.sh(HEAD, "tc qdisc add dev enP2p1s0f0np0 root tbf rate 3mbit burst 16kb latency 2s")
    try:
        slowed = vm_pair.module(HEAD, "link_measure", **link_options(vm_pair, HEAD, min_gbps=threshold_gbps))
    finally:
        vm_pair.sh(HEAD, "tc qdisc del dev enP2p1s0f0np0 root")
    assert slowed["failed"], slowed
    assert fatal_codes(slowed) & {"LINK_RAIL_SLOW", "LINK_SLOW", "LINK_NOT_SENDING", "LINK_NO_OVERLAP"} or fatal_codes(
        slowed
    ) & {"LINK_TRANSFER_FAILED", "LINK_TIMED_OUT"}, slowed["findings"]
    assert not listening(vm_pair, WORKER), "nothing is left that would poll for a client"


@pytest.mark.long
def test_a_client_held_back_by_half_of_the_run_is_no_proof(
    vm_pair: VirtualPair, listeners: Callable[..., dict[str, Any]]
) -> None:
    """The clients' processes overlap all of the time; what the functions carry does not."""
    late = '#!/bin/sh\ncase "$*" in *\'-d roceP2p1s0f0\'*) sleep 2.5;; esac\nexec /usr/bin/ib_write_bw "$@"\n'
    vm_pair.sh(
        HEAD, f"printf '%s' {shlex.quote(late)} > /usr/local/sbin/ib_write_bw; chmod 755 /usr/local/sbin/ib_write_bw"
    )
    try:
        assert not listeners()["failed"]
        refused = vm_pair.module(HEAD, "link_measure", **link_options(vm_pair, HEAD, min_gbps=0.001))
    finally:
        vm_pair.sh(HEAD, "rm /usr/local/sbin/ib_write_bw")
    assert fatal_codes(refused) == {"LINK_NO_OVERLAP"}, refused["findings"]
    assert "by their counters" in next(i["found"] for i in refused["findings"] if i["severity"] == "fatal")


@pytest.mark.long
def test_a_rail_cut_in_the_middle_of_a_run_is_named(
    vm_pair: VirtualPair, listeners: Callable[..., dict[str, Any]]
) -> None:
    assert not listeners()["failed"]
    rail = "enP2p1s0f0np0"
    running = "for i in $(seq 300); do grep -q ib_write_bw /proc/[0-9]*/comm && break; sleep 0.2; done"
    cut = f"{running}; sleep 3; ip link set {rail} down"
    vm_pair.sh(HEAD, f"systemd-run -q --collect --unit=cut-rail sh -c {shlex.quote(cut)}")
    try:
        broken = vm_pair.module(HEAD, "link_measure", **link_options(vm_pair, HEAD, min_gbps=0.001))
    finally:
        vm_pair.sh(HEAD, f"nmcli device connect {rail} || nmcli device reapply {rail} || ip link set {rail} up")
    assert fatal_codes(broken) & {"LINK_TRANSFER_FAILED", "LINK_PEER_LOST", "LINK_TIMED_OUT"}, broken["findings"]
    said = next(item for item in broken["findings"] if item["severity"] == "fatal")
    assert "rail 1" in said["found"]
    assert not listening(vm_pair, WORKER)


@pytest.mark.long
def test_listeners_end_at_their_time_when_the_controller_is_killed(
    vm_pair: VirtualPair, listeners: Callable[..., dict[str, Any]]
) -> None:
    """The play is killed while its listeners wait; nobody comes to them, and nobody tells them to end."""
    arguments = json.dumps(link_options(vm_pair, WORKER, patience_s=5))
    argv = ["ansible", WORKER, "-i", str(vm_pair.inventory), "--become", "-m", "link_listen", "-a", arguments]
    controller = subprocess.Popen(
        argv, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 90
        while len(listening(vm_pair, WORKER)) < 3 and time.monotonic() < until:
            time.sleep(1)
    finally:
        os.killpg(controller.pid, signal.SIGKILL)
        controller.wait()
    assert listening(vm_pair, WORKER) == [12000, 12001, 12006]
    until = time.monotonic() + 120
    while listening(vm_pair, WORKER) and time.monotonic() < until:
        time.sleep(3)
    assert listening(vm_pair, WORKER) == []
    assert vm_pair.sh(WORKER, "systemctl list-units --all --plain --no-legend 'spark-link*'") == ""
