#!/usr/bin/python
"""What a node has of a model's weights, as far as it is known without reading them."""

from __future__ import annotations

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import jobs, publisher, weights
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: weights_info
short_description: Look at a folder of weights
description:
  - Lists the folder with the hashes that are remembered for these very files, and gives one digest for the whole
    where every hash is known. Nothing is read but names, sizes and the headers of weight files.
  - At the source it judges whether the folder is whole; elsewhere whether what is lacking fits on the disk.
options:
  node:
    description: Name of this node.
    type: str
    required: true
  path:
    description: The folder.
    type: path
    required: true
  source_node:
    description: Node from which the weights are copied, empty if no node has them.
    type: str
    default: ""
  bytes:
    description: Size of the weights at the source.
    type: int
    default: 0
  headroom_bytes:
    description: What must stay free on the disk.
    type: int
    default: 0
  trust:
    description: C(recorded) believes remembered hashes of unchanged files, C(nothing) none.
    type: str
    choices: [recorded, nothing]
    default: recorded
  repository:
    description: Where the weights can be had, for the finding that they are missing.
    type: str
  revision:
    description: The revision that is wanted, likewise.
    type: str
attributes:
  check_mode:
    description: Reads only, so check mode is the same.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Look at the weights
  weights_info:
    node: "{{ me.node }}"
    path: "{{ cluster.serving.weights.path }}"
    source_node: "{{ cluster.serving.weights.source_node }}"
"""

RETURN = r"""
weights:
  description: Whether the folder is there, its files, bytes, digest (null while a file is unread), manifest, how many
    hashes are the publisher's word so far, and whether something that was being copied lies beside it.
  returned: always
  type: dict
rankctl_sha256:
  description: Hash of the installed C(rankctl.pyz), which runs the copies; empty where there is none.
  returned: always
  type: str
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "source_node": {"type": "str", "default": ""},
            "bytes": {"type": "int", "default": 0},
            "headroom_bytes": {"type": "int", "default": 0},
            "trust": {"type": "str", "choices": ["recorded", "nothing"], "default": "recorded"},
            "repository": {"type": "str"},
            "revision": {"type": "str"},
        },
        supports_check_mode=True,
    )
    record = publisher.Record()
    node, path, source = module.params["node"], module.params["path"], module.params["source_node"]
    present, made, findings = weights.look(path, node)
    if not source or (node == source and not present):
        findings.append(weights.missing(node, [path], module.params["repository"], module.params["revision"]))
    elif node == source:
        findings += weights.completeness(path, made, node)
        record = publisher.read(path, made)
        findings += publisher.revision_findings(path, record, module.params["revision"], node)
    else:
        # A target's own faults are put right by the copy.
        findings = []
        free = shutil.disk_usage(weights.existing_parent(path)).free
        short_of = max(0, module.params["bytes"] - made.bytes)
        findings += weights.room(node, path, short_of, free, module.params["headroom_bytes"])
    if present:
        findings += publisher.owner_findings(path, made, node, weights.owner_for(os.path.dirname(path)))
    known = made
    claimed: dict[str, str] = {}
    if module.params["trust"] != "nothing":
        known = weights.recall(path, made)
        # A target has to have read what it claims to have; the source's files are checked when they arrive elsewhere.
        claimed = publisher.claimed(known, record) if node == source else {}
        known = weights.with_hashes(known, claimed)
    if module.check_mode and known.unhashed():
        found = f"{len(known.unhashed())} files of {path} whose hash is not known yet"
        expected = "a hash for every file"
        findings.append(finding("NOT_PROVEN_IN_CHECK_MODE", node=node, found=found, expected=expected))
    finish(
        module,
        findings=findings,
        rankctl_sha256=jobs.installed_code(),
        weights={
            "path": path,
            "present": present,
            "files": len(known.files),
            "bytes": known.bytes,
            "unread": len(known.unhashed()),
            "claimed": len(claimed),
            "digest": known.digest() if present else None,
            "arriving": weights.arriving(path),
            "manifest": known.as_data(),
        },
    )


if __name__ == "__main__":
    main()
