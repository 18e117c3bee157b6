#!/usr/bin/python
"""One long job on a node: start it, look at it, stop it."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import jobs
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.runner import CommandFailed
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: node_job
short_description: Start, poll or stop a long job on a node
description:
  - A job is a transient systemd unit that runs C(rankctl job) and writes a status file, so that it outlives the
    connection. The action plugin M(spark_job) starts one, shows its progress and waits for its end.
  - A job that runs already with the same specification is taken up, not started again.
  - A unit that is gone without a final status is the finding C(JOB_DIED).
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  name:
    description: Name of the job; its unit is C(spark-job-NAME.service).
    type: str
    required: true
  action:
    description: What to do.
    type: str
    choices: [start, poll, cancel]
    default: poll
  kind:
    description: Kind of the job, for a start.
    type: str
  spec:
    description: What the job shall do, plain data without secrets, for a start.
    type: dict
    default: {}
  wait_s:
    description: How long to stay on the node for the job's end before saying how far it is.
    type: float
    default: 0
  until:
    description: What to wait for, the job's end or its word that it listens.
    type: str
    choices: [end, listening]
    default: end
  replace:
    description: Whether a start may stop a job of that name that runs with other instructions.
    type: bool
    default: false
  secrets:
    description: What the job has to know and nothing else may; kept in memory for root only, until the job has read it.
    type: dict
attributes:
  check_mode:
    description: A start and a stop are predicted.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Look at the copy
  node_job:
    node: "{{ me.node }}"
    name: weights-receive
"""

RETURN = r"""
job:
  description: The status, with C(state) running, done, failed or cancelled, C(progress), and C(result) once it is done.
  returned: always
  type: dict
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "action": {"type": "str", "choices": ["start", "poll", "cancel"], "default": "poll"},
            "kind": {"type": "str"},
            "spec": {"type": "dict", "default": {}},
            "wait_s": {"type": "float", "default": 0},
            "until": {"type": "str", "choices": ["end", "listening"], "default": "end"},
            "replace": {"type": "bool", "default": False},
            "secrets": {"type": "dict", "no_log": True},
        },
        required_if=[("action", "start", ["kind"])],
        supports_check_mode=True,
    )
    node, name, action = module.params["node"], module.params["name"], module.params["action"]
    if module.check_mode and action != "poll":
        note = finding(
            "NOT_PROVEN_IN_CHECK_MODE", node=node, found=f"the job {name} was not touched", expected="its outcome"
        )
        finish(module, changed=True, findings=[note], job={"name": name, "state": "predicted"})
    try:
        changed = False
        if action == "cancel":
            changed, stopped = jobs.cancel(name)
            finish(module, changed=changed, job=stopped)
        if action == "start":
            changed, status, findings = jobs.start(
                name,
                module.params["kind"],
                node,
                module.params["spec"],
                secrets=module.params["secrets"],
                replace=module.params["replace"],
            )
            if findings:
                finish(module, findings=findings, job=status)
        status, findings = jobs.poll(name, node, module.params["wait_s"], until=module.params["until"])
    except (ValueError, CommandFailed) as error:
        module.fail_json(msg=str(error))
    finish(
        module,
        changed=changed,
        findings=findings,
        measurements=status.get("measurements"),
        job=status,
        poll=action == "poll",
    )


if __name__ == "__main__":
    main()
