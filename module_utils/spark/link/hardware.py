"""What is under a link: PCIe, negotiated speed, port state, the cable's own words, and what happened since boot.

``read`` looks, ``judge`` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..findings import Finding, finding
from ..parse.ethtool import parse_module
from ..parse.lspci import parse_links
from .run import Place, speed_of
from .verdict import FULL_SPEED_MBPS

# A ConnectX function of a Spark has four lanes of PCIe 5: 126 Gb/s, which a stream of 112 needs.
LANES, GTS = 4, 32.0
POWER_LINE = "Detected insufficient power on the PCIe slot"
# The vendor's list of tested cables.
KNOWN_CABLES = frozenset({"NJAAKK0006", "LMTQF022-SD-R"})
# A cable that is there at boot is announced within its first minutes.
BOOT_S = 120
_EVENT = re.compile(r"Cable (?:un)?plug\w*|Link (?:DOWN|ACTIVE)", re.IGNORECASE)
_STAMP = re.compile(r"^\[\s*(\d{1,12})\.\d+\]\s*")
_PORT = re.compile(r"f\d+np\d+$")


def read(place: Place, rails: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything about the rails' hardware that does not depend on traffic; None where the machine has no answer."""
    links = {
        link.address: asdict(link) for link in parse_links(place.said(["lspci", "-D", "-vv", "-d", "15b3:"]) or "")
    }
    modules: dict[str, dict[str, str]] = {}
    found = []
    for rail in rails:
        netdev = str(rail["netdev"])
        # Both functions of a port see the same cable.
        socket = match[0] if (match := _PORT.search(netdev)) else netdev
        if socket not in modules:
            modules[socket] = parse_module(place.said(["ethtool", "-m", netdev]) or "")
        found.append(
            {
                "rail": rail["rail"],
                "netdev": netdev,
                "rdma_device": rail.get("rdma_device"),
                "speed_mbps": speed_of(place, netdev),
                "port_state": _state(place, rail.get("rdma_device")),
                "pcie": links.get(str(rail.get("pci") or "")),
                "cable": modules[socket] or None,
            }
        )
    return {"rails": found, **kernel(place.said(["dmesg"]) or "")}


def _state(place: Place, device: str | None) -> str | None:
    if not device:
        return None
    ports = place.root / "sys/class/infiniband" / device / "ports"
    try:
        return next(iter(sorted(ports.iterdir()))).joinpath("state").read_text().strip().rpartition(": ")[2]
    except (OSError, StopIteration):
        return None


def kernel(log: str) -> dict[str, Any]:
    """Lines of the kernel log: cables that came and went after boot, and the power line."""
    events: list[str] = []
    power: list[str] = []
    for line in log.splitlines():
        stamp = _STAMP.match(line)
        if POWER_LINE in line:
            power.append(line.strip())
        elif ("mlx5" in line or "hotplug" in line) and _EVENT.search(line) and stamp and int(stamp[1]) > BOOT_S:
            events.append(line.strip())
    return {"cable_events": events[-20:], "power_lines": power[:2]}


def judge(node: str, hardware: Mapping[str, Any], *, transport: str = "rdma") -> list[Finding]:
    """What of it is a fault by itself, and what is worth a note."""
    found: list[Finding] = []
    for rail in hardware["rails"]:
        found += _pcie(node, rail)
        if transport == "rdma":
            found += _port(node, rail)
    cables = {(c.get("vendor", ""), c.get("part", "")) for c in (r["cable"] for r in hardware["rails"]) if c}
    found += [
        finding(
            "LINK_CABLE_UNKNOWN",
            node=node,
            found=f"{vendor or 'a maker that it does not name'}, {part}",
            expected=f"one of {', '.join(sorted(KNOWN_CABLES))}, or any other that carries the rate",
        )
        for vendor, part in sorted(cables)
        if part and part not in KNOWN_CABLES
    ]
    if hardware["cable_events"]:
        found.append(_note("LINK_REPLUGGED", node, hardware["cable_events"], "events", "no cable moved since boot"))
    if hardware["power_lines"]:
        expected = "nothing that decides anything"
        found.append(_note("LINK_POWER_LINE", node, hardware["power_lines"], "lines in the kernel log", expected))
    return found


def evidence(hardware: Mapping[str, Any]) -> tuple[str, ...]:
    """What explains a slow link, or rules an explanation out."""
    lines = [f"since boot: {line}" for line in hardware["cable_events"][-2:]]
    for rail in hardware.get("rails", ()):
        pcie = rail["pcie"]
        if pcie and pcie["width"]:
            lines.append(f"{rail['netdev']}: PCIe {pcie['speed_gts']:g} GT/s x{pcie['width']}")
    return tuple(lines)


def _pcie(node: str, rail: Mapping[str, Any]) -> Iterable[Finding]:
    pcie = rail["pcie"]
    if not pcie or pcie["width"] is None or pcie["speed_gts"] is None:
        return
    if pcie["width"] < LANES or pcie["speed_gts"] < GTS:
        yield finding(
            "LINK_PCIE_SLOW",
            node=node,
            found=f"{rail['netdev']} ({pcie['address']}): {pcie['speed_gts']:g} GT/s, width x{pcie['width']}",
            expected=f"{GTS:g} GT/s, width x{LANES}",
            evidence=(f"the slot can do {pcie['capable_gts']} GT/s, width x{pcie['capable_width']}",),
            address=pcie["address"],
        )


def _port(node: str, rail: Mapping[str, Any]) -> Iterable[Finding]:
    state, speed = rail["port_state"], rail["speed_mbps"]
    if state is not None and state != "ACTIVE":
        yield finding(
            "LINK_PORT_DOWN",
            node=node,
            found=f"port of {rail['rdma_device']} is {state}",
            expected="ACTIVE",
            netdev=rail["netdev"],
        )
    elif speed is not None and speed < FULL_SPEED_MBPS:
        yield finding(
            "LINK_SPEED_LOW",
            node=node,
            found=f"{rail['netdev']} negotiated {speed} Mb/s",
            expected=f"{FULL_SPEED_MBPS} Mb/s",
            netdev=rail["netdev"],
        )


def _note(code: str, node: str, lines: Sequence[str], what: str, expected: str) -> Finding:
    return finding(code, node=node, found=f"{len(lines)} {what}", expected=expected, evidence=lines[-4:])
