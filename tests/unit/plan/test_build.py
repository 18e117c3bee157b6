"""Who may be missing, when, and what else a plan says."""

from __future__ import annotations

import json
from typing import Any

from ansible.module_utils.spark.plan.build import build_plan
from ansible.module_utils.spark.plan.present import finding_line, plan_lines
from ansible.module_utils.spark.plan.types import Bundle, Purpose

from .conftest import BUNDLE, Pair, cluster_of, codes, plan_for, recipe_of, said


def test_a_member_without_facts_stops_the_cluster(pair: Pair) -> None:
    del pair["spark-02"]
    plan = plan_for(cluster_of(), pair)
    assert codes(plan, "fatal") == ["FACTS_MISSING"]
    assert said(plan, "FACTS_MISSING")["node"] == "spark-02"


def test_a_member_that_failed_is_named_with_its_words(pair: Pair) -> None:
    del pair["spark-02"]
    plan = build_plan(cluster_of(), pair, BUNDLE, purpose="fabric", silent={"spark-02": "no route to host"})
    assert said(plan, "FACTS_MISSING")["found"] == "no route to host"


def test_a_rail_without_its_rdma_device(pair: Pair) -> None:
    pair["spark-02"]["netdevs"][3]["rdma_device"] = None
    item = said(plan_for(cluster_of(), pair), "RDMA_DEVICE_MISSING")
    assert (item["node"], item["found"]) == ("spark-02", "enP2p1s0f0np0 without an RDMA device")
    assert "RDMA_DEVICE_MISSING" not in codes(plan_for(cluster_of(fabric_transport="tcp"), pair))


def test_a_member_outside_the_run_is_named_as_that(pair: Pair) -> None:
    del pair["spark-02"]
    plan = build_plan(cluster_of(), pair, BUNDLE, purpose="fabric", absent={"spark-02": "it is not in this run"})
    assert "FACTS_MISSING" not in codes(plan)
    item = said(plan, "CLUSTER_INCOMPLETE")
    assert (item["severity"], item["node"], item["found"]) == ("fatal", "spark-02", "it is not in this run")


def test_a_complete_pair_has_neither(pair: Pair) -> None:
    assert not {"FACTS_MISSING", "CLUSTER_INCOMPLETE"} & set(codes(plan_for(cluster_of(), pair)))


def test_half_a_pair_can_be_stopped() -> None:
    plan = build_plan(cluster_of(), {}, BUNDLE, purpose="stop", absent={"spark-02": "it is not in this run"})
    assert codes(plan, "fatal") == []
    assert codes(plan, "warn") == ["CLUSTER_INCOMPLETE"]


def test_serving_needs_the_fabric_that_site_makes(ready: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash")
    assert "FABRIC_NOT_SET_UP" not in codes(plan_for(cluster_of(), ready, recipe))
    ready["spark-02"]["netdevs"][3]["addresses"] = []
    item = said(plan_for(cluster_of(), ready, recipe), "FABRIC_NOT_SET_UP")
    assert (item["severity"], item["found"]) == ("fatal", "enP2p1s0f0np0 lacks 192.168.201.13")
    assert "FABRIC_NOT_SET_UP" not in codes(plan_for(cluster_of(), ready))
    checked = build_plan(cluster_of(), ready, BUNDLE, purpose="serve", check_mode=True)
    assert codes(checked, "fatal") == []
    assert said(checked, "NOT_PROVEN_IN_CHECK_MODE")["node"] == "spark-02"


def test_a_launcher_edited_by_hand_is_refused_before_anything_is_copied(ready: Pair) -> None:
    launch = "/usr/local/lib/spark-cluster/launch"
    planned: Bundle = {
        "rankctl_sha256": "f" * 64,
        "files": [{"path": launch, "mode": "0755", "sha256": "b" * 64, "source": "launch"}],
    }

    def judged(found: str | None, purpose: Purpose = "serve", **variables: Any) -> list[str]:
        ready["spark-02"]["bundle"]["files"] = [{"path": launch, "sha256": found, "expected_sha256": "a" * 64}]
        return codes(build_plan(cluster_of(**variables), ready, planned, purpose=purpose), "fatal")

    assert judged("c" * 64) == ["LAUNCHER_ALTERED"]
    item = said(build_plan(cluster_of(), ready, planned, purpose="serve"), "LAUNCHER_ALTERED")
    assert (item["node"], "c" * 64 in item["found"], "a" * 64 in item["expected"]) == ("spark-02", True, True)
    assert judged("a" * 64) == []
    assert judged("b" * 64) == [], "an installation that was cut off had written the new file"
    assert judged(None) == [], "a file that is gone is installed again"
    assert judged("c" * 64, launcher_restore=True) == []
    assert judged("c" * 64, purpose="fabric") == []


def test_a_unit_in_the_way_is_in_the_plan(pair: Pair) -> None:
    unit = {
        "name": "vllm.service",
        "enabled": "enabled",
        "active": "inactive",
        "exec": "vllm",
        "ports": [8000],
        "gpu": True,
    }
    pair["spark-01"]["units"] = [unit, {**unit, "name": "old.service", "enabled": "disabled"}]
    plan = plan_for(cluster_of(), pair)
    assert plan["nodes"][0]["conflicting_units"] == ["vllm.service"]
    assert "UNIT_CONFLICT" in codes(plan, "fatal")
    assert "UNIT_CONFLICT" not in codes(plan_for(cluster_of(takeover=True), pair), "fatal")


def test_nodes_that_serve_now_are_named(pair: Pair) -> None:
    assert plan_for(cluster_of(), pair)["serving_nodes"] == []
    container = {"id": "1", "running": True, "started_at": "", "config_sha256": "x"}
    pair["spark-02"]["rank"]["container"] = container
    pair["spark-01"]["rank"]["container"] = {**container, "running": False}
    assert plan_for(cluster_of(), pair)["serving_nodes"] == ["spark-02"]


def test_a_plan_is_json_and_equal_for_every_member(pair: Pair) -> None:
    first, second = (json.dumps(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))) for _ in range(2))
    assert first == second


def test_what_a_person_sees(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    text = "\n".join(plan_lines(plan))
    for part in (
        "pair_a: 2 nodes, rdma over 192.168.200.0/24, 192.168.201.0/24 (MTU 1500, NetworkManager)",
        "rank 1  spark-02 (worker, 192.0.2.12)  enp1s0f0np0 192.168.200.13/24, enP2p1s0f0np0 192.168.201.13/24",
        "is all NUL and goes to the backup",
        "at http://192.0.2.11:8000",
    ):
        assert part in text
    assert finding_line(said(plan, "NETPLAN_ORPHAN")).startswith("  note    NETPLAN_ORPHAN on spark-01: ")
