"""Folders of weights: what is in them, whether it is whole, and whether two of them are the same.

A manifest holds the size and SHA-256 of every file and the target of every link. Hashes are made once and remembered by
(path, size, mtime, inode); the digest of a whole manifest is one line by which nodes are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from .findings import Finding, finding
from .peer import INCOMING

CACHE = Path("/var/lib/spark-cluster/weights")
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".msgpack")

_IGNORED_SUFFIXES = (".lock", ".incomplete")
_CHUNK = 1 << 20
_DROP_EVERY = 64 << 20
_LARGEST_HEADER = 100_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """A regular file; ``sha256`` is None until it was read. ``mtime_ns`` and ``inode`` say which file it was on its own
    node.
    """

    size: int
    sha256: str | None = None
    mtime_ns: int = 0
    inode: int = 0


@dataclass
class Manifest:
    """The contents of a folder by relative path: files, and links with their targets."""

    files: dict[str, File] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(item.size for item in self.files.values())

    def unhashed(self) -> list[str]:
        return [path for path, item in self.files.items() if item.sha256 is None]

    def digest(self) -> str | None:
        """One hash for the whole folder; None while a file of it is unread."""
        if self.unhashed():
            return None
        lines = [f"{path}\0{item.size}\0{item.sha256}\n" for path, item in self.files.items()]
        lines += [f"{path}\0-> {target}\n" for path, target in self.links.items()]
        return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()

    def as_data(self) -> dict[str, list[list[Any]]]:
        """Plain data, lists only: a file's name is never a key."""
        return {
            "files": [[path, item.size, item.sha256] for path, item in sorted(self.files.items())],
            "links": [[path, target] for path, target in sorted(self.links.items())],
        }


def manifest_from(data: Mapping[str, Any]) -> Manifest:
    """The inverse of ``Manifest.as_data``. Raises ValueError for a path or link that would leave the folder: it came
    from elsewhere.
    """
    made = Manifest()
    for path, size, sha256 in data.get("files", ()):
        if not _inside(path) or not isinstance(size, int) or size < 0:
            raise ValueError(f"a manifest with the file {path!r} of {size!r} bytes")
        if sha256 is not None and not _SHA256.fullmatch(str(sha256)):
            raise ValueError(f"a manifest with the hash {sha256!r}")
        made.files[path] = File(size, sha256)
    for path, target in data.get("links", ()):
        if not _inside(path) or not isinstance(target, str) or _leaves(path, target):
            raise ValueError(f"a manifest with the link {path!r} to {target!r}")
        made.links[path] = target
    both = made.files.keys() & made.links.keys()
    if both:
        raise ValueError(f"a manifest with {sorted(both)} both as file and as link")
    parents = {parent for path in (*made.files, *made.links) for parent in _parents(path)}
    if parents & (made.files.keys() | made.links.keys()):
        raise ValueError("a manifest with a file or link where a folder has to be")
    return made


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _inside(path: Any) -> bool:
    return (
        isinstance(path, str)
        and path not in ("", ".")
        and not path.startswith("/")
        and path == os.path.normpath(path)
        and ".." not in path.split("/")
        and "\0" not in path
        and "\n" not in path
    )


def _leaves(path: str, target: str) -> bool:
    """Whether a link leads out of the folder by its spelling."""
    if target.startswith("/") or "\0" in target or "\n" in target or not target:
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False


# Reading a folder


def scan(root: str, node: str) -> tuple[Manifest, list[Finding]]:
    """What lies in ``root``, without reading any file, and what is wrong with its links and kinds.

    Hidden folders hold no weights (a download's own records, version control) and are passed over.
    """
    made, odd = Manifest(), []
    base = os.path.realpath(root)
    pending = [""]
    while pending:
        inner = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(base, inner)), key=lambda entry: entry.name)
        except OSError as error:
            odd.append((inner or ".", error.strerror or str(error)))
            continue
        for entry in entries:
            path = f"{inner}/{entry.name}" if inner else entry.name
            if not _inside(path):
                odd.append((path, "a name with a line break"))
            elif entry.is_symlink():
                made.links[path] = os.readlink(entry.path)
            elif entry.is_dir():
                if not entry.name.startswith("."):
                    pending.append(path)
            elif entry.is_file():
                if not entry.name.endswith(_IGNORED_SUFFIXES):
                    found = entry.stat(follow_symlinks=False)
                    made.files[path] = File(found.st_size, None, found.st_mtime_ns, found.st_ino)
            else:
                odd.append((path, "neither a file nor a folder nor a link"))
    findings = []
    if odd:
        findings.append(
            finding(
                "WEIGHTS_UNREADABLE",
                node=node,
                found=f"{len(odd)} entries of {root} that cannot be copied",
                expected="regular files, folders and links",
                evidence=[f"{path}: {why}" for path, why in odd[:10]],
                path=os.path.join(root, odd[0][0]),
            )
        )
    return made, findings + _link_findings(root, base, made, node)


def look(root: str, node: str) -> tuple[bool, Manifest, list[Finding]]:
    """Whether ``root`` is there, what lies in it, and what is wrong with it."""
    if not os.path.isdir(root):
        return False, Manifest(), []
    made, findings = scan(root, node)
    return True, made, findings


def _link_findings(root: str, base: str, made: Manifest, node: str) -> list[Finding]:
    escaping, dangling = [], []
    for path, target in sorted(made.links.items()):
        full = os.path.join(base, path)
        real = os.path.realpath(full)
        if _leaves(path, target) or not (real + "/").startswith(base + "/"):
            escaping.append(f"{path} -> {target}")
        elif not os.path.exists(real):
            dangling.append(f"{path} -> {target}")
    findings = []
    if escaping:
        findings.append(
            finding(
                "WEIGHTS_LINK_ESCAPES",
                node=node,
                found=f"{len(escaping)} of {len(made.links)} links of {root} lead out of it",
                expected="relative links to files in the same folder",
                evidence=escaping[:10],
                path=root,
            )
        )
    if dangling:
        findings.append(
            finding(
                "WEIGHTS_LINK_DANGLING",
                node=node,
                found=f"{len(dangling)} of {len(made.links)} links of {root} point to nothing",
                expected="a file behind every link",
                evidence=dangling[:10],
                path=root,
            )
        )
    return findings


def completeness(root: str, made: Manifest, node: str) -> list[Finding]:
    """Whether the folder of the source is whole, as far as it says so itself: sizes, headers, index."""
    base = os.path.realpath(root)
    names = [path for path in (*made.files, *made.links) if path.endswith(WEIGHT_SUFFIXES)]
    empty = [path for path in names if _size(os.path.join(base, path)) == 0]
    damaged = []
    for path in names:
        if path.endswith(".safetensors") and path not in empty:
            why = _safetensors_fault(os.path.join(base, path))
            if why:
                damaged.append(f"{path}: {why}")
    absent = []
    if not names:
        absent.append("no file of weights at all")
    for path in (*made.files, *made.links):
        if path.endswith(".index.json"):
            absent += _absent_shards(base, path, made)
    findings = []
    for code, hits, what, expected in (
        ("WEIGHTS_EMPTY", empty, "files of weights without a byte in them", "weights in every file of weights"),
        ("WEIGHTS_TRUNCATED", damaged, "files whose size is not what their header says", "whole files"),
        ("WEIGHTS_INCOMPLETE", absent, "files lacking", "every file that the index names"),
    ):
        if hits:
            findings.append(
                finding(
                    code,
                    node=node,
                    found=f"{root}: {len(hits)} {what}",
                    expected=expected,
                    evidence=hits[:10],
                    path=root,
                )
            )
    return findings


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _safetensors_fault(path: str) -> str | None:
    """Why the file is not a whole safetensors file: its first eight bytes give the length of a header that names every
    offset.
    """
    try:
        with open(path, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            first = opened.read(8)
            if first.startswith(b"version "):
                return "a pointer of git-lfs, not the file itself"
            if len(first) < 8:
                return f"{size} bytes are too few for a header"
            (length,) = struct.unpack("<Q", first)
            if length > min(size - 8, _LARGEST_HEADER):
                return f"a header of {length} bytes in a file of {size}"
            header = json.loads(opened.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "its header is not that of a safetensors file"
    wanted = 8 + length + max(ends, default=0)
    return None if size == wanted else f"{size} bytes, and its header says {wanted}"


def _absent_shards(base: str, index: str, made: Manifest) -> list[str]:
    try:
        data = json.loads(Path(base, index).read_text())
        shards = sorted(set(data["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{index} is not an index"]
    folder = os.path.dirname(index)
    present = made.files.keys() | made.links.keys()
    return [f"{shard}, named in {index}" for shard in shards if os.path.join(folder, str(shard)) not in present]


# Remembered hashes


def _cache_path(root: str, cache: Path) -> Path:
    return cache / f"{hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:24]}.json"


def recall(root: str, made: Manifest, cache: Path = CACHE) -> Manifest:
    """``made`` with the hashes that are known for these very files: same path, size, time and inode."""
    try:
        known = json.loads(_cache_path(root, cache).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return made
    if not isinstance(known, dict):
        return made
    files = {}
    for path, item in made.files.items():
        match known.get(path):
            case [item.size, item.mtime_ns, item.inode, str(sha256)] if _SHA256.fullmatch(sha256):
                files[path] = replace(item, sha256=sha256)
            case _:
                files[path] = item
    return Manifest(files, dict(made.links))


def with_hashes(made: Manifest, hashes: Mapping[str, str]) -> Manifest:
    """``made`` with these hashes in the place of unknown ones."""
    files = {
        path: replace(item, sha256=item.sha256 or hashes[path]) if path in hashes else item
        for path, item in made.files.items()
    }
    return Manifest(files, dict(made.links))


def remember(root: str, made: Manifest, cache: Path = CACHE) -> None:
    """Keep the hashes of ``made``, and only these, for ``root``."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = {
        path: [item.size, item.mtime_ns, item.inode, item.sha256] for path, item in made.files.items() if item.sha256
    }
    descriptor, name = tempfile.mkstemp(dir=cache)
    with os.fdopen(descriptor, "w") as out:
        json.dump({"schema": 1, "root": os.path.realpath(root), "files": known}, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(name, _cache_path(root, cache))


class ChangedError(Exception):
    """A file was not the same after reading as before."""


class StoppedError(Exception):
    """Reading was given up because another part failed."""


def hash_open(descriptor: int, moved: Callable[[int], None], stop: Event | None = None) -> tuple[str, os.stat_result]:
    """SHA-256 of an open file. What was read is dropped from the page cache again: on these machines it is the GPU's
    memory.
    """
    before = os.fstat(descriptor)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    done = dropped = 0
    with open(descriptor, "rb", buffering=0, closefd=False) as opened:
        while count := opened.readinto(buffer):
            if stop and stop.is_set():
                raise StoppedError
            digest.update(buffer[:count])
            done += count
            if done > before.st_size:
                raise ChangedError
            moved(count)
            if done - dropped >= _DROP_EVERY:
                os.posix_fadvise(descriptor, dropped, done - dropped, os.POSIX_FADV_DONTNEED)
                dropped = done
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or done != after.st_size:
        raise ChangedError
    return digest.hexdigest(), after


def hash_file(path: str, moved: Callable[[int], None], stop: Event | None = None) -> File:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        digest, status = hash_open(descriptor, moved, stop)
    finally:
        os.close(descriptor)
    return File(status.st_size, digest, status.st_mtime_ns, status.st_ino)


def hash_all(
    root: str, made: Manifest, node: str, paths: Iterable[str], moved: Callable[[int], None] = lambda _count: None
) -> tuple[Manifest, list[Finding]]:
    """``made`` with the hashes of ``paths`` read from the disk, largest first, on several cores."""
    order = sorted(paths, key=lambda path: -made.files[path].size)
    base = os.path.realpath(root)
    stop = Event()
    files = dict(made.files)
    findings: list[Finding] = []
    with ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1, len(order) or 1))) as pool:
        waiting = [(path, pool.submit(hash_file, os.path.join(base, path), moved, stop)) for path in order]
        try:
            for path, future in waiting:
                findings += _take(root, path, node, future.result, files)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Manifest(files, dict(made.links)), findings


def _take(root: str, path: str, node: str, result: Callable[[], File], files: dict[str, File]) -> list[Finding]:
    try:
        files[path] = result()
    except ChangedError:
        return [
            finding(
                "WEIGHTS_CHANGING",
                node=node,
                found=f"{os.path.join(root, path)} had another size or time after it was read than before",
                expected="files that nothing writes to",
                path=root,
            )
        ]
    except OSError as error:
        return [
            finding(
                "WEIGHTS_UNREADABLE",
                node=node,
                found=f"{os.path.join(root, path)}: {error.strerror or error}",
                expected="a file that root can read",
                path=os.path.join(root, path),
            )
        ]
    return []


# Comparing


def needed(source: Manifest, have: Manifest) -> list[str]:
    """Files that a node with ``have`` lacks or has otherwise, largest first."""
    lacking = [
        path
        for path, item in source.files.items()
        if path not in have.files
        or (have.files[path].size, have.files[path].sha256) != (item.size, item.sha256)
        or item.sha256 is None
    ]
    return sorted(lacking, key=lambda path: (-source.files[path].size, path))


def compare(root: str, source: Manifest, have: Manifest, node: str) -> list[Finding]:
    """The verdict on a target: what differs from the source, what it has beyond it, or that all is the same."""
    differing = needed(source, have)
    differing += [path for path, target in source.links.items() if have.links.get(path) != target]
    extra = sorted((have.files.keys() | have.links.keys()) - (source.files.keys() | source.links.keys()))
    findings = []
    if differing:
        findings.append(
            finding(
                "WEIGHTS_DIFFER",
                node=node,
                found=f"{len(differing)} files of {root} are not those of the source",
                expected="the same SHA-256 for every file",
                evidence=[_difference(path, source, have) for path in differing[:10]],
                path=os.path.join(root, differing[0]),
            )
        )
    else:
        findings.append(verified(root, source, node))
    if extra:
        shown = [os.path.join(root, path) for path in extra[:10]]
        findings.append(
            finding(
                "WEIGHTS_EXTRA",
                node=node,
                found=f"{len(extra)} files in {root} that the source does not have",
                expected="the same files on every node",
                evidence=shown,
                paths=" ".join(shown) + (" ..." if len(extra) > len(shown) else ""),
            )
        )
    return findings


def decide(
    node: str, source_node: str, mine: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[bool, list[Finding]]:
    """Whether this node has to get something from ``source_node``, from what weights_info or a hash job said on both,
    and the proof where it has not.

    A digest is unknown only in check mode; nothing is said about such a folder then.
    """
    both_known = mine["digest"] is not None and source["digest"] is not None
    if node == source_node and mine.get("claimed"):
        # So far it has the publisher's word only; the reading that follows the copy has the say.
        return False, []
    if both_known and mine["digest"] == source["digest"] and not mine["arriving"]:
        return False, [verified(str(mine["path"]), manifest_from(mine["manifest"]), node)]
    if node == source_node:
        return False, []
    return bool(not mine["present"] or mine["arriving"] or both_known), []


def verified(root: str, made: Manifest, node: str) -> Finding:
    return finding(
        "WEIGHTS_VERIFIED",
        node=node,
        found=f"{root}: {len(made.files)} files, {made.bytes} bytes, manifest {str(made.digest())[:12]}",
        expected="the manifest of the source",
    )


def _difference(path: str, source: Manifest, have: Manifest) -> str:
    if path in source.links:
        return f"{path}: link to {have.links.get(path, 'nothing')}, at the source to {source.links[path]}"
    want, got = source.files[path], have.files.get(path)
    if got is None:
        return f"{path}: not there"
    if got.size != want.size:
        return f"{path}: {got.size} bytes, at the source {want.size}"
    return f"{path}: {str(got.sha256)[:12]}, at the source {str(want.sha256)[:12]}"


def missing(node: str, searched: Sequence[str], repository: str | None = None, revision: str | None = None) -> Finding:
    """No node has the weights: where they were looked for, and how to get them."""
    path = searched[0] if searched else "models_dir"
    if repository:
        at = f" --revision {revision}" if revision else ""
        get = f"hf download {repository}{at} --local-dir {path}"
    else:
        get = f"copy the model's folder to {path}"
    return finding(
        "WEIGHTS_MISSING",
        node=node,
        found="the weights are on no node of the cluster",
        expected="the model's folder on at least one node",
        evidence=[f"looked at {place}" for place in searched],
        get=get,
    )


def room(node: str, path: str, need: int, free: int, headroom: int = 0) -> list[Finding]:
    """Whether ``need`` bytes fit where ``path`` is to be."""
    if need + headroom <= free or need == 0:
        return []
    short = need + headroom - free
    return [
        finding(
            "DISK_FULL",
            node=node,
            found=f"{free / 2**30:.1f} GiB free for {path}",
            expected=f"{(need + headroom) / 2**30:.1f} GiB, of which {headroom / 2**30:.1f} stay free",
            path=existing_parent(path),
            short=f"{max(short, 1 << 20) / 2**30:.2f} GiB",
        )
    ]


def existing_parent(path: str) -> str:
    """``path`` itself or the nearest folder above it that exists."""
    while not os.path.isdir(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    return path or "/"


def owner_for(models_dir: str) -> tuple[int, int]:
    """To whom copied weights belong: the owner of the models' folder, or of the one in which it will be made."""
    status = os.stat(existing_parent(models_dir))
    return status.st_uid, status.st_gid


def regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def arriving(path: str) -> bool:
    """Whether something that was being copied lies beside ``path``."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.lexists(os.path.join(parent, INCOMING + name))
