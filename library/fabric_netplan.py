#!/usr/bin/python
"""Give the functions of a node their addresses, with a rollback on the node itself."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import guard, netplan
from ansible.module_utils.spark.findings import fatal, finding
from ansible.module_utils.spark.link.run import serving
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: fabric_netplan
short_description: Configure the two CX-7 functions of a node through netplan, as a transaction
description:
  - Moves the named all-NUL orphans out of C(/etc/netplan) after looking at their bytes and at NetworkManager's
    connections again, writes one netplan file, and applies it. The whole resulting tree is checked in a scratch folder
    before anything is changed.
  - Before it applies anything it arms a timer on the node that puts everything back. M(fabric_confirm) cancels it.
  - A network that is already right is left as it is, whoever made it so.
  - Kernel settings that the plan asks for are part of the same transaction.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  path: {description: The netplan file., type: path, required: true}
  text: {description: Its text; the renderer is the one that it names., type: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  mtu: {description: MTU of every rail., type: int, default: 1500}
  orphans: {description: All-NUL files to move to the backup., type: list, elements: path, default: []}
  rollback_s: {description: Seconds until the node puts an unconfirmed change back., type: int, default: 120}
  sysctl:
    description: Kernel settings of the fabric, with C(path), C(text) and C(values); none where it is empty.
    type: dict
    default: {}
  serving_nodes:
    description: Nodes of the cluster on which a rank runs; while there is one, the network is not touched.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Configure the rails
  fabric_netplan:
    node: spark-01
    path: /etc/netplan/40-spark-fabric.yaml
    text: "{{ me.netplan.text }}"
    rails: "{{ me.rails }}"
"""

RETURN = r"""
applied: {description: Whether the network was changed., type: bool, returned: always}
armed: {description: Whether a rollback waits for confirmation., type: bool, returned: always}
adopted: {description: Whether somebody else's configuration does it already., type: bool, returned: always}
quarantined: {description: The files that were moved, with hash and mode., type: list, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "text": {"type": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "mtu": {"type": "int", "default": 1500},
            "orphans": {"type": "list", "elements": "path", "default": []},
            "rollback_s": {"type": "int", "default": 120},
            "sysctl": {"type": "dict", "default": {}},
            "serving_nodes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    asked = dict(module.params)
    elsewhere = asked.pop("serving_nodes")
    settings = netplan.settings_of(asked.pop("sysctl"))
    wanted = netplan.Wanted(**{**asked, "rails": netplan.rails_of(asked["rails"]), "settings": settings})
    node = guard.Node(run)
    nothing: dict[str, Any] = {"applied": False, "armed": False, "quarantined": []}
    try:
        decision = netplan.decide(node, wanted)
        said = list(decision.findings)
        reason = serving(run) or (f"a rank runs on {', '.join(elsewhere)}" if elsewhere else None)
        # Taking a pending change back touches the network as well.
        if reason and (decision.touches or (decision.pending and decision.changed)):
            said.append(
                finding(
                    "FABRIC_BUSY", node=wanted.node, found=reason, expected="no rank running while addresses change"
                )
            )
        if not fatal(said) and not module.check_mode and netplan.settle(node, decision):
            decision = netplan.decide(node, wanted)
            said = list(decision.findings)
        if not fatal(said) and decision.changed and (invalid := netplan.validate(node, wanted, decision)):
            said.append(invalid)
        if fatal(said):
            finish(module, findings=said, adopted=False, **nothing)
        shown = netplan.diffs(node, wanted, decision)
        done = nothing
        if not module.check_mode:
            done, went_wrong = netplan.carry_out(node, wanted, decision)
            said += went_wrong
        elif decision.touches:
            said.append(
                finding(
                    "NOT_PROVEN_IN_CHECK_MODE",
                    node=wanted.node,
                    found="the files are valid; whether the addresses come up was not tried",
                    expected="the addresses on the functions",
                )
            )
    except CommandFailed as failed:
        module.fail_json(msg=str(failed), **nothing)
    finish(module, changed=decision.changed, findings=said, diff=shown, adopted=decision.adopted, **done)


if __name__ == "__main__":
    main()
