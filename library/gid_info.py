#!/usr/bin/python
"""Resolve the RoCE v2 IPv4 GID of every rail from sysfs."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.netplan import read_devices
from ansible.module_utils.spark.parse.rdma import read_devices as read_rdma
from ansible.module_utils.spark.runner import run
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
module: gid_info
short_description: Resolve the RoCE v2 GID of each rail
description:
  - Reads the GID tables from sysfs and names, for each rail, the one RoCE v2 entry of the rail's own IPv4 address.
  - With I(address_range), holds NCCL's own choice against it.
options:
  node: {description: Name of the node in findings., type: str, required: true}
  rails: {description: The node's rails as the plan has them., type: list, elements: dict, required: true}
  address_range: {description: The one network in which NCCL looks for its entries., type: str, default: ""}
  transport: {description: What the rails carry., type: str, choices: [rdma, tcp], default: rdma}
"""

EXAMPLES = r"""
- name: Resolve the GIDs
  gid_info:
    node: spark-01
    rails: "{{ me.rails }}"
    address_range: 192.168.200.0/23
"""

RETURN = r"""
measurements: {description: C(gids) has rail, rdma_device, port, index and gid of each rail., type: dict, returned:
always}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
            "address_range": {"type": "str", "default": ""},
            "transport": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
        },
        supports_check_mode=True,
    )
    node, rails = module.params["node"], module.params["rails"]
    if module.params["transport"] == "tcp":
        reason = finding(
            "GID_NOT_APPLICABLE",
            node=node,
            found="fabric_transport is tcp",
            expected="GIDs only where RDMA is used",
        )
        finish(module, findings=[reason], measurements={"gids": []})
    if module.check_mode:
        devices = read_devices(run)
        unset = [r for r in rails if not any(a.split("/")[0] == r["address"] for a in addresses(devices, r["netdev"]))]
        if unset:
            unproven = finding(
                "NOT_PROVEN_IN_CHECK_MODE",
                node=node,
                found=f"{', '.join(rail['address'] for rail in unset)} not set yet, so there is no GID of it",
                expected="one RoCE v2 GID for each rail",
            )
            finish(module, findings=[unproven], measurements={"gids": []})
    resolved, found = gids.wait(read_rdma, rails, node)
    if module.params["address_range"]:
        found += gids.by_rule(read_rdma(), resolved, module.params["address_range"], node)
    finish(module, findings=found, measurements={"gids": [item.as_dict() for item in resolved]})


def addresses(devices: dict, netdev: str) -> tuple:
    return devices[netdev].addresses if netdev in devices else ()


if __name__ == "__main__":
    main()
