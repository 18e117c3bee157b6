"""Numbers and documents as other programs print them. What is none of them is said to be none, however long it is."""

from __future__ import annotations

import json
from typing import Any

# Counters have 64 bits: 20 digits. Python itself refuses to read more than 4300.
MOST_DIGITS = 30


def whole(text: str | None) -> int | None:
    """A whole number without a sign, None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def document(text: str) -> Any:
    """JSON. Raises ValueError for anything else, also for what is nested more deeply than can be read."""
    try:
        return json.loads(text)
    except RecursionError as deep:
        raise ValueError("nested too deeply") from deep
