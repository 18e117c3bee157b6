#!/usr/bin/python
"""Whether an all-reduce could run on this node now."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import collective_job
from ansible.module_utils.spark.rank import HERE
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: collective_info
short_description: Say what stands against an all-reduce on this node
description:
  - Looks for a rank that serves, the image, the GIDs of the rails, the port on the head, and memory. Changes nothing.
  - What is missing fails the task; the action plugin M(collective_run) runs the same checks right before the start.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  plan:
    description: The plan of the node's rank, as it would serve.
    type: dict
    required: true
  backend:
    description: What the ranks reduce with.
    type: str
    choices: [nccl, gloo]
    required: true
  port:
    description: Port on which the head meets the other ranks.
    type: int
    default: 29511
  while_serving:
    description: Whether a rank that serves is no reason to refuse.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reads only.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Look whether an all-reduce could run
  collective_info:
    node: "{{ me.node }}"
    plan: "{{ me.serving.plan_file }}"
    backend: nccl
"""

RETURN = r"""
gids:
  description: The GID index of each device, as it is now.
  returned: success
  type: dict
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "backend": {"type": "str", "choices": ["nccl", "gloo"], "required": True},
            "port": {"type": "int", "default": 29511},
            "while_serving": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    said, _image, indexes, _extra = collective_job.look(HERE, module.params["node"], module.params)
    finish(module, findings=said, gids=indexes)


if __name__ == "__main__":
    main()
