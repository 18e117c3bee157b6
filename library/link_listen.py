#!/usr/bin/python
"""Start the receiving ends of a measurement on one node, and look at the hardware under its rails."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.findings import Finding, fatal, finding
from ansible.module_utils.spark.link import hardware, legs
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.parse.rdma import read_devices
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: link_listen
short_description: Start all listeners of a node, each with its own end time
description:
  - Starts C(ib_write_bw) and C(ib_write_lat), or plain TCP receivers with I(transport=tcp), for every leg that ends at
  the node, as children of one transient unit, and sees them listen. Listeners of earlier runs are stopped and named.
  - A listener ends after its one client, when its clients say that they are done, or at its end time, whatever becomes
  of the controller.
  - Looks at PCIe, negotiated speed, port, cable and kernel log before anything is started.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  nodes: {description: "The cluster's nodes, the head first.", type: list, elements: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  ports: {description: One port per rail., type: list, elements: int, required: true}
  seconds: {description: How long a stream runs., type: int, default: 12}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
  legs: {description: Other legs than those of the link check., type: list, elements: dict, default: []}
  judge: {description: Whether a fault of the hardware stops the play., type: bool, default: true}
  patience_s: {description: How long listeners wait beyond the measuring time., type: int, default: 240}
  serving_nodes: {description: Nodes of the cluster on which a rank serves., type: list, elements: str, default: []}
"""

EXAMPLES = r"""
- name: Listen
  link_listen:
    node: spark-02
    nodes: [spark-01, spark-02]
    rails: "{{ me.rails }}"
    ports: [12000, 12001]
"""

RETURN = r"""
listeners: {description: What was started., type: list, returned: always}
measurements: {description: C(link_hardware) is what was seen under the rails., type: dict, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "seconds": {"type": "int", "default": 12},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
            "legs": {"type": "list", "elements": "dict", "default": []},
            "judge": {"type": "bool", "default": True},
            "patience_s": {"type": "int", "default": link.PATIENCE_S},
            "serving_nodes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    node, rails = asked["node"], asked["rails"]
    place = link.Place(run, python=link.default_python())
    reason = link.not_now(node, asked["serving_nodes"], run)
    if reason:
        finish(module, findings=[link.not_loaded(node, reason, link.last(place))], listeners=[])
    if module.check_mode:
        unproven = finding(
            "NOT_PROVEN_IN_CHECK_MODE",
            node=node,
            found="no listener was started and no stream was run",
            expected="streams over all rails that carry what the inventory asks for",
        )
        finish(module, findings=[unproven], listeners=[])
    seen = hardware.read(place, rails)
    said: list[Finding] = hardware.judge(node, seen, transport=asked["transport"]) if asked["judge"] else []
    resolved: list[gids.Resolved] = []
    if asked["transport"] == "rdma" and not fatal(said):
        resolved, more = gids.wait(read_devices, rails, node)
        said += more
    measurements = {"link_hardware": seen}
    if fatal(said):
        finish(module, findings=said, measurements=measurements, listeners=[])
    chosen = [legs.from_dict(leg) for leg in asked["legs"]] or legs.link_legs(
        asked["nodes"], transport=asked["transport"], seconds=asked["seconds"]
    )
    try:
        started, more = link.listen(
            place, node, rails, chosen, asked["ports"], resolved, patience_s=asked["patience_s"]
        )
    except CommandFailed as failed:
        module.fail_json(msg=str(failed))
    finish(module, findings=[*said, *more], measurements=measurements, listeners=started)


if __name__ == "__main__":
    main()
