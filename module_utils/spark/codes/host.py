"""Finding codes: the hosts themselves, and what holds for every play."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "NOT_PROVEN_IN_CHECK_MODE",
        "note",
        "Not proven in check mode",
        "This step proves something only by changing or loading the machine, so check mode says nothing about it.",
        "Run the same command without --check.",
    ),
)
