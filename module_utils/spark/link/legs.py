"""Which measurements prove a cluster's rails, and on which ports they meet. Pure.

All pairs would be N(N-1)/2 times the work. Every worker is measured against the head, one after the other: each node's
rails carry a full load at least once in each direction, and what is slow has a name. One slow worker is that worker's
end; if all are slow, it is the head's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# One way, both ways at once, a short round trip, and a plain TCP stream.
KINDS = ("write", "both", "latency", "tcp")
FORWARD, BOTH, LATENCY, ASK, REVERSE = 0, 1, 2, 3, 4
LATENCY_S = 1


@dataclass(frozen=True)
class Leg:
    """All rails from one node to another at the same time. ``slot`` keeps its ports apart from other legs' ports."""

    kind: str
    source: str
    target: str
    slot: int
    seconds: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(data: Mapping[str, Any]) -> Leg:
    if data["kind"] not in KINDS:
        raise ValueError(f"{data['kind']!r} is not one of {', '.join(KINDS)}")
    return Leg(str(data["kind"]), str(data["source"]), str(data["target"]), int(data["slot"]), int(data["seconds"]))


def link_legs(nodes: Sequence[str], *, transport: str, seconds: int) -> list[Leg]:
    """The link check's legs for a cluster whose head is the first of ``nodes``.

    Both ways at once is for RDMA only: the degraded state that shows nowhere else is one of the RDMA hardware.
    """
    head, workers = nodes[0], nodes[1:]
    legs = []
    for position, worker in enumerate(workers):
        if transport == "tcp":
            legs.append(Leg("tcp", head, worker, FORWARD, seconds))
        else:
            legs += [
                Leg("latency", head, worker, LATENCY, LATENCY_S),
                Leg("write", head, worker, FORWARD, seconds),
                Leg("both", head, worker, BOTH, seconds),
            ]
        legs.append(Leg("tcp" if transport == "tcp" else "write", worker, head, REVERSE + position, seconds))
    return legs


def ports_of(base_ports: Sequence[int], slot: int) -> tuple[int, ...]:
    """The ports of a slot, one per rail. Slots lie side by side, however far apart the rails' own ports are."""
    span = max(base_ports) - min(base_ports) + 1
    return tuple(port + slot * span for port in base_ports)


def ask_port(base_ports: Sequence[int]) -> int:
    return ports_of(base_ports, ASK)[0]


def highest_port(base_ports: Sequence[int], nodes: int) -> int:
    """The highest port that the link check of so many nodes uses."""
    return max(ports_of(base_ports, REVERSE + max(0, nodes - 2)))
