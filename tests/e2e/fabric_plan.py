"""The plan of a virtual pair from module calls alone: what preflight does, without a playbook around it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

import ansible_runner
import yaml
from ansible.module_utils.spark.plan.build import build_plan
from ansible.module_utils.spark.plan.fabric import wire_question
from ansible.module_utils.spark.plan.inventory import Cluster, read_cluster
from ansible.module_utils.spark.plan.types import Plan

from .virtual_pair import PROJECT, VirtualPair

Facts = dict[str, dict[str, Any]]


def cluster_of(pair: VirtualPair, **variables: Any) -> Cluster:
    """The pair's cluster as its inventory has it."""
    shared: dict[str, Any] = {}
    for path in pair.inventory.glob("group_vars/**/*.yml"):
        shared |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    shared |= {"ansible_host": "127.0.0.1", "ansible_user": "spark", **variables}
    return read_cluster(str(shared["cluster_name"]), [(node, shared) for node in pair.nodes])


def everywhere(pair: VirtualPair, module: str, arguments: Mapping[str, Mapping[str, Any]]) -> Facts:
    """One module on all nodes at the same time, as a play would run it, with the arguments of each."""
    names = next(iter(arguments.values()))
    templated = {
        name: "{{ " + repr({node: own[name] for node, own in arguments.items()}) + "[inventory_hostname] }}"
        for name in names
    }
    with tempfile.TemporaryDirectory(prefix="spark-e2e-") as scratch:
        done = ansible_runner.run(
            private_data_dir=scratch,
            project_dir=str(PROJECT),
            host_pattern="spark",
            module=module,
            module_args=json.dumps(templated),
            inventory=str(pair.inventory),
            cmdline="--become",
            envvars={
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": str(PROJECT / "callback_plugins"),
            },
            quiet=True,
        )
        events = [event for event in done.events if event["event"].startswith("runner_on_")]
    found = {
        event["event_data"]["host"]: event["event_data"]["res"] for event in events if event["event"] == "runner_on_ok"
    }
    assert set(found) == set(arguments), [event["event_data"].get("res") for event in events]
    return found


def facts_of(pair: VirtualPair) -> Facts:
    found = everywhere(pair, "node_info", {node: {"api_port": 8000} for node in pair.nodes})
    return {node: result["node"] for node, result in found.items()}


def wire_of(pair: VirtualPair, cluster: Cluster, facts: Mapping[str, Any]) -> Facts:
    """What the nodes hear of each other, asked as the plan would ask."""
    asked = ("cluster", "node", "peers", "netdevs", "addresses")
    questions: dict[str, Any] = {node: wire_question(cluster, facts, node) for node in pair.nodes}
    assert all(question["ask"] for question in questions.values()), questions
    arguments = {node: {name: question[name] for name in asked} for node, question in questions.items()}
    return {node: result["wire"] for node, result in everywhere(pair, "fabric_frames", arguments).items()}


def plan_of(cluster: Cluster, facts: Mapping[str, Any], wire: Mapping[str, Any] | None = None) -> Plan:
    bundle: Any = {"rankctl_sha256": "0" * 64, "files": []}
    return build_plan(cluster, facts, bundle, purpose="fabric", wire=wire)


def said(plan: Plan, severity: str = "fatal") -> set[tuple[str, str]]:
    """Code and node of the findings of one severity."""
    return {(item["code"], item["node"]) for item in plan["findings"] if item["severity"] == severity}
