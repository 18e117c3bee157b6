"""Wait until every rank of a cluster is up, watching all of them: a dead rank ends its peers' wait within one poll."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible import constants  # noqa: E402
from ansible.errors import AnsibleConnectionFailure  # noqa: E402
from ansible.module_utils.spark import engine_log  # noqa: E402
from ansible.module_utils.spark.board import Board  # noqa: E402
from ansible.module_utils.spark.findings import Finding, finding, from_dict, render  # noqa: E402
from ansible.module_utils.spark.plan.serving import SECRET_NAME  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402
from ansible.utils.display import Display  # noqa: E402

display = Display()

# A management address may blink, also under a healthy load; the rank itself goes on meanwhile.
CONNECTION_TRIES = 4
REPEAT_S = 30


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        self.node, self.rank, self.head = str(args["node"]), int(args["rank"]), str(args["head"])
        self.serving = dict(args["serving"])
        self.transport = str(args["transport"])
        self.poll_s = float(args.get("poll_s", 4))
        self.polls = 0
        if self._task.check_mode:
            found = "no rank was started, so none was waited for"
            note = finding("NOT_PROVEN_IN_CHECK_MODE", node=self.node, found=found, expected="every rank is up")
            return {**result, "findings": [note.as_dict()], "module_executions": {"modules": 0, "polls": 0}}
        members = [str(name) for name in args["members"]]
        folder = Path(constants.DEFAULT_LOCAL_TMP) / f"rank_wait-{self._task._uuid}-{args['cluster']}"
        self.board = Board(folder, self.node, members)
        self.began = time.monotonic()
        said, seen, phases = self._wait(task_vars or {})
        result["findings"] = [item.as_dict() for item in said]
        result["measurements"] = {"readiness": self._measure(seen, phases)}
        result["module_executions"] = {"modules": 0, "polls": self.polls}
        fatal = [item for item in said if item.severity == "fatal"]
        if fatal:
            result.update(failed=True, msg="\n".join(render(item) for item in fatal))
        else:
            self._configure(result, seen)
        return result

    def _wait(self, task_vars: dict[str, Any]) -> tuple[list[Finding], dict[str, Any], dict[str, float]]:
        phases: dict[str, float] = {}
        last: engine_log.Sign | None = None
        moved_at = time.time()
        phase, shown, shown_at = "", "", 0.0
        remarks: list[Finding] = []
        while True:
            polled = self._poll(phase, task_vars)
            if "status" not in polled:
                failure = polled.get("msg") or polled.get("module_stderr") or "rank_status returned nothing"
                death = finding(
                    "UNKNOWN_CAUSE",
                    node=self.node,
                    found=str(failure)[:500],
                    expected="the rank's status",
                    attach="the output of this run",
                )
                self.board.say({"dead": death.as_dict()})
                return [death], {}, phases
            seen = polled["status"]
            phase = seen["phase"]
            sign = self._sign(seen)
            if last is None or engine_log.progressed(last, sign):
                moved_at = time.time()
                last = sign
            phases.setdefault(phase, round(time.monotonic() - self.began, 1))
            text = f"{seen['phase_text']}" if seen["state"] == "running" else f"{seen['state']}: {seen['phase_text']}"
            if text != shown or time.monotonic() - shown_at > REPEAT_S:
                display.display(f"  {self.node} rank {self.rank}: {text} ({time.monotonic() - self.began:.0f} s)")
                shown, shown_at = text, time.monotonic()
            if seen["state"] not in ("running", "starting"):
                death = from_dict(seen["death"]) if "death" in seen else self._vanished(seen)
                self.board.say({"dead": death.as_dict()})
                return [death], seen, phases
            remarks = [from_dict(item) for item in polled.get("findings", ())]
            up = self.node == self.head and seen["health"] == 200
            self.board.say({"sign": sign.__dict__, "moved_at": moved_at, "up": up})
            verdict = self._listen(up)
            if verdict is not None:
                return [*verdict, *remarks], seen, phases

    def _listen(self, up: bool) -> list[Finding] | None:
        """What the others' state means for this rank: findings that end the wait, none if all is well, None to go
        on."""
        until = time.monotonic() + min(1, self.poll_s)
        while True:
            heard = self.board.hear()
            for name, state in heard.items():
                if name != self.node and state.get("dead"):
                    return [self._peer_dead(name, from_dict(state["dead"]))]
            if up or heard.get(self.head, {}).get("up"):
                return []
            if time.monotonic() >= until:
                break
            time.sleep(0.2)
        signs = {name: engine_log.Sign(**state["sign"]) for name, state in heard.items() if "sign" in state}
        if self.node == self.head and self.head in signs:
            silent_s = time.time() - max(heard[name]["moved_at"] for name in signs)
            stalled = engine_log.stall(signs, silent_s, head=self.head, transport=self.transport)
            if stalled is not None:
                self.board.say({"dead": stalled.as_dict()})
                return [stalled]
        return None

    def _poll(self, phase: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        args = {
            "node": self.node,
            "rank": self.rank,
            "transport": self.transport,
            "port": self.serving["port"] if self.node == self.head else 0,
            "api_host": self.serving["api_host"],
            "watch_s": self.poll_s if phase else 0,
            "phase": phase,
        }
        tries = 0
        while True:
            try:
                self.polls += 1
                return dict(self._execute_module(module_name="rank_status", module_args=args, task_vars=task_vars))
            except AnsibleConnectionFailure:
                tries += 1
                if tries >= CONNECTION_TRIES:
                    raise
                time.sleep(self.poll_s)

    def _sign(self, seen: dict[str, Any]) -> engine_log.Sign:
        used = seen["usage"]
        return engine_log.Sign(
            at_s=time.time(),
            phase=seen["phase"],
            joined=seen["joined"],
            log_lines=seen["log_lines"],
            cpu_s=used["cpu_s"],
            read_bytes=used["read_bytes"],
            memory_bytes=used["memory_bytes"],
        )

    def _vanished(self, seen: dict[str, Any]) -> Finding:
        found = f"rank {self.rank} is {seen['state']}: unit {seen['unit']['active']}, no container"
        return finding("RANK_VANISHED", node=self.node, found=found, expected=f"rank {self.rank} runs")

    def _peer_dead(self, name: str, death: Finding) -> Finding:
        found = f"{name}: {death.code}: {death.found}"
        expected = "every rank lives"
        return finding("PEER_RANK_DEAD", node=self.node, found=found, expected=expected, evidence=death.evidence[:1])

    def _measure(self, seen: dict[str, Any], phases: dict[str, float]) -> dict[str, Any]:
        return {
            "waited_s": round(time.monotonic() - self.began, 1),
            "phases_s": phases,
            "memory_available_bytes": seen.get("memory_available_bytes"),
            **seen.get("facts", {}),
        }

    def _configure(self, result: dict[str, Any], seen: dict[str, Any]) -> None:
        """What this rank was really started with; the planned configuration is in the record already."""
        start = dict(seen.get("start") or {})
        configuration: dict[str, Any] = {}
        if start:
            start["environment"] = {
                name: "(not recorded)" if SECRET_NAME.search(name) else value
                for name, value in (start.get("environment") or {}).items()
            }
            configuration[f"started_rank_{self.rank}"] = start
            if self.node == self.head:
                configuration["environment"] = start["environment"]
        result["configuration"] = configuration
