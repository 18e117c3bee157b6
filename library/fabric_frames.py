#!/usr/bin/python
"""Frames between the nodes: what the facts of single nodes cannot tell."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark.frames import Ask, run_exchange
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: fabric_frames
short_description: Learn which functions of the nodes share a cable, and whether planned addresses are free
description:
  - Sends a few broadcast frames of EtherType 0x88B5 from each function, which name cluster, node and function, and
    listens for those of the peers until every peer was heard and has heard this node.
  - Asks for each planned address with ARP probes that carry no sender's address.
  - Changes nothing, so it does the same in check mode. It has to run on all nodes of a cluster at the same time.
options:
  cluster:
    description: Name of the cluster; frames of others are ignored.
    type: str
    required: true
  node:
    description: Name of this node.
    type: str
    required: true
  peers:
    description: Names of the other nodes.
    type: list
    elements: str
    required: true
  netdevs:
    description: The functions to speak and listen on. They must be switched on.
    type: list
    elements: str
    required: true
  addresses:
    description: Addresses that nobody else may answer for.
    type: list
    elements: str
    default: []
  limit_s:
    description: Seconds after which to stop, though a peer is silent.
    type: int
    default: 20
attributes:
  check_mode:
    description: Frames change nothing, so check mode is the same.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Ask the wire
  fabric_frames:
    cluster: pair_a
    node: spark-01
    peers: [spark-02]
    netdevs: [enp1s0f0np0, enP2p1s0f0np0]
    addresses: [192.168.200.12, 192.168.201.12]
"""

RETURN = r"""
wire:
  description: What was heard on which function, who answered for which address, and whether all peers were met.
  returned: always
  type: dict
measurements:
  description: How long it took.
  returned: always
  type: dict
findings:
  description: Always empty; judging takes what all nodes heard.
  returned: always
  type: list
  elements: dict
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "str", "required": True},
            "netdevs": {"type": "list", "elements": "str", "required": True},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "limit_s": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    asked = module.params
    report = run_exchange(
        Ask(
            cluster=asked["cluster"],
            node=asked["node"],
            peers=tuple(asked["peers"]),
            netdevs=tuple(asked["netdevs"]),
            addresses=tuple(asked["addresses"]),
            limit_s=asked["limit_s"],
        )
    )
    finish(module, wire=report.as_dict(), measurements={"fabric_frames_s": round(report.spent_s, 3)})


if __name__ == "__main__":
    main()
