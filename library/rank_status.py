#!/usr/bin/python
"""What this node's rank is doing, and what a start would meet."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import engine_log, rank
from ansible.module_utils.spark.findings import Finding, fatal, finding
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: rank_status
short_description: Say what this node's rank is doing, and whether it could start
description:
  - Reads unit, container, log, processes and, on the head, C(/health). Changes nothing.
  - With O(prestart) it also makes every check that a start makes, as far as they can be made beside a running rank.
  - With O(watch_s) it returns as soon as the rank reaches another phase or ends, and after that time at the latest.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  rank:
    description: The rank's number, for findings.
    type: int
    default: 0
  config_sha256:
    description: Configuration that is wanted; RV(wanted) says whether the running rank has it.
    type: str
    default: ""
  prestart:
    description: Check what a start would check. A refusal fails the task.
    type: bool
    default: false
  plan:
    description: The plan to check with O(prestart), the installed one if not given.
    type: dict
  port:
    description: Port of the API on the head, 0 for ranks without one.
    type: int
    default: 0
  api_host:
    description: Address to which the API is bound.
    type: str
    default: ""
  transport:
    description: The plan's transport; with V(rdma) a log that shows sockets is remarked on.
    type: str
    default: tcp
  watch_s:
    description: How long to watch for a change.
    type: float
    default: 0
  phase:
    description: The phase that is known already, for O(watch_s).
    type: str
    default: ""
attributes:
  check_mode:
    description: Reads only. In check mode, what an earlier step would have brought is said to be unproven, not missing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Look at the rank
  rank_status:
    node: spark-01
"""

RETURN = r"""
status:
  description: State, unit, container, phase and what the log stated on the way, use of CPU, disk and memory.
  returned: always
  type: dict
wanted:
  description: Whether the wanted configuration runs.
  returned: always
  type: bool
"""

# What the earlier roles of the same play bring to a node, and would have brought had this not been check mode.
_BROUGHT = ("LAUNCHER_NOT_INSTALLED", "RANK_IMAGE_MISSING", "RANK_WEIGHTS_MISSING", "GID_MISSING")


def unproven(said: list[Finding], node: str) -> list[Finding]:
    missing = [item for item in said if item.code in _BROUGHT]
    if not missing:
        return said
    note = finding(
        "NOT_PROVEN_IN_CHECK_MODE",
        node=node,
        found="the rank's start was not checked: " + "; ".join(item.found for item in missing),
        expected="what an earlier step of this play would bring",
    )
    return [*(item for item in said if item.code not in _BROUGHT), note]


def look(params: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + params["watch_s"]
    while True:
        seen = rank.status(api_host=params["api_host"], port=params["port"])
        moved = seen["phase"] != params["phase"] or seen["state"] not in ("running", "starting")
        if moved or seen["health"] == 200 or time.monotonic() >= until:
            return seen
        time.sleep(1)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "rank": {"type": "int", "default": 0},
            "config_sha256": {"type": "str", "default": ""},
            "prestart": {"type": "bool", "default": False},
            "plan": {"type": "dict"},
            "port": {"type": "int", "default": 0},
            "api_host": {"type": "str", "default": ""},
            "transport": {"type": "str", "default": "tcp"},
            "watch_s": {"type": "float", "default": 0},
            "phase": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    node, said = params["node"], []
    seen = look(params)
    box = seen["container"] or {}
    wanted = bool(params["config_sha256"]) and seen["state"] == "running"
    wanted = wanted and box.get("config_sha256") == params["config_sha256"]
    if params["prestart"]:
        if seen["docker_error"]:
            said.append(
                finding(
                    "DOCKER_SILENT", node=node, found=seen["docker_error"], expected="docker container inspect answers"
                )
            )
        else:
            said += before_start(
                node, params["plan"], replacing=seen["state"] == "running", check_mode=module.check_mode
            )
    else:
        lines = rank.log(seen["invocation"])
        if seen["state"] == "dead":
            seen["death"] = rank.death(seen, node, params["rank"]).as_dict()
        elif not fatal(said):
            said += engine_log.remarks(lines, node=node, transport=params["transport"])
    finish(module, findings=said, status=seen, wanted=wanted, poll=not params["prestart"])


def before_start(node: str, plan: dict[str, Any] | None, *, replacing: bool, check_mode: bool) -> list[Finding]:
    try:
        plan = plan or rank.read_plan()
    except rank.PlanError as error:
        said = [finding("LAUNCHER_NOT_INSTALLED", node=node, found=str(error), expected="the plan of this node")]
    else:
        said, _record = rank.prestart(plan, replacing=replacing)
    return unproven(said, node) if check_mode else said


if __name__ == "__main__":
    main()
