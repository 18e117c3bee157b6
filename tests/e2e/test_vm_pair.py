"""The VM pair: a kernel of its own, soft-RoCE, real ``ib_write_bw``; one story, from factory state to a proven link."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from .virtual_pair import VirtualPair, changed_paths, last_result

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


def measured(pair: VirtualPair, min_gbps: float) -> dict[str, Any]:
    """Listen on the worker, measure from the head, judge against a threshold."""
    plan = last_result("lab-fabric", "site")["plan"]
    rails = {node["node"]: node["rails"] for node in plan["nodes"]}
    options = {key: plan["link_check"][key] for key in ("ports", "seconds")} | {"transport": plan["transport"]}
    listening = pair.module(WORKER, "link_listen", node=WORKER, rails=rails[WORKER], **options)
    assert not listening["failed"], listening
    return pair.module(HEAD, "link_measure", node=HEAD, rails=rails[HEAD], min_gbps=min_gbps, **options)


# Last in the story: the worker once answered no ssh for a minute after it.
def test_one_threshold_tells_a_healthy_link_from_one_with_a_slowed_rail(vm_pair: VirtualPair) -> None:
    threshold_gbps = 0.4 * last_result("lab-fabric", "site")["measurements"][HEAD]["link"]["sum_gbps"]
    healthy = measured(vm_pair, threshold_gbps)
    assert not healthy["failed"], healthy
    vm_pair.sh(HEAD, "tc qdisc add dev enP2p1s0f0np0 root tbf rate 200kbit burst 16kb latency 2s")
    try:
        slowed = measured(vm_pair, threshold_gbps)
    finally:
        vm_pair.sh(HEAD, "tc qdisc del dev enP2p1s0f0np0 root")
    assert slowed["failed"], slowed
    fatal = [item for item in slowed["findings"] if item["severity"] == "fatal"]
    assert {item["code"] for item in fatal} & {"LINK_RAIL_SLOW", "LINK_SLOW", "LINK_TRANSFER_FAILED", "LINK_TIMED_OUT"}
