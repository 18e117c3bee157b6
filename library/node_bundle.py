#!/usr/bin/python
"""Install the launcher's files and this node's plan; the action plugin of the same name brings the contents."""

from __future__ import annotations

import base64
import zlib

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import bundle, install
from ansible.module_utils.spark.rank import HERE, sha256
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: node_bundle
short_description: Install the files that are the same on every node, and the node's own plan
description:
  - Compares by SHA-256 first; contents cross the network only for files that differ, so that a run with nothing to do
    is one small execution.
  - A file that differs from the manifest it was installed with was edited on the node. It is named with both hashes and
    nothing is written, unless O(restore) is set; then the edited copy is kept in C(/var/lib/spark-cluster/backup).
  - Files are written to a temporary name, synced and renamed, the manifest last.
  - systemd is told of a changed unit file, but never while the rank runs.
options:
  node:
    description: Name of the node, for findings.
    type: str
    required: true
  files:
    description: The files, each with C(path), C(mode) and C(sha256); the action plugin also takes C(source), a path
    on the controller.
    type: list
    elements: dict
    required: true
  plan:
    description: The node's plan, written to C(/etc/spark-cluster/plan.json) with mode 0600. Left alone if not given.
    type: dict
  restore:
    description: Replace files that were edited on the node.
    type: bool
    default: false
  contents:
    description: Compressed contents by path, filled in by the action plugin.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Compares and predicts, writes nothing.
    support: full
  diff_mode:
    description: Text files as text, archives by their hash.
    support: full
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Install the launcher
  node_bundle:
    node: "{{ me.node }}"
    files: "{{ cluster.bundle.files }}"
    plan: "{{ me.serving.plan_file }}"
"""

RETURN = r"""
installed:
  description: SHA-256 of every wanted file as it lies on the node now, null where there is none.
  returned: always
  type: dict
need:
  description: Paths whose contents the module was not given; nothing was written.
  returned: always
  type: list
  elements: str
"""


def wanted_files(params: dict) -> list[install.Wanted]:
    contents = {path: zlib.decompress(base64.b64decode(text)) for path, text in params["contents"].items()}
    wanted = [
        install.Wanted(item["path"], item["mode"], item["sha256"], contents.get(item["path"]))
        for item in params["files"]
    ]
    if params["plan"]:
        wanted.append(install.plan_file(params["plan"]))
    return wanted


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "dict", "required": True},
            "plan": {"type": "dict"},
            "restore": {"type": "bool", "default": False},
            "contents": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    node = module.params["node"]
    wanted = wanted_files(module.params)
    decision = install.decide(wanted)
    said = install.refusals(decision, node, restore=module.params["restore"])
    need = [] if said else decision.needed
    diff = install.diffs(decision) if module._diff and not need else []
    if not said and not need and not module.check_mode and decision.changed:
        said = install.apply(decision, node)
        unit_written = any(item.path == bundle.UNIT for item in decision.write)
        if unit_written and run(["systemctl", "is-active", "--quiet", bundle.UNIT_NAME]).rc != 0:
            run(["systemctl", "daemon-reload"], timeout_s=60, check=True)
    finish(
        module,
        changed=decision.changed,
        findings=said,
        diff=diff,
        need=need,
        installed={item.path: sha256(HERE.path(item.path)) for item in wanted},
    )


if __name__ == "__main__":
    main()
