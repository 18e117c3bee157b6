"""Listening TCP sockets from ``ss -ltnpH``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .whole import whole

if TYPE_CHECKING:
    from ..facts import ListenerFacts


_PROCESS = re.compile(r'users:\(\("(?P<name>(?:[^"\\]|\\.)*)",pid=(?P<pid>\d+)')


def parse_listeners(text: str) -> list[ListenerFacts]:
    """``process`` is ``name[pid]``, empty where ss may not see it: that needs root."""
    found: list[ListenerFacts] = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or fields[0] != "LISTEN":
            continue
        address, _, port = fields[3].rpartition(":")
        number = whole(port)
        if number is None or number > 65535:
            continue
        process = _PROCESS.search(fields[5]) if len(fields) > 5 else None
        found.append(
            {
                "port": number,
                # "[::]" and "127.0.0.53%lo"
                "address": address.strip("[]").partition("%")[0],
                "process": f"{process['name']}[{process['pid']}]" if process else "",
            }
        )
    return found
