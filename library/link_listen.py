#!/usr/bin/python
"""Start the receiving ends of the bandwidth measurement on one node."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.findings import Finding, fatal, finding
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.parse.rdma import read_devices
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: link_listen
short_description: Start one listener per rail, each with its own end time
description:
  - Starts C(ib_write_bw), or plain TCP receivers with I(transport=tcp), as transient units, and sees them listen. A
  listener ends after its one client, or at its end time, whatever becomes of the controller.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  ports: {description: One port per rail., type: list, elements: int, required: true}
  seconds: {description: How long a stream runs., type: int, default: 12}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
"""

EXAMPLES = r"""
- name: Listen
  link_listen:
    node: spark-02
    rails: "{{ me.rails }}"
    ports: [12000, 12001]
"""

RETURN = r"""
listeners: {description: What was started., type: list, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "seconds": {"type": "int", "default": 12},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    node, rails = asked["node"], asked["rails"]
    place = link.Place(run, python=link.default_python())
    reason = link.serving(run)
    if reason:
        finish(module, findings=[link.not_loaded(node, reason, None)], listeners=[])
    if module.check_mode:
        unproven = finding(
            "NOT_PROVEN_IN_CHECK_MODE",
            node=node,
            found="no listener was started",
            expected="one listener per rail",
        )
        finish(module, findings=[unproven], listeners=[])
    said: list[Finding] = []
    resolved: list[gids.Resolved] = []
    if asked["transport"] == "rdma":
        resolved, said = gids.wait(read_devices, rails, node)
    if fatal(said):
        finish(module, findings=said, listeners=[])
    try:
        lanes = link.lanes_of(rails, asked["ports"], resolved)
        started, more = link.listen(place, node, lanes, asked["seconds"])
    except CommandFailed as failed:
        module.fail_json(msg=str(failed))
    finish(module, findings=[*said, *more], listeners=started)


if __name__ == "__main__":
    main()
