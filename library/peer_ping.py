#!/usr/bin/python
"""The proof that this node reaches its peers over the fabric, as itself and nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import jobs, peer, trust
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: peer_ping
short_description: Reach every peer over its first rail with the cluster's own key
description:
  - Opens a new ssh connection to every peer at once and asks the forced command there who it is.
  - The answer has to name the peer and the cluster, and to come from the same C(rankctl).
options:
  node:
    description: Name of this node.
    type: str
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  nodes:
    description: Nodes of the plan, each with C(node) and C(rails).
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    description: Asks as well; on nodes that the play has not changed yet a failure is no verdict.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Reach the peers
  peer_ping:
    node: "{{ me.node }}"
    cluster: "{{ cluster.name }}"
    nodes: "{{ cluster.nodes }}"
"""

RETURN = r"""
measurements:
  description: Seconds of one whole request to each peer.
  returned: always
  type: dict
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "cluster": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    node, cluster = module.params["node"], module.params["cluster"]
    peers = trust.parse_peers(node, module.params["nodes"], [{} for _ in module.params["nodes"]])
    expected = "an answer of every peer"
    if module.check_mode and not peer.KEY.exists():
        # Nothing can answer yet, and waiting for a connection would only take time.
        found = "this node has no key yet, so no peer was asked"
        finish(module, findings=[finding("NOT_PROVEN_IN_CHECK_MODE", node=node, found=found, expected=expected)])
    reachable = [one for one in peers if one.addresses]
    code = jobs.installed_code()
    with ThreadPoolExecutor(max(1, len(reachable))) as pool:
        answers = list(
            pool.map(lambda one: trust.ping(one, one.addresses[0], node, cluster, code), reachable),
        )
    findings = [found for found, _seconds in answers]
    failed = [found for found in findings if found.severity == "fatal"]
    if module.check_mode and failed:
        said = [f"{one.code}: {one.found}" for one in failed]
        found = "the peers are not reached yet over the fabric"
        findings = [one for one in findings if one.severity != "fatal"]
        note = finding("NOT_PROVEN_IN_CHECK_MODE", node=node, found=found, expected=expected, evidence=said)
        findings.append(note)
    took = {f"peer_ping_{one.node}_s": round(answer[1], 3) for one, answer in zip(reachable, answers, strict=True)}
    finish(module, findings=findings, measurements=took)


if __name__ == "__main__":
    main()
