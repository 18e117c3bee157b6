"""Ranks the causes from what all nodes of a cluster said, and packs what can be shown to others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.diagnose.causes import diagnose  # noqa: E402
from ansible.module_utils.spark.diagnose.gathered import of_host  # noqa: E402
from ansible.module_utils.spark.diagnose.report import (  # noqa: E402
    archive,
    evidence_of,
    files,
    markdown,
    redactor,
    summary,
)
from ansible.module_utils.spark_controller import PROJECT  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: diagnose_tell
short_description: Rank the causes and write the bundle
description:
  - Speaks once per cluster, on its first host; the others pass. Touches no node.
  - Returns the causes as findings and as C(measurements.diagnosis), and C(attachments), files that spark_record puts
    beside the result.
options:
  registered:
    description: Names of the variables that the phases were registered in on each host.
    type: dict
    required: true
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("registered",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        result.update(changed=False, module_executions={"modules": 0, "polls": 0})
        plan, hostvars = variables["cluster"], variables["hostvars"]
        names = [node["node"] for node in plan["nodes"]]
        active = set(variables.get("ansible_play_hosts") or ())
        if variables["inventory_hostname"] != next((name for name in names if name in active), None):
            return result
        registered = {key: str(name) for key, name in self._task.args["registered"].items()}
        asked = set(variables.get("ansible_play_hosts_all") or ())
        told = {name: of_host(hostvars[name], registered, asked=name in asked) for name in names}
        facts = {name: given["facts"] for name, given in told.items() if given.get("facts")}
        evidence = evidence_of(plan, told, facts)
        diagnosis = diagnose(evidence)
        folder = PROJECT / ".cache" / "diagnose" / str(plan["name"])
        shown = markdown(diagnosis, evidence, {"at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())})
        contents = files(diagnosis, evidence, shown, redactor(plan, facts))
        folder.mkdir(parents=True, exist_ok=True)
        text, bundle = folder / "diagnosis.md", folder / "diagnosis.tar.gz"
        text.write_text(contents["report.md"], encoding="utf-8")
        bundle.write_bytes(archive(contents, f"diagnosis-{plan['name']}", int(time.time())))
        result.update(
            findings=[item.as_dict() for item in diagnosis.findings()],
            measurements={"diagnosis": summary(diagnosis, evidence)},
            attachments=[str(text), str(bundle)],
        )
        return result
