"""What a download recorded of its files: hashes by their publisher, and the revision they are of.

A Hugging Face cache names each large file by its SHA-256 and each small one by its git hash; a download into a plain
folder keeps the same in ``.cache/huggingface``. A recorded hash says what a file has to be, not what it is: it takes
the place of a first reading where the file is about to be read and checked anyway.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .findings import Finding, finding
from .weights import Manifest

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")
_RECORDS = ".cache/huggingface/download"
# Files that git itself carries are small; a larger one under a git hash is not worth a second reading.
_LARGEST_GIT = 64 << 20


@dataclass(frozen=True)
class Record:
    """``sha256`` and ``git`` by path; ``commits`` are the revisions that are there, ``refs`` their names."""

    sha256: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, str] = field(default_factory=dict)
    commits: frozenset[str] = frozenset()
    refs: Mapping[str, str] = field(default_factory=dict)


def read(root: str, made: Manifest) -> Record:
    """What is recorded of the files of ``made``, which lie in ``root``."""
    base = Path(os.path.realpath(root))
    etags: dict[str, str] = {}
    commits: set[str] = set()
    for path, item in made.files.items():
        folder, _, name = path.rpartition("/")
        if folder == "blobs" or folder.endswith("/blobs"):
            etags[path] = name
            continue
        try:
            commit, etag, stamp = (base / _RECORDS / f"{path}.metadata").read_text().split()[:3]
            recorded_at = float(stamp)
        except (OSError, ValueError):
            continue
        # A file that was written after its record is another one.
        if item.mtime_ns <= (recorded_at + 1) * 1e9:
            etags[path] = etag
            commits.add(commit)
    for path in made.links:
        parts = path.split("/")
        if "snapshots" in parts[:-2]:
            commits.add(parts[parts.index("snapshots") + 1])
    return Record(
        {path: etag for path, etag in etags.items() if _SHA256.fullmatch(etag)},
        {path: etag for path, etag in etags.items() if _GIT.fullmatch(etag)},
        frozenset(commit for commit in commits if _GIT.fullmatch(commit)),
        {name: commit for path in made.files if (found := _ref(base, path)) for name, commit in [found]},
    )


def _ref(base: Path, path: str) -> tuple[str, str] | None:
    head, marker, name = f"/{path}".rpartition("/refs/")
    if not marker or "/snapshots/" in head or "/blobs/" in head:
        return None
    try:
        return name, (base / path).read_text().strip()[:64]
    except (OSError, ValueError):
        return None


def claimed(made: Manifest, record: Record) -> dict[str, str]:
    """The recorded hashes of files whose own is not known."""
    return {path: record.sha256[path] for path in made.unhashed() if path in record.sha256}


def differing(root: str, known: Manifest, record: Record, node: str) -> list[Finding]:
    """Files that were read and are not what their publisher recorded."""
    hits = [
        f"{path}: {str(known.files[path].sha256)[:12]}, published as {wanted[:12]}"
        for path, wanted in sorted(record.sha256.items())
        if known.files[path].sha256 not in (None, wanted)
    ]
    hits += [
        f"{path}: its git hash is not the published {wanted[:12]}"
        for path, wanted in sorted(record.git.items())
        if known.files[path].size <= _LARGEST_GIT and _git_hash(os.path.join(root, path)) not in (None, wanted)
    ]
    if not hits:
        return []
    return [
        finding(
            "WEIGHTS_PUBLISHER_DIFFERS",
            node=node,
            found=f"{len(hits)} files of {root} are not what was published",
            expected="the hashes that the download recorded",
            evidence=hits[:10],
            path=root,
        )
    ]


def _git_hash(path: str) -> str | None:
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def revision_findings(root: str, record: Record, wanted: str | None, node: str) -> list[Finding]:
    """Whether the folder holds the revision that the recipe pins, and whether it pins one."""
    if not record.commits:
        if not wanted:
            return []
        return [
            finding(
                "WEIGHTS_REVISION_UNKNOWN",
                node=node,
                found=f"nothing in {root} says of which revision it is",
                expected=f"revision {wanted}",
            )
        ]
    there = ", ".join(sorted(commit[:12] for commit in record.commits))
    moving = {name: commit for name, commit in record.refs.items() if commit in record.commits}
    if not wanted or not _GIT.fullmatch(wanted):
        commit = moving.get(wanted or "main") or (sorted(record.commits)[0] if len(record.commits) == 1 else "")
        name = f"refs/{wanted or 'main'}"
        return [
            finding(
                "WEIGHTS_UNPINNED",
                node=node,
                found=f"{root} holds {there}, taken by {name}, and the recipe pins no commit",
                expected="a recipe with the commit of its weights",
                commit=commit or "one of them, in full",
            )
        ]
    if wanted not in record.commits:
        return [
            finding(
                "WEIGHTS_REVISION_DIFFERS",
                node=node,
                found=f"{root} holds {there}",
                expected=f"revision {wanted}, which the recipe pins",
                path=root,
                revision=wanted,
            )
        ]
    return []


def owner_findings(root: str, made: Manifest, node: str, wanted: tuple[int, int]) -> list[Finding]:
    """Files that do not belong to the one who owns the models' folder."""
    base = os.path.realpath(root)
    foreign = []
    for path in (*made.files, *made.links):
        try:
            owner = os.lstat(os.path.join(base, path)).st_uid
        except OSError:
            continue
        if owner != wanted[0]:
            foreign.append(f"{path}: uid {owner}")
    if not foreign:
        return []
    return [
        finding(
            "WEIGHTS_OWNER",
            node=node,
            found=f"{len(foreign)} of {len(made.files) + len(made.links)} files of {root} belong to somebody else",
            expected=f"uid {wanted[0]}, to whom the models' folder belongs",
            evidence=foreign[:10],
            owner=f"{wanted[0]}:{wanted[1]}",
            path=root,
        )
    ]
