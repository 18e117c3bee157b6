"""Writes the result file of every play, of failed ones too, and prints the summary that fits a screen."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible import constants, context  # noqa: E402
from ansible.module_utils.ansible_release import __version__ as ansible_version  # noqa: E402
from ansible.module_utils.spark import results  # noqa: E402
from ansible.module_utils.spark.findings import render  # noqa: E402
from ansible.module_utils.spark_command import as_run, remedied  # noqa: E402
from ansible.module_utils.spark_controller import nobody  # noqa: E402
from ansible.plugins.callback import CallbackBase  # noqa: E402

DOCUMENTATION = """
name: spark_record
type: notification
short_description: result file and screen summary of every play
description:
  - Collects C(findings), C(measurements) and C(configuration) from the results of all tasks, and the plan and facts
    from those of cluster_plan and node_info. At the end of the playbook it writes results/ in the project's folder, one
    result per cluster.
  - Where no play found a host, it refuses the run, because then no task could.
requirements:
  - enabled in ansible.cfg
"""

PROJECT = Path(__file__).resolve().parents[1]
AD_HOC = "__adhoc_playbook__"  # Ansible's name for what the command `ansible` runs
CONTROLLER_SIDE = frozenset(
    "add_host assert debug fail group_by import_role include_role include_tasks include_vars meta pause set_fact "
    "set_stats validate_argument_spec cluster_gate cluster_inventory cluster_plan".split()
)


class ClusterRecord:
    """What one cluster's hosts reported during the playbook."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        self.plan: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.findings: list[dict[str, Any]] = []
        self.measurements: dict[str, dict[str, Any]] = defaultdict(dict)
        self.configuration: dict[str, Any] = {}
        self.failures: list[dict[str, str]] = []
        self.attachments: list[str] = []
        self.changed_tasks: list[dict[str, str]] = []
        self.executions: dict[str, dict[str, int]] = {node: {"modules": 0, "polls": 0} for node in nodes}

    def take(self, node: str, result: Mapping[str, Any]) -> None:
        self.findings += [remedied(item) for item in result.get("findings") or []]
        self.measurements[node].update(result.get("measurements") or {})
        self.configuration.update(result.get("configuration") or {})
        self.attachments += result.get("attachments") or []
        facts = result.get("ansible_facts") or {}
        if "cluster" in facts:
            self.plan = facts["cluster"]
        if isinstance(result.get("node"), dict):
            self.facts[node] = result["node"]

    def count(self, node: str, action: str, result: Mapping[str, Any]) -> None:
        told = result.get("module_executions")
        if isinstance(told, Mapping):
            for key in ("modules", "polls"):
                self.executions[node][key] += int(told.get(key, 0))
        elif action.rpartition(".")[2] not in CONTROLLER_SIDE:
            self.executions[node]["polls" if result.get("poll") else "modules"] += 1


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "spark_record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.play = "unknown"
        self.check_mode = False
        self.began = time.monotonic()
        self.began_utc = datetime.now(UTC)
        self.cluster_of: dict[str, str] = {}
        self.clusters: dict[str, ClusterRecord] = {}
        self.inventory: Any = None
        self.reached = False

    def v2_playbook_on_start(self, playbook: Any) -> None:
        self.play = Path(playbook._file_name).stem

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self.check_mode = bool(play.check_mode)
        manager = play.get_variable_manager()
        members: dict[str, list[str]] = defaultdict(list)
        self.inventory = manager._inventory
        for host in self.inventory.get_hosts(play.hosts):
            self.reached = True
            name = manager.get_vars(host=host).get("cluster_name")
            if isinstance(name, str) and name:
                members[name].append(host.name)
        for name, nodes in members.items():
            if name not in self.clusters:
                self.clusters[name] = ClusterRecord(nodes)
                self.cluster_of.update(dict.fromkeys(nodes, name))

    def v2_runner_on_ok(self, result: Any) -> None:
        self._take(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        record = self._take(result)
        if record and not ignore_errors:
            self._fail(record, result, str(result.result.get("msg", "no message")))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        record = self._record(result)
        if record:
            self._fail(record, result, str(result.result.get("msg", "unreachable")))

    def _record(self, result: Any) -> ClusterRecord | None:
        return self.clusters.get(self.cluster_of.get(result.host.get_name(), ""))

    def _take(self, result: Any) -> ClusterRecord | None:
        record = self._record(result)
        if record:
            node, data = result.host.get_name(), result.result
            record.count(node, result.task.action, data)
            for item in data.get("results", ()) if "results" in data and "findings" not in data else (data,):
                if isinstance(item, Mapping):
                    record.take(node, item)
            if data.get("changed"):
                record.changed_tasks.append({"node": node, "task": result.task.get_name()})
        return record

    def _fail(self, record: ClusterRecord, result: Any, message: str) -> None:
        record.failures.append({"node": result.host.get_name(), "task": result.task.get_name(), "message": message})

    def _refuse(self) -> None:
        """End a run that no play found a host for: Ansible would end it silently, and with success."""
        group = self.inventory.groups.get("spark")
        hosts = [str(host.name) for host in group.get_hosts()] if group else []
        found = nobody("localhost", hosts, self.inventory._sources, context.CLIARGS.get("subset"))
        self._display.error(as_run(render(found)), wrap_text=False)
        # Every Exception of a callback becomes a warning of Ansible's.
        raise SystemExit(1)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if self.play == AD_HOC:
            return
        if self.inventory is not None and not self.reached:
            self._refuse()
        ended = datetime.now(UTC)
        for name, record in self.clusters.items():
            findings = results.unique(record.findings)
            failed = bool(record.failures) or any(item["severity"] == "fatal" for item in findings)
            result = {
                "schema": results.SCHEMA,
                "play": self.play,
                "cluster": name,
                "verdict": results.verdict(failed=failed, check_mode=self.check_mode),
                "check_mode": self.check_mode,
                "started_utc": self.began_utc.isoformat(timespec="seconds"),
                "ended_utc": ended.isoformat(timespec="seconds"),
                "duration_s": round(time.monotonic() - self.began, 3),
                "ansible_core": ansible_version,
                "nodes": record.nodes,
                "findings": findings,
                "measurements": {node: values for node, values in record.measurements.items() if values},
                "configuration": record.configuration,
                "failures": record.failures,
                "changed": record.changed_tasks,
                "module_executions": record.executions,
                "plan": record.plan,
                "facts": record.facts,
            }
            try:
                path = results.write(PROJECT, result, ended)
                result["attachments"] = results.attach(path.parent, record.attachments)
            except OSError as error:
                self._display.warning(f"the result of {self.play} on {name} could not be written: {error}")
                continue
            colour = {"ok": constants.COLOR_OK, "predicted": constants.COLOR_CHANGED}.get(
                str(result["verdict"]), constants.COLOR_ERROR
            )
            text = as_run(results.summary(result, str(path.relative_to(PROJECT))))
            first, _, rest = text.partition("\n")
            self._display.display(f"\n{first}", color=colour)
            self._display.display(rest)
