#!/usr/bin/python
"""One node's part of a diagnosis: what it says, what it measures, what changed meanwhile."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark.diagnose import node
from ansible.module_utils.spark.link.run import Place, default_python
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: diagnose_node
short_description: Read one end of the link, and run it by itself and against its peers
description:
  - C(look) reads the node's functions, GIDs, slots, cables, counters and kernel lines, runs a loopback, and starts the
    listeners that its peers' runs need; these end by themselves.
  - C(run) runs what this node sends to its peers. C(end) reads the counters once more and stops the listeners.
  - Changes nothing. What cannot be read or run is told with its reason; the module itself does not fail.
options:
  phase: {description: Which part., type: str, choices: [look, run, end], required: true}
  node: {description: Name of the node., type: str, required: true}
  nodes: {description: All nodes of the cluster in the order of their ranks., type: list, elements: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  ports: {description: One port per rail., type: list, elements: int, required: true}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
  seconds: {description: How long a run between nodes lasts., type: int, default: 6}
  unloaded: {description: Why nothing may be run; empty if it may., type: str, default: ""}
  refused: {description: "Why nothing can be run against a peer, by peer.", type: dict, default: {}}
"""

EXAMPLES = r"""
- name: Read this end
  diagnose_node:
    phase: look
    node: spark-01
    nodes: [spark-01, spark-02]
    rails: "{{ me.rails }}"
    ports: [12000, 12001]
"""

RETURN = r"""
read: {description: What the node says., type: dict, returned: for C(look) and C(run)}
runs: {description: What was run, and what was not., type: list, returned: for C(look) and C(run)}
not_listening: {description: Why peers cannot run against it; empty if they can., type: str, returned: for C(look)}
after: {description: Counters and changes of the carrier once more., type: dict, returned: for C(end)}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["look", "run", "end"], "required": True},
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
            "seconds": {"type": "int", "default": 6},
            "unloaded": {"type": "str", "default": ""},
            "refused": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    asked: dict[str, Any] = dict(module.params)
    if module.check_mode:
        asked["unloaded"] = asked["unloaded"] or "nothing is run in check mode"
    phase = asked.pop("phase")
    finish(module, **node.PHASES[phase](Place(run, python=default_python()), node.Asked(**asked)))


if __name__ == "__main__":
    main()
