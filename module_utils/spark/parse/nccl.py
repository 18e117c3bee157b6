"""What NCCL says of itself with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET: which network it used, and of what.

Versions 2.21 to 2.28 and the IBext plugins say these lines; older ones lack those about virtual devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NETWORK = re.compile(r"NCCL INFO Using network (\S+)")
_PLUGIN = re.compile(r"NET/Plugin ?: Loaded (?:net|collnet) plugin (.+)")
_USING = re.compile(r"NET/(IB|Socket) : Using(?P<list>(?: \[\d+\][^\s;]+)*)")
_LISTED = re.compile(r"\[(\d{1,9})\]([^\s:]+)(?::(\d+))?(?:/(\w+))?")
_VIRTUAL = re.compile(r"Made virtual device \[(\d{1,9})\] name=(\S+)")
_CHANNEL = re.compile(r"Channel \d+/\d+ : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_OVER_NET = re.compile(r"NET/([\w-]+)/(\d{1,9})")
_GID = re.compile(r"IbDev (\d{1,9}) Port \d+ .*?\bGID (\d{1,9}) \(")
_TELLING = re.compile(r"NCCL WARN|NET/\w+ : No device found|Failed to initialize NET plugin|Using network")


@dataclass
class NcclLog:
    """``channels`` counts connections by the way they take, ``NET/IB`` or ``P2P/CUMEM``; ``hcas`` and ``interfaces``
    are what NCCL chose from, ``carried`` those of them that a channel goes over. ``gids`` has the index per device.
    """

    version: str | None = None
    network: str | None = None
    plugins: list[str] = field(default_factory=list)
    hcas: list[str] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=dict)
    carried: list[str] = field(default_factory=list)
    gids: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def transport(self) -> str | None:
        """The way between the nodes: that of the channels, else the network that NCCL announced, None if it said none.

        One channel over sockets makes it sockets.
        """
        ways = [way for way in self.channels if way.startswith("NET/")]
        if ways:
            return next((way for way in ways if _is_socket(way)), ways[0])
        return f"NET/{self.network}" if self.network else None

    @property
    def over_sockets(self) -> bool:
        return self.transport is not None and _is_socket(self.transport)


def _is_socket(way: str) -> bool:
    return way.startswith("NET/Socket")


def parse_log(lines: Iterable[str]) -> NcclLog:
    log = NcclLog()
    listed: dict[str, dict[int, str]] = {"IB": {}, "Socket": {}}
    virtual: dict[int, list[str]] = {}
    used: list[tuple[str, int]] = []
    for raw in lines:
        line = raw.strip()
        if found := _VERSION.search(line):
            log.version = found[1]
        elif found := _PLUGIN.search(line):
            _once(log.plugins, found[1].strip())
        elif found := _USING.search(line):
            listed[found[1]] |= {int(at): name for at, name, _port, _layer in _LISTED.findall(found["list"])}
        elif found := _VIRTUAL.search(line):
            virtual[int(found[1])] = found[2].split("+")
        elif found := _NETWORK.search(line):
            log.network = found[1]
        elif found := _CHANNEL.search(line):
            way = found[1]
            if over := _OVER_NET.match(way):
                used.append((over[1], int(over[2])))
                way = f"NET/{over[1]}"
            log.channels[way] = log.channels.get(way, 0) + 1
        elif found := _GID.search(line):
            name = listed["IB"].get(int(found[1]), f"device {found[1]}")
            log.gids[name] = int(found[2])
        if _TELLING.search(line):
            _once(log.lines, line)
    log.hcas, log.interfaces = list(listed["IB"].values()), list(listed["Socket"].values())
    for kind, at in used:
        one = listed["Socket"].get(at) if kind.startswith("Socket") else listed["IB"].get(at)
        names = [] if kind.startswith("Socket") else virtual.get(at, [])
        for name in names or ([one] if one else []):
            _once(log.carried, name)
    return log


def _once(known: list[str], item: str) -> None:
    if item not in known:
        known.append(item)
