"""One cluster's plan: fabric, checks, serving, and what each node must have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..checks.fabric import fabric_findings
from ..checks.host import conflicting_units, host_findings
from ..facts import NodeFacts
from ..findings import Finding, finding
from .fabric import Fabric, plan_fabric
from .inventory import Cluster
from .types import SCHEMA, Bundle, LinkCheck, Node, NodeServing, Plan, Purpose, Serving
from .wire import Reports

Facts = Mapping[str, Any]


def build_plan(
    cluster: Cluster,
    facts_by_node: Mapping[str, Facts],
    bundle: Bundle,
    *,
    purpose: Purpose,
    absent: Mapping[str, str] | None = None,
    silent: Mapping[str, str] | None = None,
    gpu: bool = True,
    check_mode: bool = False,
    wire: Reports | None = None,
) -> Plan:
    """Plan the fabric of ``cluster`` and judge the facts against it.

    ``absent`` are members that are not part of the run and ``silent`` those that gave no facts, with the reason;
    ``gpu`` says whether what is to be served needs one. Stopping needs no healthy fabric, so nothing is judged for it.
    In check mode a fabric that is not there yet is what a real run of site.yml would have made. ``wire`` is what frames
    between the nodes told each of them, if they were exchanged.
    """
    policy = cluster.policy
    fabric = plan_fabric(cluster, facts_by_node, wire)
    link_check: LinkCheck = {
        "min_gbps": policy.link_check_min_gbps,
        "min_both_ways_gbps": policy.link_check_min_both_ways_gbps,
        "seconds": policy.link_check_seconds,
        "ports": list(policy.link_check_ports[: len(fabric.rails)]),
    }
    plan: Plan = {
        "schema": SCHEMA,
        "name": cluster.name,
        "purpose": purpose,
        "transport": policy.fabric_transport,
        "head": cluster.head.node,
        "nodes": _nodes(cluster, fabric, facts_by_node),
        "rails": fabric.rails,
        "address_range": fabric.address_range,
        "mtu": fabric.mtu,
        "renderer": fabric.nodes[cluster.head.node].renderer,
        "rollback_s": policy.fabric_rollback_s,
        "link_check": link_check,
        "takeover": policy.takeover,
        "serving_nodes": [m.node for m in cluster.members if rank_runs(facts_by_node.get(m.node, {}))],
        "policy": {**policy.as_dict(), "models_dir": cluster.models_dir},
        "findings": [],
        "serving": None,
        "bundle": bundle,
    }
    findings = list(cluster.findings)
    findings += _unseen(cluster, facts_by_node, absent or {}, silent or {}, stopping=purpose == "stop")
    if purpose != "stop":
        findings += fabric.findings
        findings += host_findings(facts_by_node, policy, purpose=purpose, head=cluster.head.node, gpu=gpu)
        if len(cluster.members) > 1:
            findings += fabric_findings(facts_by_node, cast(Mapping[str, Any], plan), policy)
            findings += _transport(cluster, plan, facts_by_node)
        if purpose == "serve":
            findings += _not_set_up(plan, facts_by_node, check_mode=check_mode)
            findings += [] if policy.launcher_restore else _altered(bundle, facts_by_node)
    plan["findings"] = [item.as_dict() for item in findings]
    return plan


def add_serving(plan: Plan, serving: Serving, per_node: Mapping[str, NodeServing], findings: Sequence[Finding]) -> Plan:
    """The plan with what is to be served on it."""
    nodes = [cast(Node, {**node, "serving": per_node.get(node["node"])}) for node in plan["nodes"]]
    return {**plan, "nodes": nodes, "serving": serving, "findings": plan["findings"] + [f.as_dict() for f in findings]}


def rank_runs(facts: Facts) -> bool:
    """Whether a rank of ours runs on the node now."""
    return bool(((facts.get("rank") or {}).get("container") or {}).get("running"))


def _nodes(cluster: Cluster, fabric: Fabric, facts_by_node: Mapping[str, Facts]) -> list[Node]:
    nodes: list[Node] = []
    for member in cluster.members:
        facts = facts_by_node.get(member.node, {})
        files = facts.get("netplan", {}).get("files", ())
        nodes.append(
            {
                "node": member.node,
                "rank": member.rank,
                "role": "head" if member.rank == 0 else "worker",
                "management_address": member.management_address,
                "user": member.user,
                "rails": fabric.nodes[member.node].rails,
                "netplan": fabric.nodes[member.node].netplan,
                "sysctl": fabric.nodes[member.node].sysctl,
                "adopted_from": fabric.nodes[member.node].adopted_from,
                "orphans": [str(file["path"]) for file in files if file["class"] == "orphan_nul"],
                "conflicting_units": conflicting_units(cast(NodeFacts, facts)) if facts else [],
                "serving": None,
            }
        )
    return nodes


def _unseen(
    cluster: Cluster,
    facts_by_node: Mapping[str, Facts],
    absent: Mapping[str, str],
    silent: Mapping[str, str],
    *,
    stopping: bool,
) -> list[Finding]:
    """Members without facts. A rank that still runs must be stopped also while its peer is away."""
    severity = "warn" if stopping else "fatal"
    findings = []
    for member in cluster.members:
        if member.node in absent:
            findings.append(
                finding(
                    "CLUSTER_INCOMPLETE",
                    node=member.node,
                    severity=severity,
                    found=absent[member.node],
                    expected=f"all {len(cluster.members)} members of {cluster.name} in the run",
                )
            )
        elif member.node not in facts_by_node and not stopping:
            findings.append(
                finding(
                    "FACTS_MISSING",
                    node=member.node,
                    found=silent.get(member.node, "node_info did not answer for it"),
                    expected="the facts of every member",
                )
            )
    return findings


def _transport(cluster: Cluster, plan: Plan, facts_by_node: Mapping[str, Facts]) -> list[Finding]:
    if cluster.policy.fabric_transport == "tcp":
        return [
            finding(
                "TRANSPORT_TCP",
                node=cluster.name,
                found="fabric_transport: tcp",
                expected="rdma on real Sparks",
            )
        ]
    findings = []
    for node in plan["nodes"]:
        facts = facts_by_node.get(node["node"], {})
        shown = {device["name"] for device in facts.get("netdevs", ())}
        bare = [rail["netdev"] for rail in node["rails"] if rail["netdev"] in shown and not rail["rdma_device"]]
        if bare:
            known = ", ".join(str(device["name"]) for device in facts.get("rdma_devices", ()))
            findings.append(
                finding(
                    "RDMA_DEVICE_MISSING",
                    node=node["node"],
                    found=f"{' and '.join(bare)} without an RDMA device",
                    expected="an RDMA device for each rail",
                    evidence=[f"RDMA devices: {known or 'none'}"],
                )
            )
    return findings


def _not_set_up(plan: Plan, facts_by_node: Mapping[str, Facts], *, check_mode: bool) -> list[Finding]:
    findings = []
    for node in plan["nodes"]:
        bare = [f"{rail['netdev']} lacks {rail['address']}" for rail in node["rails"] if not rail["adopted"]]
        if bare and node["node"] in facts_by_node:
            findings.append(
                finding(
                    "NOT_PROVEN_IN_CHECK_MODE" if check_mode else "FABRIC_NOT_SET_UP",
                    node=node["node"],
                    found=", ".join(bare),
                    expected="the planned address on every rail",
                )
            )
    return findings


def _altered(bundle: Bundle, facts_by_node: Mapping[str, Facts]) -> list[Finding]:
    """Launcher files that are neither what was installed on the node nor what is planned: somebody's edit.

    A file that is gone, or that an interrupted installation brought up to date already, is left to the installation.
    """
    planned = {item["path"]: item["sha256"] for item in bundle["files"]}
    return [
        finding(
            "LAUNCHER_ALTERED",
            node=node,
            found=f"{file['path']} has SHA-256 {file['sha256']}",
            expected=f"SHA-256 {file['expected_sha256']}, as installed",
            path=file["path"],
        )
        for node, facts in facts_by_node.items()
        for file in (facts.get("bundle") or {}).get("files", ())
        if file["sha256"] not in (None, file["expected_sha256"], planned.get(file["path"]))
    ]
