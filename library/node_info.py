#!/usr/bin/python
"""Everything that is known about one node, read in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_info
short_description: Read everything that planning and checks need to know about a node
description:
  - Reads the machine, its network, its netplan files, Docker, the units that could take the GPU or the API's port, and
    what this project has installed, in one call.
  - Changes nothing, starts nothing (a stopped Docker daemon is not woken up) and never fails for what a machine lacks;
    a value that could not be read is null, and its reason is in C(errors).
  - Needs root to see sockets, netplan files and hashes of others.
options:
  models_dir:
    description: Folder of the models; its file system is measured and O(weights_folder) is relative to it.
    type: str
    default: ""
  weights_folder:
    description: Folder of weights to count and measure, none if empty.
    type: str
    default: ""
  image:
    description: Reference of a container image to identify, none if empty.
    type: str
    default: ""
  api_port:
    description: Port of the served API; a unit that names it counts as a candidate.
    type: int
    default: 8000
attributes:
  check_mode:
    description: Reads only, so check mode is the same.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Read the node
  node_info:
    models_dir: /home/nvidia/models
    image: vllm/vllm-openai:latest
  register: preflight_node
"""

RETURN = r"""
node:
  description: The facts, in the shape of C(module_utils/spark/facts.py).
  returned: always
  type: dict
measurements:
  description: How long the reading took.
  returned: always
  type: dict
findings:
  description: Always empty; judging takes the facts of all nodes.
  returned: always
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark.gather import Node, Request, gather
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "models_dir": {"type": "str", "default": ""},
            "weights_folder": {"type": "str", "default": ""},
            "image": {"type": "str", "default": ""},
            "api_port": {"type": "int", "default": 8000},
        },
        supports_check_mode=True,
    )
    began = time.monotonic()
    facts = gather(
        Node(run=run),
        Request(
            models_dir=module.params["models_dir"],
            weights_folder=module.params["weights_folder"] or None,
            image=module.params["image"] or None,
            api_port=module.params["api_port"],
        ),
    )
    finish(module, node=facts, measurements={"node_info_s": round(time.monotonic() - began, 3)})


if __name__ == "__main__":
    main()
