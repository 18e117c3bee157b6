"""The undo journal of a node: what this project changed there, in order, so that it can be put back.

An action is recorded *before* it is carried out. A crash in between leaves an entry for a change that never happened,
which is harmless to undo; the other order would leave a change that nobody knows of. Entries are never rewritten.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/var/lib/spark-cluster/undo")
JOURNAL = "journal.jsonl"

# What an entry of a kind must carry for its undo to be possible. ``before`` is a snapshot as ``snapshot()`` takes it,
# None if absent.
REQUIRED: dict[str, frozenset[str]] = {
    "file_moved": frozenset({"path", "to", "before"}),
    "file_written": frozenset({"path", "sha256", "before", "backup"}),
    "network_changed": frozenset({"devices", "settings"}),
    "unit_disabled": frozenset({"unit", "was_enabled", "was_active"}),
    "unit_enabled": frozenset({"unit"}),
    "authorized_key_added": frozenset({"path", "line"}),
    "rolled_back": frozenset({"reason"}),
    "weights_copied": frozenset({"path", "new"}),
    "image_loaded": frozenset({"reference"}),
}


class JournalError(Exception):
    """An action that cannot be recorded as given, or a journal that cannot be trusted."""


def record(action: Mapping[str, Any], *, root: Path = ROOT) -> dict[str, Any]:
    """Append one action durably and return the entry as written; raise JournalError if it could not be undone from
    it."""
    kind = action.get("kind")
    if not isinstance(kind, str) or not kind:
        raise JournalError(f"an action needs a kind, got {kind!r}")
    lacking = REQUIRED.get(kind, frozenset()) - action.keys()
    if lacking:
        raise JournalError(f"{kind} cannot be undone without {', '.join(sorted(lacking))}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = root / JOURNAL
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        # A crash in the middle of an append leaves a torn last line: close it, so that this entry stays readable.
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        entry = {**action, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        line = json.dumps(entry, sort_keys=True, ensure_ascii=True).encode() + b"\n"
        data = (b"\n" if torn else b"") + line
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_directory(root)
    return entry


def read(*, root: Path = ROOT) -> list[dict[str, Any]]:
    """Every complete entry, oldest first. A torn line is an action that was never begun and is passed over."""
    try:
        raw = (root / JOURNAL).read_bytes()
    except FileNotFoundError:
        return []
    entries = []
    for line in raw.split(b"\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, as fsync of a file does not."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
