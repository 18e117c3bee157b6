"""Runs a node's streams towards those of its peers that listen, and says of the others why not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.diagnose.gathered import arguments, refusals  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: diagnose_runs
short_description: This node's runs of a diagnosis towards its peers
description:
  - Calls diagnose_node with what its peers said before, which was registered on each host.
options:
  looked:
    description: Name of the variable of the first phase.
    type: str
    required: true
  facts:
    description: Name of the variable of node_info.
    type: str
    required: true
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("looked", "facts"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        plan, me = variables["cluster"], variables["me"]
        hostvars = variables["hostvars"]
        looked, facts = (
            {node["node"]: hostvars[node["node"]].get(str(self._task.args[key])) for node in plan["nodes"]}
            for key in ("looked", "facts")
        )
        asked = {**arguments(plan, me), "phase": "run", "refused": refusals(me["node"], looked, facts)}
        told: Mapping[str, Any] = self._execute_module(
            module_name="diagnose_node", module_args=asked, task_vars=variables
        )
        result.update(told)
        return result
