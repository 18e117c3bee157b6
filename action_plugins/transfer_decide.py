"""Compare what a node has with what the source has: whether a copy is needed, and the proof where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark import images, weights  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: transfer_decide
short_description: Decide on the controller whether a node needs a copy
description:
  - Sets C(needed) in its result. Runs nothing on the node.
options:
  what:
    description: C(weights) or C(image).
    type: str
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  source_node:
    description: Name of the node that a copy would come from.
    type: str
    required: true
  mine:
    description: What M(weights_info) or M(image_info) said on this node.
    type: dict
    required: true
  source:
    description: The same, said on the source.
    type: dict
    required: true
  reference:
    description: Reference of the image.
    type: str
"""


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"what", "node", "source_node", "mine", "source", "reference"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        node, source_node = str(args["node"]), str(args["source_node"])
        if args["what"] == "image":
            copy, findings = images.decide(str(args["reference"]), args["mine"], args["source"], node, source_node)
        else:
            copy, findings = weights.decide(node, source_node, args["mine"], args["source"])
        counted = {"modules": 0, "polls": 0}
        said = [item.as_dict() for item in findings]
        return {**result, "changed": False, "needed": copy, "findings": said, "module_executions": counted}
