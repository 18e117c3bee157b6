#!/usr/bin/python
"""Which image a node has for a reference, by what decides whether two are the same."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import images, jobs
from ansible.module_utils.spark.image_daemon import Daemon, DaemonError, silent
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: image_info
short_description: Look at a container image
description:
  - Returns what identifies the image, registry digests first, and one hash over layers, configuration and architecture.
    C(Id) is shown and decides nothing.
  - Where no node has the image and it is pinned, asks its registry through this node's Docker, fetching nothing,
    whether it would give it.
options:
  node:
    description: Name of this node.
    type: str
    required: true
  reference:
    description: Reference of the image.
    type: str
    required: true
  source_node:
    description: Node from which the image is copied, empty if no node has it.
    type: str
    default: ""
  digest:
    description: Digest by which the image may be pulled where no node has it, empty for none.
    type: str
    default: ""
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
- name: Look at the image
  image_info:
    node: "{{ me.node }}"
    reference: "{{ cluster.serving.image.reference }}"
"""

RETURN = r"""
image:
  description: Whether it is C(present), and its C(digests), C(content), C(layers), C(architecture), C(id) and C(name).
  returned: always
  type: dict
registry:
  description: Whether the registry C(answers) for the digest, and what was C(said); empty where it was not asked.
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
            "reference": {"type": "str", "required": True},
            "source_node": {"type": "str", "default": ""},
            "digest": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    node, reference = module.params["node"], module.params["reference"]
    source, digest = module.params["source_node"], module.params["digest"]
    daemon, image, findings = Daemon(), dict(images.ABSENT), []
    registry: dict[str, object] = {}
    try:
        images.split(reference)
        image = images.find(reference, daemon.image) or image
        if not image["present"] and not source and digest:
            registry = images.registry_answer(reference, digest, daemon.answered_for)
    except ValueError as error:
        module.fail_json(msg=str(error))
    except DaemonError as error:
        findings.append(silent(error, node))
    if not image["present"] and not findings and (node == source or (not source and not digest)):
        findings.append(images.unavailable(reference, digest or None, node))
    unproven = images.unproven(reference, image, node)
    findings += [unproven] if unproven else []
    rankctl = jobs.installed_code()
    finish(module, findings=findings, image=image, registry=registry, rankctl_sha256=rankctl)


if __name__ == "__main__":
    main()
