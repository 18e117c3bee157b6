"""Which functions of each node carry which rail, with which addresses, and the files that say so. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding, finding
from .adopt import Addressing, Placed, addressing, planned_addresses
from .functions import Function, Port, functions_of, ports_of
from .inventory import Cluster, Member
from .policy import Policy
from .types import NETPLAN_PATH, SYSCTL_PATH, NetplanFile, Rail, RailSubnet, SysctlFile
from .wire import Reports, WireQuestion, edges_of, links_of, segments_of, twins_in_order

Facts = Mapping[str, Any]
Unsure = dict[str, str]


@dataclass(frozen=True)
class NodeFabric:
    rails: list[Rail]
    renderer: str
    netplan: NetplanFile | None
    sysctl: SysctlFile | None = None
    adopted_from: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fabric:
    """``unsure`` names the nodes on which the port was a guess."""

    rails: list[RailSubnet]
    address_range: str | None
    mtu: int
    nodes: dict[str, NodeFabric]
    findings: list[Finding]
    unsure: Unsure = field(default_factory=dict)


@dataclass(frozen=True)
class _Choice:
    """The functions of every node in the order of the rails, before their addresses have a say in it."""

    functions: dict[str, list[Function]]
    unsure: Unsure
    findings: list[Finding]


def plan_fabric(cluster: Cluster, facts_by_node: Mapping[str, Facts], wire: Reports | None = None) -> Fabric:
    """Plan the rails of all members; one node alone has no fabric. ``wire`` is what each node heard, if asked."""
    policy = cluster.policy
    if len(cluster.members) < 2:
        return Fabric([], None, policy.fabric_mtu, {cluster.head.node: NodeFabric([], "", None)}, [])
    choice = _choose(cluster, facts_by_node, wire or {})
    # A rail needs a function at every end, so the poorest node sets how many there are; one that has none at all is
    # a finding of its own and must not hide what the others could do.
    counts = [len(chosen) for chosen in choice.functions.values() if chosen]
    width = min(counts, default=len(policy.fabric_subnets))
    placed = addressing(cluster, choice.functions, facts_by_node, width)
    nodes = {}
    for member in cluster.members:
        rails = _rails(cluster, member, placed, width)
        renderer = _renderer(policy, facts_by_node.get(member.node, {}))
        adopted = placed.adopted.get(member.node, [])
        nodes[member.node] = NodeFabric(
            rails,
            renderer,
            netplan_file(member, rails, placed.mtu, renderer),
            None if adopted else sysctl_file(member, rails, placed.functions[member.node]),
            adopted,
        )
    findings = [*choice.findings, *placed.findings]
    if not wire:
        findings += [_guessed(node, choice.functions[node], why) for node, why in choice.unsure.items()]
    findings += _arp_flux(cluster, facts_by_node, nodes, placed)
    findings += _twins_missing(cluster, facts_by_node, choice.functions)
    findings += _answered(cluster, facts_by_node, nodes, wire or {})
    address_range = covering_network(placed.subnets)
    if policy.fabric_transport == "rdma" and _covers_more(address_range, placed.subnets):
        findings.append(
            finding(
                "RANGE_UNPLANNED",
                node=cluster.name,
                found=f"{address_range} for {', '.join(placed.subnets)}",
                expected="rails that fill one network",
            )
        )
    rail_subnets: list[RailSubnet] = [{"rail": rail, "subnet": subnet} for rail, subnet in enumerate(placed.subnets)]
    return Fabric(rail_subnets, address_range, placed.mtu, nodes, findings, choice.unsure)


def wire_question(cluster: Cluster, facts_by_node: Mapping[str, Facts], node: str) -> WireQuestion:
    """Whether frames have to be exchanged before the fabric can be planned, and with which functions.

    They are where a port was a guess, and where an address is about to be set that somebody else may have. A pair that
    is set up, or on which a rank runs, is left alone; so is one of which a node has no function that could speak.
    """
    peers = [member.node for member in cluster.members if member.node != node]
    question = WireQuestion(ask=False, why="", cluster=cluster.name, node=node, peers=peers, netdevs=[], addresses=[])
    if not peers or any(not facts_by_node.get(member.node) for member in cluster.members):
        return question
    fabric = plan_fabric(cluster, facts_by_node)
    speaking = {
        member.node: sorted({own.netdev for own in _speakers(member, facts_by_node) if own.speaks})
        for member in cluster.members
    }
    serving = any(((facts.get("rank") or {}).get("container") or {}).get("running") for facts in facts_by_node.values())
    lacking = [name for name, own in fabric.nodes.items() for rail in own.rails if not rail["adopted"]]
    if serving or not all(speaking.values()) or not (fabric.unsure or lacking):
        return question
    question["ask"] = True
    question["why"] = "several ports have a link" if fabric.unsure else "addresses are to be set"
    question["netdevs"] = speaking[node]
    rank = next(member.rank for member in cluster.members if member.node == node)
    addresses = [rail["address"] for rail in fabric.nodes[node].rails]
    # A port that is found only now brings rails that were not planned yet.
    addresses += [address for address, _ in planned_addresses(cluster.policy, rank)[len(addresses) :]]
    question["addresses"] = addresses
    return question


def _speakers(member: Member, facts_by_node: Mapping[str, Facts]) -> list[Function]:
    """Named functions are not the only ones that speak: the others may be those of the cable that was meant."""
    facts = facts_by_node.get(member.node, {})
    return [
        *_candidates(member, facts_by_node),
        *functions_of(facts, management_address=member.management_address),
    ]


def _candidates(member: Member, facts_by_node: Mapping[str, Facts]) -> list[Function]:
    facts = facts_by_node.get(member.node, {})
    return functions_of(facts, member.netdevs, management_address=member.management_address)


def _choose(cluster: Cluster, facts_by_node: Mapping[str, Facts], wire: Reports) -> _Choice:
    """The functions that become the rails.

    Where frames were heard, a rail runs only between ports that heard each other. Otherwise each node's port is the
    one that has the planned addresses already, or a link, or addresses at all, or the most functions, in this order.
    Both functions of one port come before those of the next, because one port carries all that two functions can
    move; ports are ordered by the addresses that they have already, then by number.
    """
    policy = cluster.policy
    count = len(policy.fabric_subnets)
    members = [member.node for member in cluster.members]
    wanted = {member.node: _cidrs(planned_addresses(policy, member.rank)) for member in cluster.members}
    candidates = {member.node: _candidates(member, facts_by_node) for member in cluster.members}
    ports = {node: ports_of(own) for node, own in candidates.items()}
    ranked = {node: _ranked(own, wanted[node], count) for node, own in ports.items()}
    named = {member.node for member in cluster.members if member.netdevs}
    unsure = {} if wire else _unsure(ports, ranked, wanted, count, named)
    edges = edges_of(wire)
    links = links_of(members, ports, segments_of(ports, edges))
    findings: list[Finding] = []
    if links:
        links.sort(
            key=lambda link: (
                -sum(function.holds(wanted[node]) for node, port in link.items() for function in ports[node][port]),
                -sum(bool(function.addresses) for node, port in link.items() for function in ports[node][port]),
                link[members[0]],
            )
        )
        order = {node: [link[node] for link in links] for node in members}
    else:
        # Without frames only the best port of a node says which it is; a second one could be anybody's cable,
        # unless it has its addresses already.
        order = {
            node: own[:1] + [port for port in own[1:] if any(one.holds(wanted[node]) for one in ports[node][port])]
            for node, own in ranked.items()
        }
    chosen: dict[str, list[Function]] = {}
    for node in members:
        if node in named:
            chosen[node] = candidates[node][:count]
            continue
        own = [function for port in order[node] for function in ports[node][port]][:count]
        if chosen and edges:
            own = _paired(node, own, members[0], chosen[members[0]], edges)
        chosen[node] = _as_addressed(own, wanted[node])
    if wire and all(candidates.values()):
        findings += _disjoint(cluster, facts_by_node, wire, chosen, bool(links))
    return _Choice(chosen, unsure, findings)


def _cidrs(addresses: Sequence[Placed]) -> list[str]:
    return [f"{address}/{prefix}" for address, prefix in addresses]


def _ranked(ports: Mapping[Port, list[Function]], wanted: Sequence[str], count: int) -> list[Port]:
    return sorted(
        ports, key=lambda port: (*_merit(ports[port], wanted, count), *(-number for number in port)), reverse=True
    )


def _merit(functions: Sequence[Function], wanted: Sequence[str], count: int) -> tuple[int, int, int, int]:
    return (
        sum(function.holds(wanted) for function in functions),
        sum(function.carrier for function in functions),
        sum(bool(function.addresses) for function in functions),
        min(len(functions), count),
    )


def _unsure(
    ports: Mapping[str, Mapping[Port, list[Function]]],
    ranked: Mapping[str, Sequence[Port]],
    wanted: Mapping[str, Sequence[str]],
    count: int,
    named: set[str],
) -> Unsure:
    """Why the best port of a node is a guess, where it is one. A port that has all the addresses is none."""
    unsure: Unsure = {}
    for node, order in ranked.items():
        if node in named or len(order) < 2:
            continue
        best, other = (ports[node][port] for port in order[:2])
        linked = [any(function.carrier for function in functions) for functions in (best, other)]
        held = [any(function.holds(wanted[node]) for function in functions) for functions in (best, other)]
        if linked[0] == linked[1] and not (held[0] and (held[1] or count <= len(best))):
            names = ", ".join(function.netdev for function in other)
            unsure[node] = f"{names} {'has' if linked[0] else 'lacks'} a link as well"
    return unsure


def _guessed(node: str, chosen: Sequence[Function], why: str) -> Finding:
    names = ", ".join(function.netdev for function in chosen)
    return finding(
        "PORT_UNSURE",
        node=node,
        found=f"chose {names} because {why}",
        expected="one port with a link",
        example=names,
    )


def _paired(
    node: str, own: list[Function], head: str, heads: Sequence[Function], edges: set[frozenset[tuple[str, str]]]
) -> list[Function]:
    """Port by port, so that no twin changes over to another cable."""
    result: list[Function] = []
    for functions in ports_of(own).values():
        start = own.index(functions[0])
        result += twins_in_order(node, functions, head, heads[start : start + len(functions)], edges)
    return sorted(result, key=lambda function: [one.port for one in own].index(function.port))


def _as_addressed(functions: list[Function], wanted: Sequence[str]) -> list[Function]:
    """Keep a right configuration whose rails are numbered the other way round."""
    placed: list[Function | None] = [
        next((function for function in functions if function.holds([address])), None)
        for address in wanted[: len(functions)]
    ]
    rest = [function for function in functions if function not in placed]
    return [function if function is not None else rest.pop(0) for function in placed]


def _disjoint(
    cluster: Cluster,
    facts_by_node: Mapping[str, Facts],
    wire: Reports,
    chosen: Mapping[str, Sequence[Function]],
    joined: bool,
) -> list[Finding]:
    """What the frames say against the choice: named functions on different cables, or ports that nobody heard."""
    members = [member.node for member in cluster.members]
    all_ports = {
        member.node: ports_of(
            functions_of(facts_by_node.get(member.node, {}), management_address=member.management_address)
        )
        for member in cluster.members
    }
    heard = [
        f"{node}: {item['netdev']} hears {item['peer_netdev']} of {item['peer']}"
        for node, report in sorted(wire.items())
        for item in report.get("heard", ())
        if item["peer"] != node
    ]
    segments = segments_of({node: ports_of(own) for node, own in chosen.items()}, edges_of(wire))
    width = min(map(len, chosen.values()))
    apart = [
        rail
        for rail in range(width)
        if not any(all((node, chosen[node][rail].port) in segment for node in members) for segment in segments)
    ]
    if not apart:
        return []
    silent = not heard
    named = {member.node for member in cluster.members if member.netdevs}
    spoke = "; ".join(f"{node}: {', '.join(report.get('netdevs', ()))}" for node, report in sorted(wire.items()))
    better = links_of(members, all_ports, segments_of(all_ports, edges_of(wire)))
    if named and not silent:
        rails = ", ".join(str(rail) for rail in apart)
        pairs = "; ".join(
            f"{node}: [{', '.join(function.netdev for link in better for function in all_ports[node][link[node]])}]"
            for node in members
        )
        return [
            finding(
                "FABRIC_PORTS_MISMATCHED",
                node=cluster.name,
                found="; ".join(
                    f"rail {rail}: " + ", ".join(f"{chosen[node][rail].netdev} of {node}" for node in members)
                    for rail in apart
                ),
                expected="functions of one cable, or of one switch, on each rail",
                evidence=heard,
                rails=rails,
                names=pairs if better else "the functions that hear each other (see the evidence)",
            )
        ]
    # One port with a link on each node is most likely the cable between them, whatever swallowed the frames: the proof
    # after the change decides. Several are a choice that only frames can make.
    several = [
        node
        for node, ports in all_ports.items()
        if sum(any(one.carrier for one in functions) for functions in ports.values()) > 1 and node not in named
    ]
    return [
        finding(
            "FABRIC_PORTS_UNMATCHED",
            node=cluster.name,
            severity="fatal" if several or (heard and not joined) else "warn",
            found="no frame of a peer arrived anywhere" if silent else "no port of every node lies on one segment",
            expected="one cable between two nodes, or one switch for more",
            evidence=heard or [f"spoke on {spoke}"],
            example=next(iter(chosen[members[0]]), None) and ", ".join(f.netdev for f in chosen[members[0]]),
        )
    ]


def _twins_missing(
    cluster: Cluster, facts_by_node: Mapping[str, Facts], chosen: Mapping[str, Sequence[Function]]
) -> list[Finding]:
    """A port that shows one function of two, where two rails are wanted and nobody chose one."""
    found = []
    for member in cluster.members:
        own = chosen[member.node]
        if member.netdevs or len(own) != 1 or len(cluster.policy.fabric_subnets) < 2:
            continue
        seen = ", ".join(str(device["name"]) for device in facts_by_node[member.node].get("netdevs", ()))
        found.append(
            finding(
                "FABRIC_TWIN_MISSING",
                node=member.node,
                found=f"{own[0].netdev} without a twin in another PCIe domain",
                expected="two functions behind the cabled port",
                evidence=[f"interfaces: {seen}"],
                netdev=own[0].netdev,
                subnet=cluster.policy.fabric_subnets[0],
            )
        )
    return found


def _arp_flux(
    cluster: Cluster, facts_by_node: Mapping[str, Facts], nodes: Mapping[str, NodeFabric], placed: Addressing
) -> list[Finding]:
    """An adopted network whose twins answer for each other: it is left as it is, and said."""
    found = []
    for member in cluster.members:
        own = nodes[member.node]
        file = sysctl_file(member, own.rails, placed.functions[member.node]) if own.adopted_from else None
        devices = {device["name"]: device for device in facts_by_node.get(member.node, {}).get("netdevs", ())}
        loose = [rail["netdev"] for rail in own.rails if not devices.get(rail["netdev"], {}).get("arp_ignore")]
        if file and loose:
            settings = " ".join(f"{name}={value}" for name, value in file["values"].items())
            found.append(
                finding(
                    "FABRIC_ARP_FLUX",
                    node=member.node,
                    found=f"arp_ignore is 0 on {' and '.join(loose)}, which share a port",
                    expected="arp_ignore 1 and arp_announce 2 on both",
                    evidence=[f"the network was made by {' and '.join(own.adopted_from)}"],
                    settings=settings,
                )
            )
    return found


def _answered(
    cluster: Cluster, facts_by_node: Mapping[str, Facts], nodes: Mapping[str, NodeFabric], wire: Reports
) -> list[Finding]:
    """Planned addresses that a host nobody planned answers for. What the facts of a member tell is told by them."""
    holders = {
        address.split("/")[0]
        for facts in facts_by_node.values()
        for device in facts.get("netdevs", ())
        for address in device.get("addresses", ())
    }
    macs = {
        str(device.get("mac", "")).lower(): f"{device['name']} of {node}"
        for node, facts in facts_by_node.items()
        for device in facts.get("netdevs", ())
    }
    said: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for member in cluster.members:
        planned = {rail["address"] for rail in nodes[member.node].rails}
        for item in wire.get(member.node, {}).get("answered", ()):
            if item["address"] in planned and not (item["mac"] in macs and item["address"] in holders):
                said.setdefault((member.node, item["address"]), []).append((item["mac"], item["netdev"]))
    first, last = cluster.policy.fabric_first_host, len(cluster.members)
    return [
        finding(
            "FABRIC_ADDRESS_ANSWERED",
            node=node,
            found=f"{address} is answered for by " + " and ".join(sorted({_host(mac, macs) for mac, _ in answers})),
            expected=f"an address that no other host has, for {node}",
            evidence=[f"{mac} answered an ARP probe on {netdev}" for mac, netdev in sorted(answers)],
            address=address,
            mac=sorted(answers)[0][0],
            suggestion=first + last if first + 2 * last < 254 else max(1, first - last),
        )
        for (node, address), answers in sorted(said.items())
    ]


def _host(mac: str, macs: Mapping[str, str]) -> str:
    return f"{mac} ({macs[mac]})" if mac in macs else mac


def _rails(cluster: Cluster, member: Member, placed: Addressing, width: int) -> list[Rail]:
    rails: list[Rail] = []
    for index, (address, prefix) in enumerate(placed.addresses[member.node][:width]):
        if index >= len(placed.functions[member.node]):
            break
        function = placed.functions[member.node][index]
        rails.append(
            {
                "rail": index,
                "netdev": function.netdev,
                "rdma_device": function.facts.get("rdma_device"),
                "pci": function.facts.get("pci"),
                "address": address,
                "prefix": prefix,
                "peer_addresses": {
                    peer.node: placed.addresses[peer.node][index][0]
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


def netplan_file(member: Member, rails: Sequence[Rail], mtu: int, renderer: str) -> NetplanFile | None:
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
            f"      mtu: {mtu}",
            "      optional: true",
        ]
    return {"path": NETPLAN_PATH, "text": "\n".join(lines) + "\n"}


def sysctl_file(member: Member, rails: Sequence[Rail], functions: Sequence[Function]) -> SysctlFile | None:
    """ARP for functions that share a port, none where no two do.

    Both lie in one broadcast domain, and Linux answers on any interface for any address that it has: a peer could learn
    one function's address with the other's MAC, and that rail would carry nothing.
    """
    shared = {
        function.netdev
        for functions in ports_of(functions[: len(rails)]).values()
        if len(functions) > 1
        for function in functions
    }
    netdevs = [rail["netdev"] for rail in rails if rail["netdev"] in shared]
    if not netdevs:
        return None
    values = {
        f"net.ipv4.conf.{netdev}.{name}": value
        for netdev in netdevs
        for name, value in (("arp_ignore", "1"), ("arp_announce", "2"))
    }
    lines = [
        f"# The fabric of {member.node}: both functions of a port hear every ARP request, and each answers for itself.",
        *(f"{name} = {value}" for name, value in values.items()),
    ]
    return {"path": SYSCTL_PATH, "text": "\n".join(lines) + "\n", "values": values}
