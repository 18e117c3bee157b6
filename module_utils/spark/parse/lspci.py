"""PCIe link capability and status from ``lspci -D -vv``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_SLOT = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)$")
_LINK = re.compile(
    r"Lnk(?P<which>Cap|Sta):.*?Speed (?P<speed>\d{1,4}(?:\.\d{1,3})?)GT/s.*?Width x(?P<width>\d{1,3})(?!\d)"
)


@dataclass(frozen=True)
class PcieLink:
    """What the slot could do and what was negotiated. None means that lspci would not say: it needs root."""

    address: str
    description: str
    capable_gts: float | None = None
    capable_width: int | None = None
    speed_gts: float | None = None
    width: int | None = None

    @property
    def degraded(self) -> bool | None:
        """Whether the link runs below what both its ends can do; None when that is not known."""
        if None in (self.capable_gts, self.capable_width, self.speed_gts, self.width):
            return None
        return (self.speed_gts, self.width) != (self.capable_gts, self.capable_width)


def parse_links(text: str) -> list[PcieLink]:
    """One entry per device, with links where the device has one."""
    devices: list[PcieLink] = []
    for line in text.splitlines():
        slot = _SLOT.match(line)
        link = _LINK.search(line)
        if slot:
            address = slot[1] if slot[1].count(":") == 2 else f"0000:{slot[1]}"
            devices.append(PcieLink(address, slot[2]))
        elif link and devices:
            speed, width = float(link["speed"]), int(link["width"])
            if link["which"] == "Cap":
                devices[-1] = replace(devices[-1], capable_gts=speed, capable_width=width)
            else:
                devices[-1] = replace(devices[-1], speed_gts=speed, width=width)
    return devices
