"""Which functions of each node carry which rail, with which addresses, and the netplan file that says so. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..findings import Finding, finding
from .inventory import Cluster, Member
from .policy import Policy
from .types import NETPLAN_PATH, NetplanFile, Rail, RailSubnet

Facts = Mapping[str, Any]

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
    port: tuple[int, int, int]
    domain: int
    facts: Facts

    @property
    def carrier(self) -> bool:
        return bool(self.facts.get("carrier"))

    def holds(self, addresses: Sequence[str]) -> bool:
        return bool(set(addresses) & set(self.facts.get("addresses", ())))


@dataclass(frozen=True)
class NodeFabric:
    rails: list[Rail]
    renderer: str
    netplan: NetplanFile | None


@dataclass(frozen=True)
class Fabric:
    rails: list[RailSubnet]
    address_range: str | None
    nodes: dict[str, NodeFabric]
    findings: list[Finding]


def plan_fabric(cluster: Cluster, facts_by_node: Mapping[str, Facts]) -> Fabric:
    """Plan the rails of all members; one node alone has no fabric."""
    policy = cluster.policy
    if len(cluster.members) < 2:
        return Fabric([], None, {cluster.head.node: NodeFabric([], "", None)}, [])
    findings: list[Finding] = []
    functions: dict[str, list[Function]] = {}
    for member in cluster.members:
        wanted = [f"{address}/{prefix}" for address, prefix in _addresses(policy, member.rank)]
        chosen, unsure = choose_functions(facts_by_node.get(member.node, {}), member.netdevs, wanted)
        functions[member.node] = chosen
        if unsure:
            findings.append(
                finding(
                    "PORT_UNSURE",
                    node=member.node,
                    found=f"chose {', '.join(f.netdev for f in chosen)} because {unsure}",
                    expected="one port with a link",
                    example=", ".join(f.netdev for f in chosen),
                )
            )
    # A rail needs a function at every end, so the poorest node sets how many there are; one that has none at all is
    # a finding of its own and must not hide what the others could do.
    counts = [len(chosen) for chosen in functions.values() if chosen]
    width = min(counts, default=len(policy.fabric_subnets))
    subnets = policy.fabric_subnets[:width]
    nodes = {}
    for member in cluster.members:
        rails = _rails(cluster, member, functions, width)
        renderer = _renderer(policy, facts_by_node.get(member.node, {}))
        nodes[member.node] = NodeFabric(rails, renderer, netplan_file(member, rails, policy, renderer))
    address_range = covering_network(subnets)
    if policy.fabric_transport == "rdma" and _covers_more(address_range, subnets):
        findings.append(
            finding(
                "RANGE_UNPLANNED",
                node=cluster.name,
                found=f"{address_range} for {', '.join(subnets)}",
                expected="rails that fill one network",
            )
        )
    rail_subnets: list[RailSubnet] = [{"rail": rail, "subnet": subnet} for rail, subnet in enumerate(subnets)]
    return Fabric(rail_subnets, address_range, nodes, findings)


def choose_functions(facts: Facts, named: Sequence[str], wanted: Sequence[str]) -> tuple[list[Function], str]:
    """The functions of a node in the order of the rails, and why that was a guess (empty if it was none).

    Named ones are taken as they are named, also where the node does not show them. Otherwise the port counts that has
    the planned addresses already, or a link, or the most functions, in this order; its functions are ordered by PCIe
    domain unless their addresses say that the rails are the other way round.
    """
    devices = {str(device["name"]): device for device in facts.get("netdevs", ())}
    if named:
        return [Function(name, (0, 0, 0), index, devices.get(name, {})) for index, name in enumerate(named)], ""
    count = len(wanted)
    ports: dict[tuple[int, int, int], list[Function]] = {}
    for function in filter(None, (_function(device) for device in devices.values())):
        ports.setdefault(function.port, []).append(function)
    if not ports:
        return [], ""
    ranked = sorted(
        ports, key=lambda port: (*_merit(ports[port], wanted, count), *(-number for number in port)), reverse=True
    )
    best = ranked[0]
    unsure = ""
    if len(ranked) > 1 and _merit(ports[best], wanted, count) == _merit(ports[ranked[1]], wanted, count):
        other = ", ".join(function.netdev for function in ports[ranked[1]])
        linked = "has" if any(function.carrier for function in ports[best]) else "lacks"
        unsure = f"{other} {linked} a link as well"
    chosen = sorted(ports[best], key=lambda function: function.domain)[:count]
    return _as_addressed(chosen, wanted), unsure


def _merit(functions: Sequence[Function], wanted: Sequence[str], count: int) -> tuple[int, int, int]:
    return (
        sum(function.holds(wanted) for function in functions),
        sum(function.carrier for function in functions),
        min(len(functions), count),
    )


def _as_addressed(functions: list[Function], wanted: Sequence[str]) -> list[Function]:
    """Keep a right configuration whose rails are numbered the other way round."""
    placed: list[Function | None] = [
        next((function for function in functions if function.holds([address])), None)
        for address in wanted[: len(functions)]
    ]
    rest = [function for function in functions if function not in placed]
    return [function if function is not None else rest.pop(0) for function in placed]


def _function(device: Facts) -> Function | None:
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


def _addresses(policy: Policy, rank: int) -> list[tuple[str, int]]:
    placed = []
    for subnet in policy.fabric_subnets:
        network = ipaddress.IPv4Network(subnet)
        # A host number that leaves the subnet is refused by the policy; the plan is still shown.
        placed.append((str(network[(policy.fabric_first_host + rank) % network.num_addresses]), network.prefixlen))
    return placed


def _rails(cluster: Cluster, member: Member, functions: Mapping[str, list[Function]], width: int) -> list[Rail]:
    rails: list[Rail] = []
    for index, (address, prefix) in enumerate(_addresses(cluster.policy, member.rank)[:width]):
        if index >= len(functions[member.node]):
            break
        function = functions[member.node][index]
        rails.append(
            {
                "rail": index,
                "netdev": function.netdev,
                "rdma_device": function.facts.get("rdma_device"),
                "pci": function.facts.get("pci"),
                "address": address,
                "prefix": prefix,
                "peer_addresses": {
                    peer.node: _addresses(cluster.policy, peer.rank)[index][0]
                    for peer in cluster.members
                    if peer.node != member.node
                },
                "adopted": function.holds([f"{address}/{prefix}"]),
            }
        )
    return rails


def _renderer(policy: Policy, facts: Facts) -> str:
    if policy.fabric_renderer:
        return policy.fabric_renderer
    return "NetworkManager" if facts.get("networkmanager", {}).get("running") else "networkd"


def covering_network(subnets: Sequence[str]) -> str:
    """The smallest network in which all of them lie: NCCL takes one range for all devices."""
    networks = [ipaddress.IPv4Network(subnet) for subnet in subnets]
    cover = networks[0]
    while not all(network.subnet_of(cover) for network in networks):
        cover = cover.supernet()
    return str(cover)


def _covers_more(cover: str, subnets: Sequence[str]) -> bool:
    return ipaddress.IPv4Network(cover).num_addresses > sum(ipaddress.IPv4Network(s).num_addresses for s in subnets)


def netplan_file(member: Member, rails: Sequence[Rail], policy: Policy, renderer: str) -> NetplanFile | None:
    """Our file, with the renderer at each function: a global one would speak for interfaces that are not ours.

    No link-local addresses: each would add entries to the GID table, and gloo has been seen to bind to one. The
    functions are optional, so that a node boots without waiting for a peer that is switched off.
    """
    if not rails:
        return None
    lines = [
        f"# The fabric of {member.node}, rank {member.rank}: written by site.yml, which restores it after a change.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for rail in sorted(rails, key=lambda rail: rail["rail"]):
        lines += [
            f"    {rail['netdev']}:",
            f"      renderer: {renderer}",
            f"      addresses: [{rail['address']}/{rail['prefix']}]",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            f"      mtu: {policy.fabric_mtu}",
            "      optional: true",
        ]
    return {"path": NETPLAN_PATH, "text": "\n".join(lines) + "\n"}
