"""Stops a host whose cluster must not go on: a fatal finding of its plan, or a member that dropped out of the play."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.findings import Finding, fatal, finding, from_dict, render  # noqa: E402
from ansible.module_utils.spark_command import as_run  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: cluster_gate
short_description: Stop a cluster as a whole
description:
  - Fails on every member of a cluster of which one member has failed, become unreachable or is not part of the run, and
    on every member of a cluster whose plan has a fatal finding. Members of other clusters pass.
  - A play that stops a cluster goes on without its missing members, and one that diagnoses it whatever is wrong.
options: {}
"""


class ActionModule(ActionBase):
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        result["changed"] = False
        plan = variables.get("cluster")
        if not isinstance(plan, Mapping):
            result.update(failed=True, msg="cluster_gate needs the fact `cluster`, which the role preflight sets")
            return result
        planned = [from_dict(item) for item in plan["findings"]]
        missing, told = _missing(plan, variables)
        if plan.get("purpose") == "diagnose":
            result["findings"] = []
            return result
        if plan.get("purpose") == "stop":
            for item in missing:
                self._display.warning(as_run(render(item)))
            missing = []
        stopping = fatal([*planned, *missing])
        # What a member found is in the record already; its peers stop because of it and add nothing.
        result["findings"] = [item.as_dict() for item in missing if item.node not in told]
        if stopping:
            result.update(failed=True, msg=_message(plan, variables, stopping))
        return result


def _message(plan: Mapping[str, Any], variables: dict[str, Any], stopping: list[Finding]) -> str:
    """The findings in full on the cluster's first host, and only what they are on its others."""
    active = set(variables.get("ansible_play_hosts") or ())
    first = next((node["node"] for node in plan["nodes"] if node["node"] in active), None)
    if first in (None, variables["inventory_hostname"]):
        return "\n".join(render(item) for item in stopping)
    short = ", ".join(f"{item.code} on {item.node}" for item in stopping)
    return f"{plan['name']} stops: {short} (in full on {first})"


def _missing(plan: Mapping[str, Any], variables: dict[str, Any]) -> tuple[list[Finding], set[str]]:
    """Members that were in the run and are not any more, and which of them left a finding of their own."""
    active = set(variables.get("ansible_play_hosts") or ())
    asked = set(variables.get("ansible_play_hosts_all") or ())
    found = []
    told = set()
    for node in plan["nodes"]:
        name = str(node["node"])
        if name in active or name not in asked:
            continue  # a member outside the run is a finding of the plan
        said, of_its_own = _last_failure(variables["hostvars"], name)
        if of_its_own:
            told.add(name)
        found.append(
            finding(
                "MEMBER_STOPPED",
                node=name,
                found=said[0] if said else "it failed or became unreachable in an earlier task of this play",
                expected=f"every member of {plan['name']} still in the play",
                evidence=said[1:],
                member=name,
            )
        )
    return found, told


def _last_failure(hostvars: Any, node: str) -> tuple[list[str], bool]:
    """What a member's last failed task said, as far as it was registered, and whether that were findings."""
    values = hostvars.raw_get(node) if hasattr(hostvars, "raw_get") else hostvars[node]
    failed = [
        value
        for value in values.values()
        if isinstance(value, Mapping) and (value.get("failed") is True or value.get("unreachable") is True)
    ]
    if not failed:
        return [], False
    last = failed[-1]
    findings = [item for item in last.get("findings") or () if isinstance(item, Mapping)]
    fatals = [f"{item['code']}: {item['found']}" for item in findings if item.get("severity") == "fatal"]
    return fatals or str(last.get("msg", "it gave no message")).splitlines()[:12], bool(fatals)
