"""Decide where a cluster's image comes from: a node that has it, or the first node whose registry answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark import images  # noqa: E402
from ansible.module_utils.spark.findings import fatal, render  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: image_source
short_description: Decide on the controller which node gives the image, and whether it has to pull it first
description:
  - Sets C(source) and C(pull) in its result, equal on every node of the cluster. Runs nothing on a node.
options:
  node:
    description: Name of this node.
    type: str
    required: true
  reference:
    description: Reference of the image.
    type: str
    required: true
  digest:
    description: Its pinned digest, empty for none.
    type: str
    default: ""
  looks:
    description: What M(image_info) said on each node, by the node's name, in the order of ranks.
    type: dict
    required: true
"""


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"node", "reference", "digest", "looks"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        reference, digest = str(args["reference"]), str(args.get("digest") or "")
        source, pull, findings = images.choose_source(reference, digest, str(args["node"]), args["looks"])
        said = [item.as_dict() for item in findings]
        counted = {"modules": 0, "polls": 0}
        result.update(changed=False, source=source, pull=pull, findings=said, module_executions=counted)
        if fatal(findings):
            result.update(failed=True, msg="\n".join(render(item) for item in findings))
        return result
