"""Putting the bundle and a node's plan in place: compare by hash, keep what was edited, write so that a crash leaves
nothing half done."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import bundle, undo
from .findings import Finding, finding
from .rank import HERE, Place, altered_finding, sha256, write_private

BACKUP = "/var/lib/spark-cluster/backup"
_TEXT_LIMIT = 64 * 1024


@dataclass(frozen=True)
class Wanted:
    """A file as it shall be; ``content`` is None while only its hash is known here."""

    path: str
    mode: str
    sha256: str
    content: bytes | None = None


@dataclass
class Decision:
    """What separates a node from the wanted files. ``needed`` are paths whose content is not here yet."""

    write: list[Wanted] = field(default_factory=list)
    modes: list[Wanted] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    altered: list[tuple[str, str | None, str]] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return bool(self.write or self.modes or self.remove)

    @property
    def needed(self) -> list[str]:
        return [item.path for item in self.write if item.content is None]


def plan_file(plan: Mapping[str, Any]) -> Wanted:
    """The node's own plan as the file it becomes; only root may read it."""
    content = (json.dumps(plan, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return Wanted(bundle.PLAN, "0600", hashlib.sha256(content).hexdigest(), content)


def _manifest(place: Place, path: str) -> dict[str, str]:
    try:
        return bundle.read_manifest(place.path(path).read_bytes())
    except (OSError, ValueError):
        return {}


def decide(wanted: Sequence[Wanted], place: Place = HERE) -> Decision:
    """Compare the node with the wanted files.

    A file was edited by hand if it is neither what the installed manifest says, nor what an interrupted installation
    was about to write,
    nor what is wanted now. Where only some files are wanted and a manifest is installed, the manifest follows them.
    """
    decision = Decision(known=_manifest(place, bundle.MANIFEST))
    pending = _manifest(place, bundle.PENDING)
    by_path = {item.path: item for item in wanted}
    if decision.known and bundle.MANIFEST not in by_path:
        ours = {path: item.sha256 for path, item in by_path.items() if path in decision.known}
        content = bundle.render_manifest({**decision.known, **ours})
        by_path[bundle.MANIFEST] = Wanted(bundle.MANIFEST, "0644", hashlib.sha256(content).hexdigest(), content)
        partial = True
    else:
        partial = False
    for path, expected in sorted(decision.known.items()):
        now = sha256(place.path(path))
        fine = {expected, pending.get(path, expected), by_path[path].sha256 if path in by_path else expected}
        if now not in fine:
            decision.altered.append((path, now, expected))
        if path not in by_path and not partial:
            decision.remove.append(path)
    for item in by_path.values():
        target = place.path(item.path)
        if sha256(target) != item.sha256:
            decision.write.append(item)
        else:
            status = target.stat()
            root = place.root == Path("/")
            if f"{status.st_mode & 0o7777:04o}" != item.mode or (root and (status.st_uid or status.st_gid)):
                decision.modes.append(item)
    return decision


def refusals(decision: Decision, node: str, *, restore: bool) -> list[Finding]:
    """Files that somebody edited stop the installation, unless they may be replaced."""
    return [] if restore else [altered_finding(node, *item) for item in decision.altered]


def diffs(decision: Decision, place: Place = HERE) -> list[dict[str, str]]:
    """What would change, readable: text as text, an archive by its hash."""
    shown = []
    for item in decision.write:
        before = _shown(place.path(item.path))
        after = f"SHA-256 {item.sha256}\n" if item.content is None else _printable(item.content)
        if before == after or not after.startswith("SHA-256"):
            shown.append({"before_header": item.path, "after_header": item.path, "before": before, "after": after})
        else:
            old = sha256(place.path(item.path))
            before = f"SHA-256 {old}\n" if old else ""
            shown.append({"before_header": item.path, "after_header": item.path, "before": before, "after": after})
    for item in decision.modes:
        mode = f"{place.path(item.path).stat().st_mode & 0o7777:04o}"
        shown.append(
            {
                "before_header": item.path,
                "after_header": item.path,
                "before": f"mode {mode}\n",
                "after": f"mode {item.mode}\n",
            }
        )
    for path in decision.remove:
        shown.append({"before_header": path, "after_header": path, "before": _shown(place.path(path)), "after": ""})
    return shown


def _printable(content: bytes) -> str:
    if len(content) <= _TEXT_LIMIT and b"\0" not in content:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return f"SHA-256 {hashlib.sha256(content).hexdigest()}\n"


def _shown(path: Path) -> str:
    try:
        return _printable(path.read_bytes())
    except OSError:
        return ""


def apply(decision: Decision, node: str, place: Place = HERE) -> list[Finding]:
    """Write what ``decide`` found, the manifest last: until it is there, a start on the node refuses the mixture."""
    said: list[Finding] = []
    edited = {path: found for path, found, _expected in decision.altered}
    pending = {item.path: item.sha256 for item in decision.write if item.path != bundle.MANIFEST}
    if pending:
        write_private(place.path(bundle.PENDING), bundle.render_manifest(pending), 0o644)
    for item in sorted(decision.write, key=lambda w: w.path == bundle.MANIFEST):
        if item.content is None:
            raise ValueError(f"the content of {item.path} is not here")
        target = place.path(item.path)
        exists = target.exists()
        foreign = exists and item.path not in decision.known and item.path not in (bundle.MANIFEST, bundle.PLAN)
        kept = keep(target, item.path, place) if exists and (foreign or item.path in edited) else None
        if kept and item.path in edited:
            found = f"{item.path} had SHA-256 {edited[item.path]}"
            expected = "the file as planned"
            said.append(finding("LAUNCHER_RESTORED", node=node, found=found, expected=expected, backup=kept))
        if not exists or kept:
            _record(item, target if exists else None, kept, place)
        _write(item, target)
    for item in decision.modes:
        os.chmod(place.path(item.path), int(item.mode, 8))
        if place.root == Path("/"):
            os.chown(place.path(item.path), 0, 0)
    for path in decision.remove:
        if path in edited and place.path(path).exists():
            keep(place.path(path), path, place)
        place.path(path).unlink(missing_ok=True)
    place.path(bundle.PENDING).unlink(missing_ok=True)
    return said


def keep(target: Path, path: str, place: Place) -> str:
    """Copy a file, with its time and mode, to where only root can read it; returns where."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = f"{BACKUP}/launcher/{stamp}"
    place.path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = f"{folder}/{Path(path).name}"
    shutil.copy2(target, place.path(kept))
    return kept


def _record(item: Wanted, target: Path | None, kept: str | None, place: Place) -> None:
    before = None
    if target is not None:
        status = target.stat()
        before = {
            "sha256": sha256(target),
            "size": status.st_size,
            "mode": f"{status.st_mode & 0o7777:04o}",
            "uid": status.st_uid,
            "gid": status.st_gid,
            "mtime_ns": status.st_mtime_ns,
        }
    entry = {"kind": "file_written", "path": item.path, "sha256": item.sha256, "before": before, "backup": kept}
    undo.record(entry, root=place.path(str(undo.ROOT)))


def _write(item: Wanted, target: Path) -> None:
    """Folders on the way are readable by all, except the one that holds the plan."""
    private = item.path == bundle.PLAN
    if not target.parent.is_dir():
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if private:
            target.parent.chmod(0o700)
    assert item.content is not None  # noqa: S101 - apply() has refused that
    write_private(target, item.content, int(item.mode, 8))
    undo.sync_directory(target.parent)
