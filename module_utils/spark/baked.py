"""Variables that an image brings along and that would speak against the plan. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# What chooses devices, GIDs, addresses, transports or ranks; where an image brings it along it was right for somebody
# else's machines. Tuning is not among it: an image may know better than we do how many channels its NCCL wants.
FABRIC_NAME = re.compile(
    r"NCCL_IB_(HCA|GID_INDEX|DISABLE|ADDR_.*|ROCE_.*)|"
    r"NCCL_(NET|COMM_ID|HOSTID|CONF_FILE|TOPO_FILE|GRAPH_FILE|SOCKET_FAMILY)|"
    r"UCX_(NET_DEVICES|TLS|IB_(GID_INDEX|ADDR_TYPE|ROCE_.*))|"
    r"GLOO_DEVICE_.*|.*_SOCKET_IFNAME|TP_SOCKET_.*|"
    r"VLLM_HOST_IP|MASTER_(ADDR|PORT)|(NODE_|LOCAL_)?RANK|WORLD_SIZE"
)


def contradicting(entries: Iterable[object]) -> dict[str, str]:
    """Those of an image's ``NAME=value`` entries, by name."""
    pairs = (str(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in sorted(pairs) if FABRIC_NAME.fullmatch(name)}


def told(found: Mapping[str, str], planned: Mapping[str, str]) -> tuple[str, ...]:
    """What becomes of each, one line a name; those that say what the plan says are left out."""
    lines = []
    for name, value in found.items():
        if name not in planned:
            lines.append(f"{name}={value} of the image: removed")
        elif planned[name] != value:
            lines.append(f"{name}={value} of the image: {planned[name]}")
    return tuple(lines)
