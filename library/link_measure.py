#!/usr/bin/python
"""Measure what all rails carry at the same time, and judge it."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.findings import Finding, fatal
from ansible.module_utils.spark.link import hardware, legs, report
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.parse.rdma import read_devices
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: link_measure
short_description: Run the legs that start at a node, all rails of a leg at once, and judge them
description:
  - The far ends listen already (M(link_listen)). That streams ran at the same time is proven by their stamps and by
  the counters of all functions, and their sum is held against I(min_gbps), or I(min_both_ways_gbps).
  - Says nothing where M(link_listen) said that the link is not loaded now.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  nodes: {description: "The cluster's nodes, the head first.", type: list, elements: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  ports: {description: One port per rail., type: list, elements: int, required: true}
  min_gbps: {description: What two rails have to carry together one way., type: float, default: 170}
  min_both_ways_gbps: {description: What they have to carry both ways at once., type: float, default: 300}
  seconds: {description: How long a stream runs., type: int, default: 12}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
  legs: {description: Other legs than those of the link check., type: list, elements: dict, default: []}
  judge: {description: Whether to judge; without it all legs are run and returned., type: bool, default: true}
  serving_nodes: {description: Nodes of the cluster on which a rank serves., type: list, elements: str, default: []}
"""

EXAMPLES = r"""
- name: Measure
  link_measure:
    node: spark-01
    nodes: [spark-01, spark-02]
    rails: "{{ me.rails }}"
    ports: [12000, 12001]
"""

RETURN = r"""
measurements: {description: C(link) has the rate of each rail and all that it was judged by., type: dict, returned:
always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "min_gbps": {"type": "float", "default": 170},
            "min_both_ways_gbps": {"type": "float", "default": 300},
            "seconds": {"type": "int", "default": 12},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
            "legs": {"type": "list", "elements": "dict", "default": []},
            "judge": {"type": "bool", "default": True},
            "serving_nodes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    node, rails, transport = asked["node"], asked["rails"], asked["transport"]
    place = link.Place(run, python=link.default_python())
    if module.check_mode or link.not_now(node, asked["serving_nodes"], run, containers=False):
        finish(module)
    said: list[Finding] = []
    resolved: list[gids.Resolved] = []
    if transport == "rdma":
        resolved, said = gids.wait(read_devices, rails, node)
    if fatal(said):
        finish(module, findings=said)
    chosen = [legs.from_dict(leg) for leg in asked["legs"]] or legs.link_legs(
        asked["nodes"], transport=transport, seconds=asked["seconds"]
    )
    limits = report.Limits(asked["min_gbps"], asked["min_both_ways_gbps"], transport)
    judged: dict[legs.Leg, list[Finding]] = {}

    def stop_after(leg_run: link.LegRun) -> bool:
        found = report.judge(leg_run, limits) if asked["judge"] else []
        if fatal(found):
            # Reading the kernel log takes time, and only a slow link asks for it.
            seen = hardware.evidence(hardware.kernel(place.said(["dmesg"]) or ""))
            found = report.judge(leg_run, limits, seen)
        judged[leg_run.leg] = found
        return bool(fatal(found))

    def once_more(leg_run: link.LegRun) -> bool:
        return asked["judge"] and report.proved_nothing(leg_run, limits)

    runs = link.run_legs(place, node, chosen, rails, asked["ports"], resolved, enough=stop_after, again=once_more)
    for found in judged.values():
        said += found
    measurement: dict[str, Any] = report.measurement(runs, judged, limits)
    if asked["judge"] and measurement:
        link.remember(place, measurement)
    if fatal(said):
        # Nobody comes any more to the listeners of this node either: the play stops here.
        link.stop(place)
    finish(module, findings=said, measurements={"link": measurement} if measurement else {})


if __name__ == "__main__":
    main()
