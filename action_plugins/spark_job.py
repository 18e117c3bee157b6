"""Start a long job on a node, show how far it is, and end with what it found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.errors import AnsibleConnectionFailure  # noqa: E402
from ansible.module_utils.spark.findings import finding  # noqa: E402
from ansible.module_utils.spark.jobs import progress_line  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402
from ansible.utils.display import Display  # noqa: E402

DOCUMENTATION = """
name: spark_job
short_description: Run a long job on a node and wait for it
description:
  - Starts the job by M(node_job), or takes up the one that runs already, and polls it. A lost connection does not end
    the job and is tried again.
  - The task has changed something where the job's result says C(changed).
options:
  node:
    description: Name of the node.
    type: str
    required: true
  name:
    description: Name of the job.
    type: str
    required: true
  kind:
    description: Kind of the job. Without it nothing is started, and a job that runs or has ended is waited for.
    type: str
  spec:
    description: What it shall do, without secrets.
    type: dict
  changes:
    description: Whether the job changes anything but its own records, which is what check mode predicts.
    type: bool
    default: true
  until:
    description: C(end), or C(listening) to return while the job runs on, once it says where it can be reached.
    type: str
    choices: [end, listening]
    default: end
  replace:
    description: Whether a job of that name that runs with other instructions is stopped.
    type: bool
    default: false
  secrets:
    description: What the job has to know and no record may show.
    type: dict
  poll_s:
    description: How long one poll stays on the node for the job's end.
    type: float
    default: 2
"""

display = Display()

# A management address may blink while the fabric is busy; the job itself goes on.
CONNECTION_TRIES = 5
CONNECTION_PAUSE_S = 3
SHOW_EVERY_S = 4


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"node", "name", "kind", "spec", "changes", "poll_s", "until", "replace", "secrets"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        node, name, changes = str(args["node"]), str(args["name"]), bool(args.pop("changes", True))
        if self._task.check_mode:
            note = finding(
                "NOT_PROVEN_IN_CHECK_MODE",
                node=node,
                found=f"the job {name} would run and was not started",
                expected="its outcome",
            )
            counted = {"modules": 0, "polls": 0}
            predicted = {"name": name, "state": "predicted", "result": None}
            return {
                **result,
                "changed": changes,
                "job": predicted,
                "findings": [note.as_dict()],
                "module_executions": counted,
            }
        self.polls = 0
        wait_s = float(args.pop("poll_s", 2))
        if "kind" in args:
            said = self._ask({**args, "action": "start", "wait_s": wait_s}, task_vars)
        else:
            said = self._poll({"node": node, "name": name, "action": "poll", "wait_s": wait_s}, task_vars)
        shown_at, shown = 0.0, ""
        until = str(args.get("until") or "end")
        while _state(said) == "running" and not (until == "listening" and "listening" in said["job"]):
            line = progress_line(said["job"])
            if line != shown and time.monotonic() - shown_at >= SHOW_EVERY_S:
                display.display(f"  {node}: {line}")
                shown_at, shown = time.monotonic(), line
            asked = {"node": node, "name": name, "action": "poll", "wait_s": wait_s, "until": until}
            said = self._poll(asked, task_vars)
        if shown and _state(said) == "done" and (line := progress_line(said["job"])) != shown:
            display.display(f"  {node}: {line}")
        result.update(said)
        result.pop("poll", None)
        result.pop("invocation", None)
        outcome = (said.get("job") or {}).get("result") or {}
        result["changed"] = bool(outcome.get("changed"))
        result["module_executions"] = {"modules": 1, "polls": self.polls}
        return result

    def _ask(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        said: dict[str, Any] = self._execute_module(module_name="node_job", module_args=args, task_vars=task_vars)
        return said

    def _poll(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        for left in reversed(range(CONNECTION_TRIES)):
            try:
                self.polls += 1
                said = self._ask(args, task_vars)
            except AnsibleConnectionFailure:
                if not left:
                    raise
            else:
                if not said.get("unreachable") or not left:
                    return said
            time.sleep(CONNECTION_PAUSE_S)
        raise AssertionError("the last try returns or raises")


def _state(said: Mapping[str, Any]) -> str:
    job = said.get("job")
    return str(job.get("state")) if isinstance(job, Mapping) and not said.get("failed") else "failed"
