"""``ethtool DEV``, ``-i``, ``-S`` and ``-m``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .whole import whole


@dataclass(frozen=True)
class EthtoolLink:
    """``speed_mbps`` is None where the driver does not know one, as on any interface without a link."""

    speed_mbps: int | None
    link_detected: bool | None
    autonegotiation: bool | None
    lanes: int | None = None


@dataclass(frozen=True)
class EthtoolDriver:
    driver: str
    firmware: str
    bus_info: str


def parse_link(text: str) -> EthtoolLink:
    fields = _fields(text)
    speed = re.fullmatch(r"(\d{1,9})Mb/s", fields.get("Speed", ""))
    return EthtoolLink(
        speed_mbps=int(speed[1]) if speed else None,
        link_detected=_switch(fields.get("Link detected"), "yes", "no"),
        autonegotiation=_switch(fields.get("Auto-negotiation"), "on", "off"),
        lanes=whole(fields.get("Lanes")),
    )


def parse_driver(text: str) -> EthtoolDriver:
    fields = _fields(text)
    return EthtoolDriver(fields.get("driver", ""), fields.get("firmware-version", ""), fields.get("bus-info", ""))


def parse_counters(text: str) -> dict[str, int]:
    """Counters by name, as integers: they pass 2**53, where a float loses the low bits, within days at this rate."""
    return {name: count for name, value in _fields(text).items() if (count := whole(value)) is not None}


def parse_module(text: str) -> dict[str, str]:
    """What a cable or transceiver says about itself, as far as it does: ``vendor``, ``part``, ``serial`` and so on."""
    names = {
        "Identifier": "identifier",
        "Connector": "connector",
        "Transceiver type": "type",
        "Vendor name": "vendor",
        "Vendor PN": "part",
        "Vendor rev": "revision",
        "Vendor SN": "serial",
    }
    fields = _fields(text)
    return {ours: fields[theirs] for theirs, ours in names.items() if fields.get(theirs)}


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _switch(value: str | None, on: str, off: str) -> bool | None:
    return {on: True, off: False}.get(value or "")
