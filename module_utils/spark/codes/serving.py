"""Finding codes: the served model."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "UNKNOWN_CAUSE",
        "fatal",
        "A failure that matches no known cause",
        "Nothing that is known explains what was seen. The evidence is given as it was found; the nearest match would be a guess.",
        "Read the evidence below, then attach {attach} to a report.",
    ),
)
