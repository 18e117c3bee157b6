"""The runs of a diagnosis: each node by itself, then between the nodes, and what became of each.

A run is one dictionary: ``kind`` (loopback, latency, write, both, tcp), ``from``, ``to``, ``seconds``, ``rails`` (each
with ``gbps`` or ``latency_us`` or ``failure``, and what its function counted ``here`` and ``there``), ``sum_gbps``
where all rails gave a number, and ``skipped`` with the reason where nothing was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..findings import Finding
from ..gids import Resolved
from ..link.legs import BOTH, FORWARD, LATENCY, LATENCY_S, REVERSE, Leg
from ..link.run import LegRun, Place, listen, run_legs, stop
from ..link.verdict import overlap, total

# Connecting takes a moment for each run; together with the runs this stays below a minute.
SECONDS, LOOPBACK_S, TCP_S = 6, 4, 5
# A listener that is late on a busy machine takes all others down with it, and is there the next time.
ATTEMPTS = 2


def between(nodes: Sequence[str], *, transport: str, seconds: int = SECONDS) -> list[Leg]:
    """Head against each worker: latency, there, both ways, over TCP, and back."""
    head, workers = nodes[0], nodes[1:]
    # More workers share the time, so that a diagnosis of many is not longer.
    each = max(2, seconds // max(1, len(workers)))
    legs = []
    for position, worker in enumerate(workers):
        if transport == "rdma":
            legs += [
                Leg("latency", head, worker, LATENCY, LATENCY_S),
                Leg("write", head, worker, FORWARD, each),
                Leg("both", head, worker, BOTH, each),
                Leg("write", worker, head, REVERSE + position, each),
            ]
        else:
            legs.append(Leg("tcp", worker, head, REVERSE + position, each))
        legs.append(Leg("tcp", head, worker, tcp_slot(len(workers)), min(each, TCP_S)))
    return legs


def tcp_slot(workers: int) -> int:
    return REVERSE + workers


def loopback(node: str, workers: int, *, transport: str) -> Leg:
    kind = "tcp" if transport == "tcp" else "write"
    return Leg(kind, node, node, tcp_slot(workers) + 1, LOOPBACK_S)


def usable(read: Mapping[str, Any], rails: Sequence[Mapping[str, Any]], transport: str) -> list[Mapping[str, Any]]:
    """The rails over which this node can run anything now."""
    functions = {item["rail"]: item for item in read["functions"] if item["rail"] is not None}
    resolved = {gid["rail"] for gid in read["gids"]}
    good = []
    for rail in rails:
        item = functions.get(rail["rail"])
        ready = item is not None and item["carrier"] and rail["address"] in item["addresses"]
        if ready and (transport == "tcp" or rail["rail"] in resolved):
            good.append(rail)
    return good


def gids_of(read: Mapping[str, Any]) -> list[Resolved]:
    return [Resolved(**gid) for gid in read["gids"]]


def skipped(leg: Leg, why: str) -> dict[str, Any]:
    return {"kind": kind_of(leg), "from": leg.source, "to": leg.target, "seconds": 0, "rails": [], "skipped": why}


def kind_of(leg: Leg) -> str:
    return "loopback" if leg.source == leg.target else leg.kind


def as_run(run: LegRun) -> dict[str, Any]:
    """One leg that was run."""
    streams = run.streams
    complete = bool(streams) and all(stream.gbps is not None for stream in streams)
    rails = []
    for position, (lane, stream, done) in enumerate(zip(run.lanes, streams, run.done, strict=True)):
        failure = stream.failure
        rails.append(
            {
                "rail": lane.rail,
                "netdev": lane.netdev,
                "rdma_device": lane.gid.rdma_device if lane.gid else None,
                "gid_index": lane.gid.index if lane.gid else None,
                "gbps": stream.gbps,
                "latency_us": run.latency_us[position] if run.latency_us else None,
                "speed_mbps": stream.speed_mbps,
                "failure": {
                    "kind": failure.kind,
                    "meaning": failure.meaning,
                    "evidence": [*failure.evidence, *run.told],
                }
                if failure
                else None,
                "here": dict(run.own[position]) if run.own else {},
                "there": dict(run.peer[position]) if run.peer else {},
                "argv": list(done.argv),
                "stdout": done.stdout,
                "stderr": done.stderr,
            }
        )
    return {
        "kind": kind_of(run.leg),
        "from": run.leg.source,
        "to": run.leg.target,
        "seconds": round(max((stream.seconds for stream in streams), default=0.0), 3),
        "rails": rails,
        "sum_gbps": total(streams) if complete and run.leg.kind != "latency" else None,
        "overlap_share": round(overlap(streams).share, 4),
        "skipped": None,
    }


def alone(
    place: Place, node: str, read: Mapping[str, Any], rails: Sequence[Mapping[str, Any]], ports: Sequence[int], leg: Leg
) -> list[dict[str, Any]]:
    """The loopback run of one node: the cable has no part in it."""
    try:
        _, found = listen(place, node, rails, [leg], ports, gids_of(read))
        wrong = [item for item in found if item.severity == "fatal"]
        if wrong:
            return [skipped(leg, f"{wrong[0].code}: {wrong[0].found}")]
        return [as_run(run) for run in run_legs(place, node, [leg], rails, ports, gids_of(read))]
    finally:
        stop(place)


def open_listeners(
    place: Place,
    node: str,
    read: Mapping[str, Any],
    rails: Sequence[Mapping[str, Any]],
    ports: Sequence[int],
    legs: Sequence[Leg],
) -> str:
    """Start what the other nodes' runs need; returns why it could not be, empty if it could."""
    wrong: list[Finding] = []
    for _ in range(ATTEMPTS):
        _, found = listen(place, node, rails, legs, ports, gids_of(read))
        wrong = [item for item in found if item.severity == "fatal"]
        if all(item.code != "LINK_LISTENER_FAILED" for item in wrong):
            break
    return f"{wrong[0].code} on {node}: {wrong[0].found}" if wrong else ""


def towards(
    place: Place,
    node: str,
    read: Mapping[str, Any],
    rails: Sequence[Mapping[str, Any]],
    ports: Sequence[int],
    legs: Iterable[Leg],
    refused: Mapping[str, str],
) -> list[dict[str, Any]]:
    """This node's runs towards its peers; those that cannot be run say why. ``refused`` is a reason per peer."""
    mine = [leg for leg in legs if leg.source == node]
    told = {leg: refused[leg.target] for leg in mine if leg.target in refused}
    going = [leg for leg in mine if leg not in told]
    done = run_legs(place, node, going, rails, ports, gids_of(read)) if going else []
    return [*(skipped(leg, why) for leg, why in told.items()), *(as_run(run) for run in done)]
