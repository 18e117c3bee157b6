"""Checks versions, the inventory and its variables before any machine is touched, and says what to ask the machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.ansible_release import __version__ as ansible_version  # noqa: E402
from ansible.module_utils.spark.findings import Finding, fatal, finding, render  # noqa: E402
from ansible.module_utils.spark_command import as_run  # noqa: E402
from ansible.module_utils.spark_controller import cluster_of, members_of, nobody, recipe_for, spark_hosts  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: cluster_inventory
short_description: Check versions, inventory and variables
description:
  - On a host of the group spark, checks the variables of its cluster; on any other host, that the run has one of those.
  - Returns C(questions), the arguments of node_info for this host.
options:
  purpose:
    description: What the play is for; only C(serve) needs a model.
    choices: [fabric, serve, stop, diagnose]
    default: fabric
    type: str
"""

OLDEST_ANSIBLE = (2, 19)
OLDEST_PYTHON = (3, 11)


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("purpose",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        host = str(variables["inventory_hostname"])
        hosts = spark_hosts(variables)
        found = _versions(host)
        questions: dict[str, Any] = {}
        if host in hosts:
            found += self._cluster(host, variables, questions)
        elif not set(hosts) & set(variables.get("ansible_play_hosts_all") or ()):
            sources = variables.get("ansible_inventory_sources") or []
            found.append(nobody(host, hosts, sources, variables.get("ansible_limit")))
        stopping = fatal(found)
        result.update(
            changed=False, findings=[item.as_dict() for item in found], questions=questions, failed=bool(stopping)
        )
        for item in found:
            if item.severity == "warn":
                self._display.warning(as_run(render(item)))
        if stopping:
            result["msg"] = "\n".join(render(item) for item in stopping)
        return result

    def _cluster(self, host: str, variables: dict[str, Any], questions: dict[str, Any]) -> list[Finding]:
        purpose = str(self._task.args.get("purpose", "fabric"))
        cluster = cluster_of(members_of(host, variables), self._play_context.remote_user)
        found = list(cluster.findings)
        questions.update(models_dir=cluster.models_dir, api_port=cluster.policy.api_port, weights_folder="", image="")
        if purpose == "serve" and not fatal(found):
            recipe, recipe_findings = recipe_for(cluster)
            found += recipe_findings
            if recipe is not None:
                questions.update(weights_folder=recipe.weights_folder, image=recipe.image_reference or "")
        return found


def _versions(host: str) -> list[Finding]:
    numbers = tuple(int(part) for part in ansible_version.split(".")[:2])
    if numbers >= OLDEST_ANSIBLE and sys.version_info >= OLDEST_PYTHON:
        return []
    return [
        finding(
            "CONTROLLER_UNSUPPORTED",
            node=host,
            found=f"ansible-core {ansible_version} on Python {sys.version.split()[0]}",
            expected="ansible-core 2.19 or newer on Python 3.11 or newer",
        )
    ]
