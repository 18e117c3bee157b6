#!/usr/bin/python
"""This node's own ssh key, made on the node and never leaving it, and the host keys by which the others know it."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import peer, trust
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: peer_key
short_description: Make the key that the nodes of a cluster use among themselves
description:
  - Makes C(/etc/spark-cluster/ssh/id_ed25519) with ssh-keygen, readable by root only, unless it is there.
  - Returns its public half and the node's public ssh host keys; the private half is never read.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
attributes:
  check_mode:
    description: Predicts that a key would be made; O(public_key) is then null.
    support: full
  diff_mode:
    description: Shows the fingerprint.
    support: full
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Make this node's key
  peer_key:
    node: "{{ me.node }}"
  register: peer_ssh_key
"""

RETURN = r"""
public_key:
  description: Public half of the key, null in check mode where there is none yet.
  returned: always
  type: str
fingerprint:
  description: As ssh-keygen -l prints it.
  returned: always
  type: str
host_keys:
  description: The node's public ssh host keys.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    module = AnsibleModule(argument_spec={"node": {"type": "str", "required": True}}, supports_check_mode=True)
    node = module.params["node"]
    hosts = trust.host_keys()
    key, findings = trust.read_key(node)
    if not hosts:
        found, expected = "no ssh_host_*_key.pub in /etc/ssh", "the host keys that sshd makes when it is installed"
        findings.append(finding("PEER_HOST_KEYS_MISSING", node=node, found=found, expected=expected))
    make = key is None and not findings
    if make and not module.check_mode:
        key = trust.make_key(node)
    after = (trust.fingerprint(key) if key else "a new ed25519 key") + "\n"
    diff = {"before_header": str(peer.KEY), "after_header": str(peer.KEY), "before": "", "after": after}
    finish(
        module,
        changed=make,
        findings=findings,
        diff=diff if make else None,
        public_key=key,
        fingerprint=trust.fingerprint(key) if key else None,
        host_keys=hosts,
    )


if __name__ == "__main__":
    main()
