"""The network functions of a node that could carry a rail, and the QSFP ports that they belong to. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]
Port = tuple[int, int, int]

# systemd's name of a ConnectX function: en, P and the PCIe domain unless that is 0, then bus, slot, function and port.
FUNCTION_NAME = re.compile(r"en(?:P(?P<domain>\d+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d+)np(?P<port>\d+)")
PCI_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})\.(?P<function>[0-7])", re.I
)
CONNECTX_DRIVER = "mlx5_core"


@dataclass(frozen=True)
class Function:
    """A network function that could carry a rail.

    Functions of one QSFP port share ``port`` and differ in ``domain``.
    """

    netdev: str
    port: Port
    domain: int
    facts: Facts = field(compare=False)

    @property
    def carrier(self) -> bool:
        return bool(self.facts.get("carrier"))

    @property
    def speaks(self) -> bool:
        """Whether a frame sent here can arrive anywhere."""
        return bool(self.facts.get("admin_up")) and self.carrier and not self.facts.get("master")

    @property
    def addresses(self) -> list[ipaddress.IPv4Interface]:
        """Those that somebody chose; a link-local one only says that nobody did."""
        given = (ipaddress.IPv4Interface(text) for text in self.facts.get("addresses", ()))
        return [address for address in given if not address.ip.is_link_local]

    def holds(self, addresses: Sequence[str]) -> bool:
        return bool(set(addresses) & set(self.facts.get("addresses", ())))


def functions_of(facts: Facts, named: Sequence[str] = (), *, management_address: str = "") -> list[Function]:
    """Those that the inventory names, in its order and also where the node does not show them; else all of them.

    A function that carries the default route or the operator's own connection is no candidate unless it is named.
    """
    devices = {str(device["name"]): device for device in facts.get("netdevs", ())}
    if named:
        return [_named(name, index, devices.get(name, {})) for index, name in enumerate(named)]
    taken = {str(route.get("dev")) for route in facts.get("default_routes", ())}
    return [
        function
        for function in filter(None, map(function_of, devices.values()))
        if function.netdev not in taken and not any(str(own.ip) == management_address for own in function.addresses)
    ]


def _named(name: str, index: int, facts: Facts) -> Function:
    found = function_of({**facts, "name": name})
    return Function(name, found.port, found.domain, facts) if found else Function(name, (-1, -1, -1), index, facts)


def function_of(device: Facts) -> Function | None:
    name, pci = str(device["name"]), str(device.get("pci") or "")
    by_name = FUNCTION_NAME.fullmatch(name)
    if by_name:
        number = {key: int(value or 0) for key, value in by_name.groupdict().items()}
        return Function(name, (number["bus"], number["slot"], number["function"]), number["domain"], device)
    by_pci = PCI_ADDRESS.fullmatch(pci)
    if by_pci and device.get("driver") == CONNECTX_DRIVER:
        number = {key: int(value, 16) for key, value in by_pci.groupdict().items()}
        return Function(name, (number["bus"], number["slot"], number["function"]), number["domain"], device)
    return None


def ports_of(functions: Collection[Function]) -> dict[Port, list[Function]]:
    """The functions by the port that they sit behind, twins in the order of their PCIe domains."""
    ports: dict[Port, list[Function]] = {}
    for function in sorted(functions, key=lambda one: (one.port, one.domain)):
        ports.setdefault(function.port, []).append(function)
    return ports


def source_of(facts: Facts, netdev: str) -> str | None:
    """Whose lasting configuration an interface has, None where it is ours or nobody's."""
    files = facts.get("netplan", {}).get("files", ())
    if any(file["class"] == "ours" and netdev in file.get("netdevs", ()) for file in files):
        return None
    for file in files:
        if file["class"] == "yaml" and netdev in file.get("netdevs", ()):
            return str(file["path"])
    for profile in facts.get("networkmanager", {}).get("profiles", ()):
        if profile["lasting"] and profile["device"] == netdev:
            return str(profile["file"])
    return networkd_file(facts, netdev)


def networkd_file(facts: Facts, netdev: str) -> str | None:
    """The file by which systemd-networkd configures an interface: the first by name that matches.

    One whose name comes after that of netplan's own would not count once netplan has one.
    """
    networkd = facts.get("networkd", {})
    if not networkd.get("running"):
        return None
    matching = [file["path"] for file in networkd.get("files", ()) if netdev in file["netdevs"]]
    before = [path for path in matching if path.rpartition("/")[2] < f"10-netplan-{netdev}.network"]
    return str(min(before, key=lambda path: path.rpartition("/")[2])) if before else None
