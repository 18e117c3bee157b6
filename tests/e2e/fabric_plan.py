"""The plan of a virtual pair from module calls alone: what preflight does, without a playbook around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml
from ansible.module_utils.spark.plan.build import build_plan
from ansible.module_utils.spark.plan.fabric import wire_question
from ansible.module_utils.spark.plan.inventory import Cluster, read_cluster
from ansible.module_utils.spark.plan.types import Plan

from .virtual_pair import VirtualPair

Facts = dict[str, dict[str, Any]]


def cluster_of(pair: VirtualPair, **variables: Any) -> Cluster:
    """The pair's cluster as its inventory has it."""
    shared: dict[str, Any] = {}
    for path in pair.inventory.glob("group_vars/**/*.yml"):
        shared |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    shared |= {"ansible_host": "127.0.0.1", "ansible_user": "spark", **variables}
    return read_cluster(str(shared["cluster_name"]), [(node, shared) for node in pair.nodes])


def on_all(pair: VirtualPair, call: Callable[[str], dict[str, Any]]) -> Facts:
    """One call per node, at the same time."""
    with ThreadPoolExecutor(len(pair.nodes)) as pool:
        found = dict(zip(pair.nodes, pool.map(call, pair.nodes), strict=True))
    for node, result in found.items():
        assert not result["failed"], (node, result)
    return found


def facts_of(pair: VirtualPair) -> Facts:
    found = on_all(pair, lambda node: pair.module(node, "node_info", api_port=8000))
    return {node: result["node"] for node, result in found.items()}


def wire_of(pair: VirtualPair, cluster: Cluster, facts: Mapping[str, Any], **changed: Any) -> Facts:
    """What the nodes hear of each other, asked as the plan would ask."""

    def ask(node: str) -> dict[str, Any]:
        question = {**wire_question(cluster, facts, node), **changed}
        asked = ("cluster", "node", "peers", "netdevs", "addresses")
        return pair.module(node, "fabric_frames", **{name: question[name] for name in asked})

    return {node: result["wire"] for node, result in on_all(pair, ask).items()}


def plan_of(cluster: Cluster, facts: Mapping[str, Any], wire: Mapping[str, Any] | None = None) -> Plan:
    bundle: Any = {"rankctl_sha256": "0" * 64, "files": []}
    return build_plan(cluster, facts, bundle, purpose="fabric", wire=wire)


def said(plan: Plan, severity: str = "fatal") -> set[tuple[str, str]]:
    """Code and node of the findings of one severity."""
    return {(item["code"], item["node"]) for item in plan["findings"] if item["severity"] == severity}
