"""What frames between the nodes say: which ports share a segment, and who answers for a planned address. Pure.

Vertices are ports, not functions: both functions of a node sit behind one port, so a frame that reaches one of them
reaches the port, and frames cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any, TypedDict

from .functions import Function, Port

End = tuple[str, str]
Reports = Mapping[str, Mapping[str, Any]]
Ports = Mapping[str, Mapping[Port, Sequence[Function]]]
Link = dict[str, Port]


class WireQuestion(TypedDict):
    """What ``fabric_frames`` is asked on one node; ``ask`` is equal on all nodes of a cluster."""

    ask: bool
    why: str
    cluster: str
    node: str
    peers: list[str]
    netdevs: list[str]
    addresses: list[str]


def edges_of(reports: Reports) -> set[frozenset[End]]:
    """Pairs of functions of which one has heard the other."""
    return {
        frozenset({(node, str(item["netdev"])), (str(item["peer"]), str(item["peer_netdev"]))})
        for node, report in reports.items()
        for item in report.get("heard", ())
        if (node, item["netdev"]) != (item["peer"], item["peer_netdev"])
    }


def segments_of(ports: Ports, edges: Iterable[frozenset[End]]) -> list[set[tuple[str, Port]]]:
    """Ports that hear each other, directly or through others; one that hears nobody is in none."""
    port_of = {
        (node, function.netdev): (node, port)
        for node, own in ports.items()
        for port, functions in own.items()
        for function in functions
    }
    segments: list[set[tuple[str, Port]]] = []
    for edge in edges:
        ends = {port_of[end] for end in edge if end in port_of}
        if len(ends) < 2:
            continue  # twins of one port, or a function that is no candidate
        touched = [segment for segment in segments if segment & ends]
        segments = [segment for segment in segments if segment not in touched] + [ends.union(*touched)]
    return sorted(segments, key=sorted)


def links_of(members: Sequence[str], ports: Ports, segments: Iterable[set[tuple[str, Port]]]) -> list[Link]:
    """A port of every member for each cable, or each place at a switch, that joins them all.

    Where several ports of a node share a segment they are paired in their order: any two of them reach each other.
    """
    links: list[Link] = []
    for segment in segments:
        own = {node: sorted(port for port in ports[node] if (node, port) in segment) for node in members}
        for place in range(min(map(len, own.values()))):
            links.append({node: own[node][place] for node in members})
    return links


def twins_in_order(
    node: str, functions: Sequence[Function], head: str, heads: Sequence[Function], edges: set[frozenset[End]]
) -> list[Function]:
    """The functions of a node in the order in which they hear the head's, where twins do not share their segment.

    Behind a real port every twin hears every other, and the order of the PCIe domains stays.
    """
    for order in permutations(functions):
        pairs = zip(order, heads, strict=False)
        if all(frozenset({(node, own.netdev), (head, far.netdev)}) in edges for own, far in pairs):
            return list(order)
    return list(functions)
