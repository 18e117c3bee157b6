"""Addresses and routes: ``ip -j addr``, ``ip -j route`` and /proc/net/route."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .whole import records

if TYPE_CHECKING:
    from ..facts import RouteFacts

Read = TypeVar("Read")


@dataclass(frozen=True)
class Link:
    """One interface; ``addresses`` are its IPv4 addresses with prefix, link-local ones included."""

    name: str
    mac: str
    operstate: str
    carrier: bool
    mtu: int
    master: str | None
    addresses: tuple[str, ...]
    admin_up: bool = False


def parse_addr(text: str) -> list[Link]:
    """``ip -j addr`` or ``ip -j link``. Raises ValueError for anything else."""
    # ip prints an empty object for what it filtered out.
    return _each(_link, (link for link in records(text) if "ifname" in link))


def _link(link: Mapping[str, Any]) -> Link:
    flags = link.get("flags", ())
    return Link(
        name=str(link["ifname"]),
        mac=str(link.get("address", "")),
        operstate=str(link.get("operstate", "UNKNOWN")).lower(),
        carrier="LOWER_UP" in flags,
        mtu=int(link.get("mtu", 0)),
        master=link.get("master"),
        addresses=tuple(
            f"{entry['local']}/{entry['prefixlen']}"
            for entry in link.get("addr_info", ())
            if entry.get("family") == "inet"
        ),
        admin_up="UP" in flags,
    )


def parse_routes(text: str) -> list[RouteFacts]:
    """``ip -j route``, without the local table and what leads nowhere. Raises ValueError for anything else."""
    told = (route for route in records(text) if "dst" in route and route.get("table") != "local")
    return _each(_route, (route for route in told if route.get("type", "unicast") == "unicast"))


def _route(route: Mapping[str, Any]) -> RouteFacts:
    return {
        "dst": str(route["dst"]),
        "dev": str(route.get("dev", "")),
        "gateway": route.get("gateway"),
        "metric": int(route.get("metric", 0)),
    }


def _each(read: Callable[[Mapping[str, Any]], Read], items: Iterable[Mapping[str, Any]]) -> list[Read]:
    """Every record as what it means; a field of another kind than ip's is a ValueError like any other."""
    try:
        return [read(item) for item in items]
    except (AttributeError, KeyError, OverflowError, TypeError) as wrong:
        raise ValueError(f"not what ip prints: {wrong}") from wrong


def parse_proc_route(text: str) -> list[RouteFacts]:
    """/proc/net/route: the IPv4 main table, at the price of no process. Damaged lines are skipped."""
    routes: list[RouteFacts] = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            dst, gateway, metric = _address(fields[1]), _address(fields[2]), int(fields[6])
            length = int(fields[7], 16).bit_count()
        except (IndexError, ValueError, OSError):
            continue
        routes.append(
            {
                "dst": f"{dst}/{length}" if length else "default",
                "dev": fields[0],
                "gateway": gateway if int(fields[2], 16) else None,
                "metric": metric,
            }
        )
    return routes


def _address(field: str) -> str:
    """The kernel prints an address as one little-endian number."""
    return socket.inet_ntoa(bytes.fromhex(field)[::-1])
