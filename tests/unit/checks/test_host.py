"""Every finding about the machines, and for each a pair of nodes that only just does not raise it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.checks.host import conflicting_units, host_findings
from ansible.module_utils.spark.codes.host import CODES
from ansible.module_utils.spark.facts import NodeFacts
from ansible.module_utils.spark.plan.policy import Policy

HERE = Path(__file__).parent
HEALTHY: dict[str, Any] = yaml.safe_load((HERE.parent / "fixtures" / "facts.yml").read_text())
CASES = yaml.safe_load((HERE / "host.yml").read_text())
POLICY = {
    "cluster_name": "pair",
    "fabric_transport": "rdma",
    "fabric_subnets": ["192.168.200.0/24", "192.168.201.0/24"],
    "fabric_netdevs": [],
    "disk_headroom_gib": 20,
    "takeover": False,
    "api_port": 8000,
}


def changed(*changes: dict[str, Any] | None) -> dict[str, Any]:
    facts = copy.deepcopy(HEALTHY)
    for change in changes:
        for name, value in (change or {}).items():
            known = facts[name]
            facts[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return facts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_pair(case: dict[str, Any]) -> None:
    nodes: Any = {
        "spark-01": changed(case.get("all"), case.get("first")),
        "spark-02": changed(case.get("all"), case.get("second")),
    }
    policy = {**POLICY, **case.get("policy", {})}
    found = host_findings(nodes, policy, purpose=case.get("purpose", "serve"), gpu=case.get("gpu", True))
    assert {item.code: [item.node, item.severity] for item in found} == case["raises"]
    text = "\n".join(f"{item.found} {item.expected} {item.remedy} {item.evidence}" for item in found)
    for said in case.get("says", ()):
        assert said in text


def test_every_code_has_a_case() -> None:
    raised = {code for case in CASES for code in case["raises"]}
    assert raised == {code.code for code in CODES} - {"NOT_PROVEN_IN_CHECK_MODE"}


def test_the_validated_policy_is_taken_as_it_is() -> None:
    policy, errors = Policy.read({"cluster_name": "pair", "disk_headroom_gib": 3000})
    assert errors == []
    (found,) = host_findings({"spark-01": changed()}, policy, purpose="serve")
    assert found.code == "DISK_LOW"


def test_the_head_is_where_the_port_must_be_free() -> None:
    nodes = {"a": changed(), "b": changed({"listeners": [{"port": 8000, "address": "*", "process": ""}]})}
    assert host_findings(nodes, POLICY, purpose="serve") == []
    (found,) = host_findings(nodes, POLICY, purpose="serve", head="b")
    assert (found.code, found.node) == ("API_PORT_TAKEN", "b")


def test_the_fixture_is_complete() -> None:
    assert set(HEALTHY) == set(NodeFacts.__annotations__)


def test_one_node_has_nobody_to_differ_from() -> None:
    alone: Any = {"spark-01": changed({"firewall": {"active": True, "kind": "ufw", "evidence": []}})}
    assert host_findings(alone, POLICY) == []


def test_of_three_the_odd_one_is_named() -> None:
    nodes: Any = {name: changed() for name in ("a", "b", "c")}
    nodes["b"]["kernel"] = "6.18.0-1001-nvidia"
    (found,) = host_findings(nodes, POLICY, head="c")
    assert (found.code, found.node) == ("KERNEL_DIFFERS", "b")


def test_units_that_conflict() -> None:
    unit = {"name": "x.service", "enabled": "static", "active": "inactive", "exec": "", "ports": [], "gpu": True}
    facts: Any = changed({"units": [unit, {**unit, "name": "y.service", "active": "activating"}]})
    assert conflicting_units(facts) == ["y.service"]
