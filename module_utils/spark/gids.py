"""Which GID a rail uses: the one RoCE v2 entry of the rail's own IPv4 address, whatever its index is today."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .facts import RdmaDeviceFacts
from .findings import Finding, finding

ROCE_V2 = "RoCE v2"
# Entries appear a moment after the address does.
PATIENCE_S = 8.0


@dataclass(frozen=True)
class Resolved:
    rail: int
    netdev: str
    rdma_device: str
    port: int
    index: int
    gid: str
    address: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def mapped(address: str) -> str:
    """The GID of an IPv4 address, as sysfs writes it. From Python 3.13 on ipaddress would write its tail dotted."""
    tail = ipaddress.IPv4Address(address).packed.hex()
    return f"0000:0000:0000:0000:0000:ffff:{tail[:4]}:{tail[4:]}"


def resolve(
    devices: Sequence[RdmaDeviceFacts], rails: Sequence[Mapping[str, Any]], node: str
) -> tuple[list[Resolved], list[Finding]]:
    """One GID per rail, and a finding for each rail that has none or several."""
    resolved: list[Resolved] = []
    found: list[Finding] = []
    for rail in rails:
        netdev, address = rail["netdev"], rail["address"]
        expected = rail.get("rdma_device")
        device = next(
            (item for item in devices if (item["name"] == expected if expected else item["netdev"] == netdev)), None
        )
        if device is None:
            found.append(
                finding(
                    "RDMA_DEVICE_MISSING",
                    node=node,
                    found=f"no RDMA device {expected or f'for {netdev}'}",
                    expected=f"an RDMA device for rail {rail['rail']}",
                    evidence=(f"devices: {', '.join(item['name'] for item in devices) or 'none'}",),
                )
            )
            continue
        wanted = mapped(address)
        matching = [
            gid
            for gid in device["gids"]
            if gid["gid"].lower() == wanted and gid["type"] == ROCE_V2 and gid["netdev"] == netdev
        ]
        if len(matching) == 1:
            gid = matching[0]
            resolved.append(
                Resolved(rail["rail"], netdev, device["name"], device["port"], gid["index"], gid["gid"], address)
            )
            continue
        table = tuple(f"{gid['index']}: {gid['gid']} {gid['type']} {gid['netdev']}" for gid in device["gids"])
        found.append(
            finding(
                "GID_AMBIGUOUS" if matching else "GID_MISSING",
                node=node,
                found=f"{len(matching)} entries of {device['name']} are {ROCE_V2} for {address} on {netdev}",
                expected=f"exactly one: {wanted}",
                evidence=table or (f"the table of {device['name']} is empty",),
                netdev=netdev,
                address=address,
            )
        )
    return resolved, found


def wait(
    read: Callable[[], Sequence[RdmaDeviceFacts]],
    rails: Sequence[Mapping[str, Any]],
    node: str,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[Resolved], list[Finding]]:
    """Resolve, and give entries that are still being made some time to appear."""
    until = clock() + patience_s
    while True:
        resolved, found = resolve(read(), rails, node)
        if not any(item.code in ("GID_MISSING", "RDMA_DEVICE_MISSING") for item in found) or clock() >= until:
            return resolved, found
        sleep(0.5)
