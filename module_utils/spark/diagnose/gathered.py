"""What the phases of a diagnosis left on each host of the play. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PHASES = ("look", "run", "end")


def arguments(plan: Mapping[str, Any], me: Mapping[str, Any]) -> dict[str, Any]:
    """What diagnose_node is asked on one node, its phase left out."""
    return {
        "node": me["node"],
        "nodes": [node["node"] for node in plan["nodes"]],
        "rails": me["rails"],
        "ports": plan["link_check"]["ports"],
        "transport": plan["transport"],
        "unloaded": unloaded(plan),
    }


def unloaded(plan: Mapping[str, Any]) -> str:
    """Why nothing may be run; empty where it may."""
    serving = plan["serving_nodes"]
    return f"a rank serves on {', '.join(serving)}" if serving else ""


def refusals(node: str, looked: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Peers against which nothing can be run, with the reason.

    ``looked`` and ``facts`` are what the first phase and node_info left on each host.
    """
    found = {}
    for name, registered in looked.items():
        if name == node:
            continue
        if isinstance(registered, Mapping) and "not_listening" in registered:
            why = str(registered["not_listening"])
        else:
            away = facts.get(name)
            told = away if isinstance(away, Mapping) and "node" not in away else registered
            why = f"{name} was not asked: {silence(told)}"
        if why:
            found[name] = why
    return found


def silence(registered: Any) -> str:
    """Why a host has no answer to give."""
    if not isinstance(registered, Mapping):
        return "it has left the play"
    said = " ".join(str(registered.get("msg") or "it was passed over").split())
    # What comes before is the same for every host that ssh does not reach.
    return said.rpartition("can be reached over ssh: ")[2][:300]


def of_host(variables: Any, registered: Mapping[str, str], *, asked: bool) -> dict[str, Any]:
    """The phases of one host, its facts, and why it is silent where it is.

    ``registered`` names the variables of each phase, several with blanks between; a host passed over some of them.
    """
    found: dict[str, Any] = {"silent": "it is in the inventory and not in this run" if not asked else None}
    for key in PHASES:
        told = [variables.get(name) for name in registered[key].split()]
        found[key] = next((item for item in told if isinstance(item, Mapping) and not item.get("skipped")), None)
    look = found["look"]
    if look is not None and "read" not in look:
        found["silent"] = silence(look)
    facts = variables.get(registered["facts"])
    if isinstance(facts, Mapping) and isinstance(facts.get("node"), Mapping):
        found["facts"] = facts["node"]
    elif asked:
        found["silent"] = silence(facts)
    return found
