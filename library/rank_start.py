#!/usr/bin/python
"""Start this node's rank and see it alive."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import rank
from ansible.module_utils.spark.bundle import UNIT_NAME
from ansible.module_utils.spark.findings import Finding, finding, from_dict
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: rank_start
short_description: Start this node's rank through its unit, and see its container alive
description:
  - Does nothing where the rank already runs with the wanted configuration, unless O(fresh) is set.
  - Returns when the container has been alive for O(alive_s). A rank that is refused or dies before that fails the task
    with the cause, taken from the refusal that the launcher wrote down or from the engine's log.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  rank:
    description: The rank's number.
    type: int
    required: true
  config_sha256:
    description: Configuration that the installed plan must have, and the container after the start.
    type: str
    required: true
  fresh:
    description: Start anew even if the wanted configuration runs. A rank that joined an earlier head serves no new one.
    type: bool
    default: false
  alive_s:
    description: How long the container must have been alive.
    type: float
    default: 2
  argv:
    description: The planned command line, shown as the difference.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Shows the command line that would run.
    support: full
  diff_mode:
    description: The command line before and after.
    support: full
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Start the worker
  rank_start:
    node: "{{ me.node }}"
    rank: "{{ me.rank }}"
    config_sha256: "{{ cluster.serving.config_sha256 }}"
  when: me.rank > 0
"""

RETURN = r"""
container:
  description: The running container.
  returned: when the rank runs
  type: dict
"""


def command_line(argv: list[str]) -> str:
    """One argument a line, as a list of Python strings: what is in an argument can be seen."""
    return "".join(f"{part!r}\n" for part in argv)


def diff(before: dict[str, Any], argv: list[str]) -> dict[str, str]:
    running = command_line(before["start"].get("argv") or [])
    return {"before_header": UNIT_NAME, "after_header": UNIT_NAME, "before": running, "after": command_line(argv)}


def watch(node: str, number: int, began: float, alive_s: float) -> tuple[list[Finding], dict[str, Any]]:
    """Wait until the container has lived for a while, or has not: the unit's state ends the wait, no total limit."""
    alive_since: float | None = None
    while True:
        refused = rank.refusal(began)
        if refused:
            return refused, {}
        seen = rank.status()
        if seen["state"] in ("dead", "absent"):
            # The refusal is written just before the launcher ends.
            return rank.refusal(began) or [rank.death(seen, node, number)], seen
        if seen["state"] == "running":
            alive_since = alive_since or time.monotonic()
            if time.monotonic() - alive_since >= alive_s:
                return noticed(seen), seen
        time.sleep(0.3)


def noticed(seen: dict[str, Any]) -> list[Finding]:
    """What the start itself found and went on with, such as a GID that has moved since the plan."""
    return [from_dict(item) for item in seen["start"].get("findings", ()) if item["severity"] != "fatal"]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "rank": {"type": "int", "required": True},
            "config_sha256": {"type": "str", "required": True},
            "fresh": {"type": "bool", "default": False},
            "alive_s": {"type": "float", "default": 2},
            "argv": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    node = params["node"]
    before = rank.status()
    box = before["container"] or {}
    same = before["state"] == "running" and box.get("config_sha256") == params["config_sha256"]
    if same and not params["fresh"]:
        finish(module, container=before["container"])
    shown = diff(before, params["argv"])
    if module.check_mode:
        finish(module, changed=True, diff=shown)
    try:
        plan = rank.read_plan()
    except rank.PlanError as error:
        missing = finding("LAUNCHER_NOT_INSTALLED", node=node, found=str(error), expected="the plan of this node")
        finish(module, findings=[missing])
    if plan["config_sha256"] != params["config_sha256"]:
        found = f"the installed plan has configuration {plan['config_sha256']}"
        expected = f"configuration {params['config_sha256']}"
        finish(module, findings=[finding("LAUNCHER_NOT_INSTALLED", node=node, found=found, expected=expected)])
    began = time.time()
    run(["systemctl", "reset-failed", UNIT_NAME])
    stale = run(["systemctl", "show", UNIT_NAME, "--property=NeedDaemonReload"]).stdout.strip()
    if stale.endswith("=yes"):
        run(["systemctl", "daemon-reload"], timeout_s=60, check=True)
    # A unit that fails at once makes systemctl fail too; the cause is looked for in one place, below.
    run(["systemctl", "restart", UNIT_NAME], timeout_s=120)
    said, seen = watch(node, params["rank"], began, params["alive_s"])
    measured = {"rank_start_s": round(time.time() - began, 2)}
    finish(
        module,
        changed=True,
        findings=said,
        diff=shown,
        measurements=measured,
        container=seen.get("container"),
        log_tail=seen.get("log_tail", []),
    )


if __name__ == "__main__":
    main()
