#!/usr/bin/python
"""Prove the rails of a node, and keep a pending change of its network or take it back."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import guard, netplan, reach
from ansible.module_utils.spark.findings import Finding, finding
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: fabric_confirm
short_description: Prove that every peer answers on every rail, and cancel the rollback
description:
  - With I(state=proven) looks at own addresses and MTU and at the path of the operator's own connection, pings every
    peer on every rail, bound to the rail's function and address, and sends frames of full size that may not be
    fragmented. After a change it watches for at least five seconds. The rollback of M(fabric_netplan) stays armed.
  - With I(state=kept) cancels the rollback. Run it over a new connection once all nodes are proven, so that either all
    keep the change or none.
  - With I(state=reverted) puts an armed change back at once instead of when its time is over, and fails with that.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  mtu: {description: MTU of every rail., type: int, default: 1500}
  armed:
    description: Whether a change of this run waits. If the node took it back already, that is the finding.
    type: bool
    default: false
  state:
    description: What this call is to bring about.
    type: str
    choices: [proven, kept, reverted]
    default: proven
"""

EXAMPLES = r"""
- name: Reach every peer
  fabric_confirm:
    node: spark-01
    rails: "{{ me.rails }}"
"""

RETURN = r"""
pending: {description: Whether a rollback still waits., type: bool, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "mtu": {"type": "int", "default": 1500},
            "armed": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["proven", "kept", "reverted"], "default": "proven"},
        },
        supports_check_mode=True,
    )
    name = module.params["node"]
    node = guard.Node(run)
    waiting = guard.pending(node)
    if module.params["state"] == "reverted":
        back = waiting and not module.check_mode and guard.take_back(node, "a node of the cluster was not proven")
        finish(module, changed=back, findings=[rolled_back(name, node)], pending=False)
    if module.params["state"] == "kept":
        if module.check_mode or guard.confirm(node):
            finish(module, changed=waiting, pending=waiting and module.check_mode)
        finish(module, findings=[rolled_back(name, node)], pending=False)
    if module.params["armed"] and not waiting:
        finish(module, findings=[rolled_back(name, node)], pending=False)
    rails = netplan.rails_of(module.params["rails"])
    mtu = module.params["mtu"]
    measured = None
    try:
        devices = netplan.read_devices(run)
        if module.check_mode and reach.own_faults(name, rails, mtu, devices):
            unproven = finding(
                "NOT_PROVEN_IN_CHECK_MODE",
                node=name,
                found="the addresses are not set yet, so no peer was asked",
                expected="every peer on every rail",
            )
            finish(module, findings=[unproven], pending=waiting)
        path = reach.management(devices, reach.session())
        seen, spent = reach.watch(run, rails, mtu, changed=waiting, path=path)
        faults = reach.judge(run, name, rails, mtu, seen)
        if not faults:
            carried = reach.carry(run, rails, mtu)
            measured = {"mtu": reach.mtu_measured(mtu, carried)}
            faults = reach.not_carried(run, name, rails, mtu, carried)
    except CommandFailed as failed:
        module.fail_json(msg=str(failed), pending=waiting)
    if waiting and not guard.pending(node):
        faults.append(rolled_back(name, node))
    good = [] if faults else [reach.confirmed(name, rails, mtu, seen, spent, path)]
    finish(module, findings=[*faults, *good], measurements=measured, pending=waiting)


def rolled_back(name: str, node: guard.Node) -> Finding:
    return finding(
        "FABRIC_ROLLED_BACK",
        node=name,
        found="no change is waiting for confirmation any more",
        expected="a confirmation before the node's rollback timer ran out",
        evidence=guard.last_rollback(node),
    )


if __name__ == "__main__":
    main()
