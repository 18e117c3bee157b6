#!/usr/bin/python
"""Measure what all rails carry at the same time, and judge it."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.findings import Finding, fatal, finding
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.parse.rdma import read_devices
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: link_measure
short_description: Run one stream per rail to every peer, all rails at once, and judge the sum
description:
  - The peers listen already (M(link_listen)). Streams of one peer run at the same time, which is proven by their
  stamps, and their sum is held against I(min_gbps).
options:
  node: {description: Name of the node in findings., type: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  ports: {description: One port per rail., type: list, elements: int, required: true}
  min_gbps: {description: What two rails have to carry together., type: float, default: 170}
  seconds: {description: How long a stream runs., type: int, default: 12}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
  serving_nodes: {description: Nodes of the cluster on which a rank serves., type: list, elements: str, default: []}
"""

EXAMPLES = r"""
- name: Measure
  link_measure:
    node: spark-01
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
            "rails": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "min_gbps": {"type": "float", "default": 170},
            "seconds": {"type": "int", "default": 12},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
            "serving_nodes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    node, rails, transport = asked["node"], asked["rails"], asked["transport"]
    place = link.Place(run, python=link.default_python())
    elsewhere = [name for name in asked["serving_nodes"] if name != node]
    reason = link.serving(run) or (f"a rank serves on {', '.join(elsewhere)}" if elsewhere else None)
    if reason:
        finish(module, findings=[link.not_loaded(node, reason, link.last(place))])
    if module.check_mode:
        unproven = finding(
            "NOT_PROVEN_IN_CHECK_MODE",
            node=node,
            found="no stream was run",
            expected=f"streams on all rails that add up to {asked['min_gbps']:g} Gb/s",
        )
        finish(module, findings=[unproven])
    said: list[Finding] = []
    resolved: list[gids.Resolved] = []
    if transport == "rdma":
        resolved, said = gids.wait(read_devices, rails, node)
    if fatal(said):
        finish(module, findings=said)
    kernel = run(["dmesg"]).stdout.splitlines()
    measured: list[dict[str, Any]] = []
    for peer in sorted({name for rail in rails for name in rail["peer_addresses"]}):
        lanes = link.lanes_to(peer, rails, asked["ports"], resolved)
        numbers, more = link.measure(
            place,
            node,
            lanes,
            seconds=asked["seconds"],
            min_gbps=asked["min_gbps"],
            transport=transport,
            kernel_lines=kernel if not measured else (),
        )
        measured.append(numbers)
        said += more
        if fatal(more):
            break
    # With several peers the weakest pair speaks for the cluster.
    worst = min(measured, key=lambda numbers: numbers["sum_gbps"] or 0.0)
    link.remember(place, worst)
    others = [numbers for numbers in measured if numbers is not worst]
    finish(module, findings=said, measurements={"link": {**worst, **({"others": others} if others else {})}})


if __name__ == "__main__":
    main()
