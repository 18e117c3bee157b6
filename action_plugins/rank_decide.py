"""Decides for a whole cluster whether its ranks stay as they are or are started anew."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

DOCUMENTATION = """
name: rank_decide
short_description: Keep the ranks of a cluster, or start all of them anew
description:
  - Compares what rank_status found on every member. One rank alone is never replaced; a worker that joined an earlier
    head serves no other, and a new worker cannot join a head that is up.
options:
  members:
    description: Names of the cluster's hosts.
    required: true
    type: list
    elements: str
  seen_as:
    description: Name of the variable in which rank_status was registered on each host.
    required: true
    type: str
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("members", "seen_as"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        hosts = (task_vars or {})["hostvars"]
        seen = {
            str(name): hosts[name].get(str(self._task.args["seen_as"])) or {} for name in self._task.args["members"]
        }
        other = [name for name, found in seen.items() if not found.get("wanted")]
        result.update(
            changed=False, fresh=bool(other), not_as_wanted=other, module_executions={"modules": 0, "polls": 0}
        )
        return result
