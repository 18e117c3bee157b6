"""Plans the cluster of a host from the inventory and the facts of all its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.bundle import RANKCTL, build_bundle, store  # noqa: E402
from ansible.module_utils.spark.plan.build import add_serving, build_plan  # noqa: E402
from ansible.module_utils.spark.plan.present import finding_line, plan_lines  # noqa: E402
from ansible.module_utils.spark.plan.serving import configuration, plan_serving  # noqa: E402
from ansible.module_utils.spark.plan.types import Bundle, BundleFile, Purpose  # noqa: E402
from ansible.module_utils.spark_controller import (  # noqa: E402
    PROJECT,
    cluster_of,
    members_of,
    overlays_of,
    recipe_for,
)
from ansible.plugins.action import ActionBase  # noqa: E402

DOCUMENTATION = """
name: cluster_plan
short_description: Plan a cluster
description:
  - Computes the plan of the host's cluster and returns it as C(cluster), and the host's own entry as C(me).
  - Runs for every host. The members of a cluster get equal plans, because a plan depends on nothing but the inventory
    and the facts, and a fault in one cluster cannot reach another. It never fails for what it finds; cluster_gate does.
options:
  purpose:
    description: What the play is for. C(serve) plans a model, C(stop) judges nothing, nothing stops C(diagnose).
    choices: [fabric, serve, stop, diagnose]
    default: fabric
    type: str
  facts_from:
    description: Name of the variable in which node_info was registered on each host.
    default: preflight_node
    type: str
  wire_from:
    description: Name of the variable in which fabric_frames was registered on each host, where it was run.
    default: preflight_wire
    type: str
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset(("purpose", "facts_from", "wire_from"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result = super().run(tmp, variables)
        host = str(variables["inventory_hostname"])
        purpose = cast(Purpose, str(self._task.args.get("purpose", "fabric")))
        registered = str(self._task.args.get("facts_from", "preflight_node"))
        cluster = cluster_of(members_of(host, variables), self._play_context.remote_user)
        nodes = [member.node for member in cluster.members]
        in_play = set(variables.get("ansible_play_hosts_all") or ())
        absent = {node: "it is in the inventory and not in this run" for node in nodes if node not in in_play}
        seen = {node: variables["hostvars"][node].get(registered) for node in nodes}
        facts = {node: found["node"] for node, found in seen.items() if _is_facts(found)}
        heard = str(self._task.args.get("wire_from", "preflight_wire"))
        wire = wire_of(variables["hostvars"], nodes, heard)
        silent = {node: str(found.get("msg")) for node, found in seen.items() if _failed(found)}
        recipe, found = recipe_for(cluster) if purpose == "serve" else (None, [])
        gpu = recipe is None or recipe.gpu
        plan = build_plan(
            cluster,
            facts,
            _bundle(overlays_of(cluster, recipe) if recipe else []),
            purpose=purpose,
            absent=absent,
            silent=silent,
            gpu=gpu,
            check_mode=bool(self._task.check_mode),
            wire=wire,
        )
        plan["findings"] += [item.as_dict() for item in found]
        if recipe is not None:
            plan = add_serving(plan, *plan_serving(cluster, plan, recipe, facts))
        result.update(
            changed=False,
            cluster=plan,
            me=next(node for node in plan["nodes"] if node["node"] == host),
            findings=plan["findings"],
            configuration=configuration(plan),
        )
        present = [node for node in nodes if node in set(variables.get("ansible_play_hosts") or ())]
        if purpose != "stop" and present[:1] == [host]:
            self._show(plan)
        return result

    def _show(self, plan: Any) -> None:
        """Once per cluster: its first host in the play speaks for all."""
        said = [item for item in plan["findings"] if item["severity"] in ("note", "warn")]
        self._display.display("\n".join([*plan_lines(plan), *map(finding_line, said)]))


def wire_of(hostvars: Any, nodes: Sequence[str], registered: str) -> dict[str, Mapping[str, Any]]:
    """What the nodes heard; nothing where they were not asked, which leaves a skipped result behind."""
    found = {node: hostvars[node].get(registered) for node in nodes}
    return {
        node: said["wire"]
        for node, said in found.items()
        if isinstance(said, Mapping) and isinstance(said.get("wire"), Mapping)
    }


def _is_facts(registered: Any) -> bool:
    return isinstance(registered, Mapping) and isinstance(registered.get("node"), Mapping)


def _failed(registered: Any) -> bool:
    return isinstance(registered, Mapping) and bool(registered.get("failed") or registered.get("unreachable"))


def _bundle(overlays: Sequence[tuple[str, bytes]]) -> Bundle:
    files = store(build_bundle(PROJECT, overlays), PROJECT / ".cache" / "bundle")
    rankctl = next(item["sha256"] for item in files if item["path"] == RANKCTL)
    return {"rankctl_sha256": rankctl, "files": [cast(BundleFile, dict(item)) for item in files]}
