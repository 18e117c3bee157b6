"""The operating system's own small files: /proc/meminfo and /etc/os-release."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from .whole import whole

if TYPE_CHECKING:
    from ..facts import MemoryFacts, OsFacts


def parse_meminfo(text: str) -> MemoryFacts:
    """In bytes. MemAvailable is what a new process can have without swapping, which free memory is not."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        count = whole(fields[0]) if fields else None
        if count is not None:
            values[name] = count * (1024 if fields[1:] == ["kB"] else 1)
    return {"total_bytes": values.get("MemTotal", 0), "available_bytes": values.get("MemAvailable", 0)}


def parse_os_release(text: str) -> OsFacts:
    """DGX OS calls itself ubuntu here and names itself in /etc/dgx-release."""
    values = parse_assignments(text)
    return {
        "id": values.get("ID", ""),
        "version_id": values.get("VERSION_ID", ""),
        "pretty": values.get("PRETTY_NAME", ""),
    }


def parse_assignments(text: str) -> dict[str, str]:
    """Shell assignments, one a line, quotes removed; lines that are none are passed over."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or not name.replace("_", "").isalnum():
            continue
        try:
            words = shlex.split(value, comments=True)
        except ValueError:
            continue
        values[name] = words[0] if words else ""
    return values
