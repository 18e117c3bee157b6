#!/usr/bin/python
"""Take back what this project changed on a node, from its undo journal."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import guard, netplan, reach, reset
from ansible.module_utils.spark.findings import Finding, fatal, finding
from ansible.module_utils.spark.link.run import serving
from ansible.module_utils.spark.runner import CommandFailed, run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: node_reset
short_description: Replay a node's undo journal backwards
description:
  - With I(phase=network) takes back a change that waits for its confirmation, then puts the network files, addresses
    and kernel settings back as they were before this project. A timer on the node brings the fabric back unless
    I(phase=rest) follows, over a new connection.
  - With I(phase=rest) watches the path of the operator's connection for five seconds, ends the timer, puts everything
    else back (orphans, lines of authorized_keys, units, files) and removes what is this project's own.
  - What somebody changed after this project wrote it is named and left.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  phase: {description: What of it to do., type: str, choices: [network, rest], required: true}
  armed:
    description: Whether the network phase of this run armed a timer. If it ran out meanwhile, that is the finding.
    type: bool
    default: false
  stop: {description: The rank is stopped in this run, or would be in check mode., type: bool, default: false}
  weights: {description: Remove weights that were copied by this project., type: bool, default: false}
  images: {description: Remove images that were loaded by this project., type: bool, default: false}
  rollback_s: {description: Seconds until the node brings the fabric back., type: int, default: 120}
attributes:
  check_mode: {description: Compares with the journal and predicts., support: full}
  diff_mode: {description: "Every file, link and address that comes back or goes.", support: full}
"""

EXAMPLES = r"""
- name: Put the network back
  node_reset:
    node: spark-01
    phase: network
"""

RETURN = r"""
armed: {description: Whether a timer waits that brings the fabric back., type: bool, returned: always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "phase": {"type": "str", "choices": ["network", "rest"], "required": True},
            "armed": {"type": "bool", "default": False},
            "stop": {"type": "bool", "default": False},
            "weights": {"type": "bool", "default": False},
            "images": {"type": "bool", "default": False},
            "rollback_s": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    node = guard.Node(run)
    try:
        network(module, node) if module.params["phase"] == "network" else rest(module, node)
    except CommandFailed as failed:
        module.fail_json(msg=str(failed), armed=False)


def network(module: AnsibleModule, node: guard.Node) -> None:
    name = module.params["node"]
    reason = serving(run)
    if reason and not (module.params["stop"] and module.check_mode):
        said = finding("RESET_SERVING", node=name, found=reason, expected="no rank running")
        finish(module, findings=[said], armed=False)
    found = reset.survey(node, name)
    pending = found.pending
    if pending and not module.check_mode:
        guard.take_back(node, "the node is reset")
        found = reset.survey(node, name)
    changes = found.network_changes
    shown = reset.network_diffs(node, found) if changes else []
    armed, wrong = False, list[Finding]()
    if changes and not module.check_mode:
        armed, wrong = reset.network_back(node, name, found, module.params["rollback_s"])
    finish(module, changed=pending or (changes and not fatal(wrong)), findings=wrong, diff=shown, armed=armed)


def rest(module: AnsibleModule, node: guard.Node) -> None:
    name = module.params["node"]
    if module.params["armed"]:
        wrong = watch(name, node)
        if wrong:
            finish(module, findings=wrong, armed=guard.pending(node))
    options = {"weights": module.params["weights"], "images": module.params["images"]}
    found = reset.survey(node, name, **options)
    changes = found.rest_changes
    shown = reset.rest_diffs(node, found) if changes else []
    said = [*found.left, *found.kept]
    if module.check_mode:
        if changes:
            predicted = finding(
                "NOT_PROVEN_IN_CHECK_MODE",
                node=name,
                found="the difference is what the journal says would come back",
                expected="the node as it was before this project",
            )
            said.append(predicted)
        finish(module, changed=changes, findings=said, diff=shown, armed=False)
    if changes:
        reset.rest_back(node, found)
    if not found.left:
        said.append(reset.done(name, found, changed=changes))
    finish(module, changed=changes, findings=said, diff=shown, armed=False)


def watch(name: str, node: guard.Node) -> list[Finding]:
    """See the operator's own path stay, then end the timer; the fabric comes back where either fails."""
    path = reach.management(netplan.read_devices(run), reach.session())
    seen, _ = reach.watch(run, [], 0, changed=True, path=path)
    wrong = reach.judge(run, name, [], 0, seen)
    if not wrong and not guard.confirm(node):
        wrong = [
            finding(
                "FABRIC_ROLLED_BACK",
                node=name,
                found="the fabric is back: no change is waiting for confirmation any more",
                expected="the next step of the reset before the node's timer ran out",
                evidence=guard.last_rollback(node),
            )
        ]
    return wrong


if __name__ == "__main__":
    main()
