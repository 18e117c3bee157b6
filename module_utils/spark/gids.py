"""Which GID a rail uses: the one RoCE v2 entry of the rail's own IPv4 address, whatever its index is today."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .facts import GidFacts, RdmaDeviceFacts
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


def unmapped(gid: str) -> ipaddress.IPv4Address | None:
    """The IPv4 address of a GID, None where it is none."""
    head, _, tail = gid.lower().rpartition(":ffff:")
    parts = tail.split(":")
    if set(head) - set("0:") or not head or not re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", tail):
        return None
    return ipaddress.IPv4Address(int(parts[0], 16) << 16 | int(parts[1], 16))


def _shown(table: Iterable[GidFacts]) -> tuple[str, ...]:
    return tuple(f"{gid['index']}: {gid['gid']} {gid['type']} {gid['netdev']}" for gid in table)


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
        found.append(
            finding(
                "GID_AMBIGUOUS" if matching else "GID_MISSING",
                node=node,
                found=f"{len(matching)} entries of {device['name']} are {ROCE_V2} for {address} on {netdev}",
                expected=f"exactly one: {wanted}",
                evidence=_shown(device["gids"]) or (f"the table of {device['name']} is empty",),
                netdev=netdev,
                address=address,
            )
        )
    return resolved, found


def nccl_choice(table: Iterable[GidFacts], address_range: str, version: str = ROCE_V2) -> int:
    """The index that NCCL 2.21 or newer would take by family AF_INET, ``address_range`` and RoCE version.

    It begins with index 0. An entry of the range replaces one of the other family whatever its version, and after that
    only one of another version that is the wanted one. So 0 stays where no entry lies in the range, and also where 0 is
    an IPv4 entry of the wanted version itself, be it outside of the range.
    """
    network = ipaddress.IPv4Network(address_range)
    entries = sorted(table, key=lambda entry: entry["index"])
    chosen: GidFacts | None = next((entry for entry in entries if entry["index"] == 0), None)
    for entry in entries:
        address = unmapped(entry["gid"])
        if entry["index"] == 0 or address is None or address not in network:
            continue
        if chosen is None or unmapped(chosen["gid"]) is None or (chosen["type"] != entry["type"] == version):
            chosen = entry
    return chosen["index"] if chosen else 0


def by_rule(
    devices: Sequence[RdmaDeviceFacts], resolved: Iterable[Resolved], address_range: str | None, node: str
) -> list[Finding]:
    """Whether NCCL's own rule arrives at the resolved entries; it does not warn where it does not."""
    tables = {device["name"]: device["gids"] for device in devices}
    found = []
    for item in resolved if address_range else ():
        table = tables.get(item.rdma_device, [])
        choice = nccl_choice(table, str(address_range))
        if choice != item.index:
            found.append(
                outside(
                    node,
                    item.rdma_device,
                    item.netdev,
                    str(address_range),
                    f"of {item.rdma_device} NCCL would take index {choice}, and {item.address} is index {item.index}",
                    _shown(table),
                )
            )
    return found


def outside(
    node: str, device: str, netdev: str, address_range: str, found: str, evidence: Iterable[str] = ()
) -> Finding:
    return finding(
        "GID_OUTSIDE_RANGE",
        node=node,
        found=found,
        expected=f"every device of NCCL_IB_HCA with one IPv4 entry inside {address_range}",
        evidence=evidence,
        device=device,
        netdev=netdev,
        range=address_range,
    )


def drift(planned: Iterable[Mapping[str, Any]], resolved: Iterable[Resolved], node: str) -> list[Finding]:
    """Which indexes are not those that the plan saw; ``index`` is missing or None where it saw none."""
    seen = {str(item["rdma_device"]): item.get("index") for item in planned}
    moved = [item for item in resolved if seen.get(item.rdma_device) not in (None, item.index)]
    if not moved:
        return []
    return [
        finding(
            "GID_DRIFTED",
            node=node,
            found=", ".join(f"{item.rdma_device}: index {item.index}" for item in moved),
            expected=", ".join(f"{item.rdma_device}: index {seen[item.rdma_device]}, as planned" for item in moved),
            evidence=[f"{item.gid} is {item.address} on {item.netdev}" for item in moved],
        )
    ]


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
