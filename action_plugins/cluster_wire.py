"""Says whether the nodes of a host's cluster have to exchange frames before the cluster can be planned, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.plan.fabric import wire_question  # noqa: E402
from ansible.module_utils.spark_controller import cluster_of, members_of  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: cluster_wire
short_description: Decide whether frames have to be exchanged
description:
  - Returns C(question), the arguments of fabric_frames for this host, with C(ask) equal on all members of the cluster.
  - Frames are asked for where a port was a guess and where an address is about to be set, so that a pair which is set
    up costs no module call, and never while a rank runs.
options:
  facts_from:
    description: Name of the variable in which node_info was registered on each host.
    default: preflight_node
    type: str
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("facts_from",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        host = str(variables["inventory_hostname"])
        registered = str(self._task.args.get("facts_from", "preflight_node"))
        cluster = cluster_of(members_of(host, variables), self._play_context.remote_user)
        in_play = set(variables.get("ansible_play_hosts") or ())
        seen = {
            member.node: variables["hostvars"][member.node].get(registered)
            for member in cluster.members
            # One that dropped out would be waited for in vain.
            if member.node in in_play
        }
        facts = {
            node: found["node"]
            for node, found in seen.items()
            if isinstance(found, Mapping) and isinstance(found.get("node"), Mapping)
        }
        result.update(changed=False, question=wire_question(cluster, facts, host))
        return result
