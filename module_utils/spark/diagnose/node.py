"""The three phases of a diagnosis on one node. None of them raises: a fault of ours is told like one of the node's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..link.run import Place, serving, stop
from ..parse.rdma import read_devices
from ..parse.whole import whole
from . import read as reading
from .runs import SECONDS, alone, between, loopback, open_listeners, skipped, towards, usable


@dataclass(frozen=True)
class Asked:
    node: str
    nodes: Sequence[str]
    rails: Sequence[Mapping[str, Any]]
    ports: Sequence[int]
    transport: str = "rdma"
    seconds: int = SECONDS
    unloaded: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        return len(self.nodes) - 1


def guarded(phase: Callable[[Place, Asked], dict[str, Any]]) -> Callable[[Place, Asked], dict[str, Any]]:
    def run(place: Place, asked: Asked) -> dict[str, Any]:
        try:
            return phase(place, asked)
        except Exception as error:  # what a broken node makes of us must not hide what the other one says
            place_of_it = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{error.__class__.__name__}: {error} ({place_of_it.name}, line {place_of_it.lineno})"
            return {"read": None, "runs": [], "not_listening": why, "after": None, "broken": why}

    return run


@guarded
def look(place: Place, asked: Asked) -> dict[str, Any]:
    read = reading.read(place, asked.node, asked.rails)
    why = asked.unloaded or (f"{asked.node}: {read['serving']}" if read["serving"] else "")
    legs = between(asked.nodes, transport=asked.transport, seconds=asked.seconds) if asked.workers else []
    mine = loopback(asked.node, max(asked.workers, 0), transport=asked.transport)
    good = usable(read, asked.rails, asked.transport)
    if not why and not good:
        why = f"no rail of {asked.node} is ready: {_state(read)}"
    if why:
        return {"read": read, "runs": [skipped(mine, why)], "not_listening": why}
    runs = alone(place, asked.node, read, good, asked.ports, mine)
    refused = open_listeners(place, asked.node, read, good, asked.ports, legs) if asked.workers else ""
    # The counters of before are those after the loopback: what moves from here on came over the cable.
    for item in read["functions"]:
        if item["exists"]:
            item["counters"] = reading.count(place, item["netdev"], item["rdma_device"])
    return {"read": read, "runs": runs, "not_listening": refused}


def _state(read: Mapping[str, Any]) -> str:
    told = []
    for item in read["functions"]:
        if item["rail"] is not None:
            wrong = [
                text
                for bad, text in (
                    (not item["exists"], "is not there"),
                    (item["exists"] and not item["admin_up"], "is switched off"),
                    (item["admin_up"] and not item["carrier"], "has no carrier"),
                    (item["exists"] and item["address"] not in item["addresses"], f"lacks {item['address']}"),
                )
                if bad
            ]
            told.append(f"{item['netdev']} {' and '.join(wrong) or 'has no GID'}")
    return "; ".join(told) or "it has none"


@guarded
def run(place: Place, asked: Asked) -> dict[str, Any]:
    legs = between(asked.nodes, transport=asked.transport, seconds=asked.seconds)
    mine = [leg for leg in legs if leg.source == asked.node]
    # A rank may have been started since the first phase.
    busy = serving(place.run)
    why = asked.unloaded or (f"{asked.node}: {busy}" if busy else "")
    if why:
        return {"runs": [skipped(leg, why) for leg in mine]}
    refused = dict(asked.refused)
    if all(leg.target in refused for leg in mine):
        return {"runs": [skipped(leg, refused[leg.target]) for leg in mine]}
    # Addresses and GIDs are looked up anew: minutes may lie between the phases on a slow machine.
    read = reading.brief(place, asked.node, asked.rails)
    good = usable(read, asked.rails, asked.transport)
    if not good:
        return {"runs": [skipped(leg, f"no rail of {asked.node} is ready: {_state(read)}") for leg in mine]}
    return {"runs": towards(place, asked.node, read, good, asked.ports, legs, refused)}


@guarded
def end(place: Place, asked: Asked) -> dict[str, Any]:
    stop(place)
    reader = reading.Reader(place)
    links = reading.addresses(reader)
    devices = {item["netdev"]: item["name"] for item in read_devices(place.root)}
    names = [str(rail["netdev"]) for rail in asked.rails if rail["netdev"] in links]
    changes = {name: whole(reader.file(f"/sys/class/net/{name}/carrier_changes")) or 0 for name in names}
    counted = {name: reading.count(place, name, devices.get(name)) for name in names}
    return {"after": {"counters": counted, "carrier_changes": changes}}


PHASES = {"look": look, "run": run, "end": end}
