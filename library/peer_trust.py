#!/usr/bin/python
"""What a node has to know of its peers: their keys behind a forced command, their host keys, and what they may send."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import trust
from ansible.module_utils.spark.findings import fatal, finding
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: peer_trust
short_description: Let the peers in for a few requests, and know them again
description:
  - Adds one line per peer to the file in which sshd looks for root's keys. It is bound to the peer's fabric addresses
    and to the forced command C(rankctl peer). Lines of others stay as they are, byte for byte.
  - Writes the peers' host keys for their fabric addresses to C(/etc/spark-cluster/ssh/known_hosts), and the folders
    into which peers may copy to C(/etc/spark-cluster/peer.json).
  - Refuses where sshd would not let root in with a key from the fabric, or where a peer's key also stands in a line
    without the forced command.
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
  identities:
    description: What M(peer_key) returned, in the order of O(nodes).
    type: list
    elements: dict
    required: true
  receive:
    description: Folders below which peers may copy.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Compares and predicts; a key that does not exist yet cannot be shown.
    support: full
  diff_mode:
    description: Public halves of keys only.
    support: full
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Trust the peers
  peer_trust:
    node: "{{ me.node }}"
    cluster: "{{ cluster.name }}"
    nodes: "{{ cluster.nodes }}"
    identities: "{{ cluster.nodes | map(attribute='node') | map('extract', hostvars, 'peer_ssh_key') | list }}"
    receive: ["{{ cluster.policy.models_dir }}"]
"""

RETURN = r"""
peers:
  description: Names of the peers.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "cluster": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "identities": {"type": "list", "elements": "dict", "required": True},
            "receive": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    node, cluster = module.params["node"], module.params["cluster"]
    try:
        peers = trust.parse_peers(node, module.params["nodes"], module.params["identities"])
    except (ValueError, KeyError, TypeError) as error:
        module.fail_json(msg=f"the peers cannot be made out: {error}")
    addresses = [address for one in peers for address in one.addresses]
    settings = trust.sshd_settings(addresses[0]) if addresses else None
    findings = trust.root_refused(settings, node, addresses) if addresses else []
    changes = trust.planned(node, cluster, peers, module.params["receive"], settings)
    keys = changes[0]
    findings += trust.unrestricted(keys.before, peers, node, keys.path)
    unknown = [one.node for one in peers if one.public_key is None]
    if unknown:
        found = f"the key of {', '.join(unknown)} does not exist yet, so its line cannot be shown"
        findings.append(finding("NOT_PROVEN_IN_CHECK_MODE", node=node, found=found, expected="every peer's public key"))
    if not module.check_mode and not fatal(findings):
        if unknown:
            module.fail_json(msg=f"no public key of {', '.join(unknown)} was given")
        for change in changes:
            if change.changed:
                trust.write(change, trust.key_entries(change) if change is keys else [trust.file_entry(change)])
    changed = [change for change in changes if change.changed]
    finish(
        module,
        changed=bool(changed or unknown),
        findings=findings,
        diff=[change.diff() for change in changed],
        peers=[one.node for one in peers],
    )


if __name__ == "__main__":
    main()
