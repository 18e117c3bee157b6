"""Numbers and documents as other programs print them. What is none of them is said to be none, however long it is."""

from __future__ import annotations

import json
from typing import Any

# Counters have 64 bits: 20 digits. Python itself refuses to read more than 4300.
MOST_DIGITS = 30


def whole(text: str | None) -> int | None:
    """A whole number without a sign, None for anything else."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def document(text: str | bytes) -> Any:
    """JSON. Raises ValueError for anything else, also for what is nested more deeply than can be read."""
    try:
        return json.loads(text)
    except RecursionError as deep:
        raise ValueError("nested too deeply") from deep


def records(text: str) -> list[dict[str, Any]]:
    """A list of objects, empty where nothing was printed. Raises ValueError for anything else."""
    data = document(text or "[]")
    if not isinstance(data, list) or not all(isinstance(record, dict) for record in data):
        raise ValueError("not a list of records")
    return data
