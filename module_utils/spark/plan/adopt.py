"""Addresses of the rails: those of a network that is right already, else those of the policy. Pure.

Right is a node whose every rail has one address of its own in a subnet of its own, put there by something lasting that
is not ours. Where the nodes that have such a network agree, it is left as it is, and a node without one joins it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding, finding
from .functions import Function, source_of
from .inventory import Cluster, Member
from .policy import Policy

Facts = Mapping[str, Any]
Placed = tuple[str, int]

DEFAULTS = Policy()


@dataclass(frozen=True)
class Addressing:
    """``addresses`` and ``functions`` of each node are in the order of ``subnets``."""

    subnets: list[str]
    addresses: dict[str, list[Placed]]
    functions: dict[str, list[Function]]
    mtu: int
    adopted: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class _Made:
    """A node's network as somebody made it."""

    functions: list[Function]
    interfaces: list[ipaddress.IPv4Interface]
    sources: list[str]

    @property
    def subnets(self) -> list[ipaddress.IPv4Network]:
        return [interface.network for interface in self.interfaces]

    def ordered(self, subnets: Sequence[ipaddress.IPv4Network]) -> _Made | None:
        """The same, its rails in the order of ``subnets``; None where it has others."""
        if sorted(self.subnets) != sorted(subnets):
            return None
        places = [self.subnets.index(subnet) for subnet in subnets]
        return _Made(
            [self.functions[place] for place in places],
            [self.interfaces[place] for place in places],
            [self.sources[place] for place in places],
        )


def addressing(
    cluster: Cluster, functions: Mapping[str, list[Function]], facts_by_node: Mapping[str, Facts], width: int
) -> Addressing:
    """Addresses for ``width`` rails of every member."""
    policy = cluster.policy
    planned = Addressing(
        list(policy.fabric_subnets[:width]),
        {member.node: planned_addresses(policy, member.rank)[:width] for member in cluster.members},
        {node: list(own) for node, own in functions.items()},
        policy.fabric_mtu,
    )
    made: dict[str, _Made] = {}
    for member in cluster.members:
        own = _made(functions[member.node][:width], facts_by_node.get(member.node, {}), width)
        if own is not None:
            made[member.node] = own
    if not made:
        return planned
    subnets = _order(next(iter(made.values())).subnets, policy)
    ordered = {node: own.ordered(subnets) for node, own in made.items()}
    agreed = {node: own for node, own in ordered.items() if own is not None}
    mtus = {int(one.facts.get("mtu", 0)) for own in agreed.values() for one in own.functions}
    found = [interface.ip for own in agreed.values() for interface in own.interfaces]
    if (
        len(agreed) < len(made)
        or len(set(found)) < len(found)
        or len(mtus) > 1
        or not _wished(policy.fabric_subnets[:width], DEFAULTS.fabric_subnets[:width], list(map(str, subnets)))
        or not _wished(policy.fabric_mtu, DEFAULTS.fabric_mtu, *mtus)
    ):
        return planned
    addresses = {node: [(str(one.ip), one.network.prefixlen) for one in own.interfaces] for node, own in agreed.items()}
    taken = set(found)
    for member in cluster.members:
        if member.node not in agreed:
            host = _free_host(policy, member, subnets, taken)
            if host is None:
                return planned
            addresses[member.node] = [(str(subnet[host]), subnet.prefixlen) for subnet in subnets]
            taken |= {subnet[host] for subnet in subnets}
    result = Addressing(
        list(map(str, subnets)),
        addresses,
        {node: agreed[node].functions if node in agreed else own for node, own in planned.functions.items()},
        mtus.pop(),
        {node: own.sources for node, own in agreed.items()},
    )
    if result.addresses != planned.addresses or result.mtu != planned.mtu:
        result.findings.append(_different(cluster, agreed, result))
    return result


def planned_addresses(policy: Policy, rank: int) -> list[Placed]:
    placed = []
    for subnet in policy.fabric_subnets:
        network = ipaddress.IPv4Network(subnet)
        # A host number that leaves the subnet is refused by the policy; the plan is still shown.
        placed.append((str(network[(policy.fabric_first_host + rank) % network.num_addresses]), network.prefixlen))
    return placed


def _made(functions: Sequence[Function], facts: Facts, width: int) -> _Made | None:
    sources = [source_of(facts, function.netdev) for function in functions]
    if len(functions) < width or not all(sources):
        return None
    if any(len(function.addresses) != 1 or function.facts.get("master") for function in functions):
        return None
    made = _Made(list(functions), [function.addresses[0] for function in functions], [str(one) for one in sources])
    nets = made.subnets
    apart = not any(one.overlaps(other) for place, one in enumerate(nets) for other in nets[place + 1 :])
    return made if apart and all(net.prefixlen <= 30 for net in nets) else None


def _order(found: list[ipaddress.IPv4Network], policy: Policy) -> list[ipaddress.IPv4Network]:
    """The policy's order where the subnets are the policy's, else that of the head's functions."""
    planned = [ipaddress.IPv4Network(subnet) for subnet in policy.fabric_subnets[: len(found)]]
    return planned if sorted(planned) == sorted(found) else found


def _wished(given: object, default: object, found: object) -> bool:
    """Whether what was found may stand: nobody asked for anything else."""
    given, default, found = ([*one] if isinstance(one, tuple) else one for one in (given, default, found))
    return given in (default, found)


def _free_host(
    policy: Policy, member: Member, subnets: Sequence[ipaddress.IPv4Network], taken: set[ipaddress.IPv4Address]
) -> int | None:
    """A host number that is free in every subnet, the policy's own before any other."""
    last = min(subnet.num_addresses for subnet in subnets) - 2
    hosts: list[int] = [policy.fabric_first_host + member.rank, *range(1, min(last, 254) + 1)]
    for host in hosts:
        if host <= last and not any(subnet[host] in taken for subnet in subnets):
            return host
    return None


def _different(cluster: Cluster, made: Mapping[str, _Made], result: Addressing) -> Finding:
    policy = cluster.policy
    lines = [
        f"{node}: {interface} on {function.netdev} by {source}"
        for node, own in made.items()
        for function, interface, source in zip(own.functions, own.interfaces, own.sources, strict=True)
    ]
    joins = [member.node for member in cluster.members if member.node not in made]
    return finding(
        "FABRIC_SUBNETS_FOUND",
        node=cluster.name,
        found=f"{', '.join(result.subnets)} with MTU {result.mtu} on {', '.join(made)}"
        + (f", which {' and '.join(joins)} will join" if joins else ""),
        expected=f"{', '.join(policy.fabric_subnets)} with MTU {policy.fabric_mtu}, or a network that is right already",
        evidence=lines,
        sources=" and ".join(sorted({source for own in made.values() for source in own.sources})),
    )
