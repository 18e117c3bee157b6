"""Run an all-reduce on every node of a cluster at once, and end all of them when one has died."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible import constants  # noqa: E402
from ansible.errors import AnsibleConnectionFailure  # noqa: E402
from ansible.module_utils.spark.board import Board  # noqa: E402
from ansible.module_utils.spark.collective import spec_of  # noqa: E402
from ansible.module_utils.spark.findings import Finding, finding, from_dict, render  # noqa: E402
from ansible.module_utils.spark.jobs import progress_line  # noqa: E402
from ansible.module_utils.spark.plan.serving import SECRET_NAME  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402
from ansible.utils.display import Display  # noqa: E402

DOCUMENTATION = """
name: collective_run
short_description: Run one rank of an all-reduce in the serving image
description:
  - Starts the job C(collective) on this node by M(node_job) and follows it, while the other hosts' actions do the same.
    A job is stopped within one poll after that of another node has died, and its container is gone when it ends.
  - There is no limit to the whole; a step without progress ends it (RV(job.findings) says which).
options:
  plan:
    description: The cluster's plan, with what is to be served.
    type: dict
    required: true
  me:
    description: This node's entry of the plan.
    type: dict
    required: true
  settings:
    description: C(port), C(largest_mib), C(calls), C(seconds), C(join_s), C(silence_s), C(while_serving).
    type: dict
    required: true
  poll_s:
    description: How long one poll stays on the node for the job's end.
    type: float
    default: 2
"""

display = Display()

NAME = "collective"
# A management address may blink; the job itself goes on.
CONNECTION_TRIES = 5
CONNECTION_PAUSE_S = 3


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"plan", "me", "settings", "poll_s"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        plan, me = self._task.args["plan"], self._task.args["me"]
        self.node, self.task_vars = str(me["node"]), task_vars
        self.poll_s = float(self._task.args.get("poll_s", 2))
        self.polls = 0
        if self._task.check_mode:
            note = finding(
                "NOT_PROVEN_IN_CHECK_MODE",
                node=self.node,
                found="no all-reduce was run",
                expected="right sums over the planned transport",
            )
            return {**result, "findings": [note.as_dict()], "module_executions": {"modules": 0, "polls": 0}}
        members = [str(node["node"]) for node in plan["nodes"]]
        folder = Path(constants.DEFAULT_LOCAL_TMP) / f"collective-{self._task._uuid}-{plan['name']}"
        board = Board(folder, self.node, members)
        try:
            said, job = self._follow(board, spec_of(plan, me, self._task.args["settings"]))
        except BaseException:
            # Whatever ended this, the others must not wait for it.
            board.say({"dead": self._unknown("the connection to it was lost").as_dict()})
            raise
        fatal = [item for item in said if item.severity == "fatal"]
        if fatal:
            board.say({"dead": fatal[0].as_dict()})
            result.update(failed=True, msg="\n".join(render(item) for item in fatal))
        report = job.get("result") or {}
        result.update(
            changed=False,
            findings=[item.as_dict() for item in said],
            report=report,
            configuration=self._configuration(int(me["rank"]), report),
            module_executions={"modules": 1, "polls": self.polls},
        )
        return result

    def _follow(self, board: Board, spec: dict[str, Any]) -> tuple[list[Finding], dict[str, Any]]:
        start = {"node": self.node, "name": NAME, "action": "start", "kind": "collective", "spec": spec}
        said = self._ask({**start, "wait_s": self.poll_s})
        shown = ""
        while (said.get("job") or {}).get("state") == "running" and not said.get("failed"):
            line = progress_line(said["job"])
            if line != shown:
                display.display(f"  {self.node}: {line}")
                shown = line
            dead = {name: state["dead"] for name, state in board.hear().items() if state.get("dead")}
            if dead:
                self._ask({"node": self.node, "name": NAME, "action": "cancel"})
                return [self._peer_dead(*next(iter(dead.items())))], said["job"]
            said = self._poll()
        job = said.get("job") or {}
        found = [from_dict(item) for item in said.get("findings", ())]
        if job.get("state") != "done" and not any(item.severity == "fatal" for item in found):
            found.append(self._unknown(str(said.get("msg") or f"its job is {job.get('state', 'not there')}")))
        return found, job

    def _poll(self) -> dict[str, Any]:
        for left in reversed(range(CONNECTION_TRIES)):
            self.polls += 1
            try:
                said = self._ask({"node": self.node, "name": NAME, "action": "poll", "wait_s": self.poll_s})
            except AnsibleConnectionFailure:
                if not left:
                    raise
            else:
                if not said.get("unreachable"):
                    return said
            time.sleep(CONNECTION_PAUSE_S)
        raise AnsibleConnectionFailure(f"{self.node} did not answer {CONNECTION_TRIES} times")

    def _ask(self, args: dict[str, Any]) -> dict[str, Any]:
        return dict(self._execute_module(module_name="node_job", module_args=args, task_vars=self.task_vars))

    def _unknown(self, found: str) -> Finding:
        attach = "the result file of this run"
        return finding("UNKNOWN_CAUSE", node=self.node, found=found[:500], expected="a report", attach=attach)

    def _peer_dead(self, name: str, death: dict[str, Any]) -> Finding:
        return finding(
            "PEER_RANK_DEAD",
            node=self.node,
            found=f"{name}: {death['code']}: {death['found']}",
            expected="every rank of the all-reduce lives",
            evidence=death["evidence"][:1],
        )

    def _configuration(self, rank: int, report: dict[str, Any]) -> dict[str, Any]:
        """What this rank was really run with."""
        if not report:
            return {}
        environment = {
            name: "(not recorded)" if SECRET_NAME.search(name) else value
            for name, value in report["environment"].items()
        }
        return {f"collective_rank_{rank}": {"argv": report["argv"], "environment": environment}}
