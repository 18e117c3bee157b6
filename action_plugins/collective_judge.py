"""Judges the all-reduce of a cluster from the reports of all its ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.collective import judge, judge_rank  # noqa: E402
from ansible.module_utils.spark.findings import fatal, render  # noqa: E402
from ansible.module_utils.spark_controller import PROJECT  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: collective_judge
short_description: Say what the all-reduce of a cluster shows
description:
  - Reads what collective_run registered on every member. Each host judges its own rank; the head also the times of the
    whole cluster and their share of a token, and returns the measurement C(collective).
  - Nothing is said in check mode, where nothing was run.
options:
  plan:
    description: The cluster's plan, with what is to be served.
    type: dict
    required: true
  node:
    description: Name of this host's node.
    type: str
    required: true
  seen_as:
    description: Name of the variable in which collective_run was registered on each host.
    type: str
    required: true
  slow_factor:
    description: How many times the recorded latency is slow.
    type: float
    default: 2
"""


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"plan", "node", "seen_as", "slow_factor"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        result.update(changed=False, findings=[], module_executions={"modules": 0, "polls": 0})
        if self._task.check_mode:
            return result
        plan, node = self._task.args["plan"], str(self._task.args["node"])
        hosts = (task_vars or {})["hostvars"]
        seen = str(self._task.args["seen_as"])
        reports = {str(member["node"]): hosts[member["node"]][seen]["report"] for member in plan["nodes"]}
        found = judge_rank(reports[node], str(plan["transport"]))
        if node == plan["head"]:
            measurement, said = judge(
                plan,
                list(reports.values()),
                last_completion(PROJECT, plan),
                slow_factor=float(self._task.args.get("slow_factor", 2)),
            )
            found += said
            result["measurements"] = {"collective": measurement}
        result["findings"] = [item.as_dict() for item in found]
        stopping = fatal(found)
        if stopping:
            result.update(failed=True, msg="\n".join(render(item) for item in stopping))
        return result


def last_completion(project: Path, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the last cluster-up.yml measured, if it served this very configuration; None where it did not."""
    try:
        latest = json.loads((project / "results" / "latest" / plan["name"] / "cluster-up.json").read_text("utf-8"))
        last = json.loads((project / latest["result"]).read_text("utf-8"))
        same = last["configuration"]["config_sha256"] == plan["serving"]["config_sha256"]
        measured = [values["completion"] for values in last["measurements"].values() if "completion" in values]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(measured[0]) if same and measured else None
