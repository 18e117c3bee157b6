#!/usr/bin/python
"""Stop this node's rank and look whether anything of it is left."""

from __future__ import annotations

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import rank
from ansible.module_utils.spark.bundle import UNIT_NAME
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: rank_stop
short_description: Stop this node's rank, and verify that nothing of it is left
description:
  - Stops the unit, removes the container, and then looks for processes, container, ports and unit. Only a container
    that this project started is touched.
  - What is stopped is found on the node; no plan is needed.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  settle_s:
    description: How long ports and processes may take to go away after the stop.
    type: float
    default: 10
attributes:
  check_mode:
    description: Says whether there is anything to stop.
    support: full
  diff_mode:
    description: The state before and after.
    support: full
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Stop the rank
  rank_stop:
    node: "{{ me.node }}"
"""

RETURN = r"""
left:
  description: What is still there, in words.
  returned: always
  type: list
  elements: str
"""


def ports() -> list[int]:
    try:
        return [int(port) for port in rank.read_plan().get("ports") or ()]
    except rank.PlanError:
        return []


def stop(node: str, settle_s: float, measured: dict[str, float]) -> list[str]:
    box = rank.container()
    ours = box if box and box["config_sha256"] else None
    pids = rank.tree(ours["pid"]) if ours and ours["pid"] else []
    # A port that somebody else listens on is no part of the rank, unless the rank itself holds it now.
    held = [port for port in ports() if ours and ours["running"] and port in rank.listening()]
    began = time.monotonic()
    run(["systemctl", "stop", UNIT_NAME], timeout_s=120)
    rank.remove_own()
    run(["systemctl", "reset-failed", UNIT_NAME])
    until = time.monotonic() + settle_s
    while (left := rank.remains(held, pids)) and time.monotonic() < until:
        time.sleep(0.3)
    measured["rank_stop_s"] = round(time.monotonic() - began, 2)
    return left


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "settle_s": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    node = module.params["node"]
    try:
        box = rank.container()
    except OSError as error:
        expected = "docker container inspect answers"
        finish(module, findings=[finding("DOCKER_SILENT", node=node, found=str(error), expected=expected)], left=[])
    active = rank.unit().get("ActiveState", "unknown")
    if active == "failed" and not module.check_mode:
        run(["systemctl", "reset-failed", UNIT_NAME])
    there = bool(box and box["config_sha256"]) or active in ("active", "activating", "deactivating")
    text = f"unit {active}, container {box['status'] if box else 'none'}\n"
    gone = "unit inactive, container none\n"
    header = {"before_header": UNIT_NAME, "after_header": UNIT_NAME}
    if module.check_mode and there:
        finish(module, changed=True, diff={**header, "before": text, "after": gone}, left=[])
    measured: dict[str, float] = {}
    left = stop(node, module.params["settle_s"], measured) if there else []
    finish(
        module,
        changed=there,
        findings=[rank.after_stop(node, left)],
        measurements=measured,
        diff={**header, "before": text, "after": gone} if there else {},
        left=left,
    )


if __name__ == "__main__":
    main()
