#!/usr/bin/python
"""Disable units of earlier deployments that would take the node from the cluster at the next boot."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import takeover
from ansible.module_utils.spark.link.run import serving
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: conflicting_units
short_description: Disable and stop units that would serve beside the cluster
description:
  - Records the state of each unit in the node's undo journal, then disables and stops it, and looks whether that held.
  - While a rank serves it disables nothing and warns, because systemd would reload.
  - Without I(takeover) it changes nothing and refuses while one of them is enabled or running.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  units: {description: Names of the units., type: list, elements: str, required: true}
  takeover: {description: Whether they may be disabled., type: bool, default: false}
"""

EXAMPLES = r"""
- name: Disable the unit of an earlier deployment
  conflicting_units:
    node: spark-01
    units: [vllm-single.service]
    takeover: true
"""

RETURN = r"""
units: {description: Each unit's state before and after., type: list, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "units": {"type": "list", "elements": "str", "required": True},
            "takeover": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    node, names = module.params["node"], module.params["units"]
    try:
        before = takeover.read(run, names)
        conflicting = [unit for unit in before if unit.conflicts]
        after = before
        reason = serving(run) if conflicting and module.params["takeover"] else None
        if reason:
            finish(module, findings=takeover.left(node, conflicting, reason), units=[])
        if conflicting and module.params["takeover"]:
            after = takeover.disable(run, before, dry=module.check_mode)
    except CommandFailed as failed:
        module.fail_json(msg=str(failed))
    finish(
        module,
        changed=after != before,
        findings=takeover.judge(node, before, after),
        diff={
            "before": "".join(f"{unit.name}: {unit.state}\n" for unit in before),
            "after": "".join(f"{unit.name}: {unit.state}\n" for unit in after),
        },
        units=[
            {"name": old.name, "before": old.state, "after": new.state} for old, new in zip(before, after, strict=True)
        ],
    )


if __name__ == "__main__":
    main()
