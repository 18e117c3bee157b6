"""A diagnosis on one screen. Pure; reads what the result keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_CAUSES = 5
SHOWN_RUNS = 12
# What the plan says of the same fault in its own words.
_ALSO = {
    "CAUSE_NODE_SILENT": ("FACTS_MISSING", "CLUSTER_INCOMPLETE"),
    "CAUSE_NO_CARRIER": ("FABRIC_LINK_DOWN",),
    "CAUSE_SWITCHED_OFF": ("FABRIC_LINK_DOWN", "FABRIC_SWITCHED_OFF"),
    "CAUSE_NO_FUNCTION": ("FABRIC_FUNCTION_MISSING",),
    "CAUSE_NO_RDMA_DEVICE": ("RDMA_DEVICE_MISSING",),
    "CAUSE_SPEED_LOW": ("FABRIC_SPEED_LOW",),
    "CAUSE_ONE_RAIL": ("FABRIC_HALF",),
    "CAUSE_MTU_DIFFERS": ("FABRIC_MTU_DIFFERS",),
}


def screen_lines(diagnosis: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text of each line: what was run, then the causes, the likeliest first."""
    for position, run in enumerate(diagnosis["runs"][:SHOWN_RUNS]):
        yield ("runs" if position == 0 else "", run["line"])
    causes = diagnosis["causes"]
    if not causes:
        yield (
            "cause",
            "none was found" if diagnosis["state"] != "unmeasured" else "none, and not every run could be made",
        )
    for number, cause in enumerate(causes[:MOST_CAUSES], 1):
        yield f"cause {number}", f"{cause['likelihood']}: {cause['code']} on {cause['node']}: {cause['found']}"
        for line in cause["evidence"][:3]:
            yield "", f"because {line}"
        yield "", f"remedy: {cause['remedy']}"
        if cause["no_help"]:
            yield "", f"known not to help: {', '.join(cause['no_help'])}"
    if len(causes) > MOST_CAUSES:
        yield "", f"and {len(causes) - MOST_CAUSES} more in the report"
    for position, line in enumerate(diagnosis["ruled_out"][:4]):
        yield ("ruled out" if position == 0 else "", line)


def told(diagnosis: Mapping[str, Any]) -> set[str]:
    """Codes that the causes say already."""
    codes = {str(cause["code"]) for cause in diagnosis["causes"]}
    return codes.union(*(_ALSO.get(code, ()) for code in codes))
