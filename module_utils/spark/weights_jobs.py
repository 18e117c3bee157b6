"""The long parts of keeping weights the same everywhere: reading hashes, sending what is missing, and publishing what
has arrived.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import copies, peer, publisher, undo, weights
from .findings import Finding, fatal, finding
from .jobs import JobFailedError, Reporter
from .transfer import explain, over_rails, rsync, rsync_argv, write_listing
from .transport.files import Item
from .weights import File, Manifest

BACKUP = "/var/lib/spark-cluster/backup/weights"
KEPT_BYTES = 16 << 20


def _stop_if_fatal(findings: list[Finding]) -> None:
    if fatal(findings):
        raise JobFailedError(*findings)


def _hashed(path: str, job: Reporter, *, full: bool = False, claims: bool = False) -> Manifest:
    """The folder's manifest with every hash, those that are not known read from the disk and remembered. With
    ``claims`` the publisher's word will do for now, and is not remembered.
    """
    made, findings = weights.scan(path, job.node)
    _stop_if_fatal(findings)
    known = made if full else weights.recall(path, made)
    vouched = publisher.claimed(known, publisher.read(path, made)) if claims and not full else {}
    unread = [name for name in known.unhashed() if name not in vouched]
    if unread:
        total = sum(known.files[name].size for name in unread)
        job.stage(f"reads {len(unread)} files of {path}", total)
        began = time.monotonic()
        known, findings = weights.hash_all(path, known, job.node, unread, job.advance)
        seconds = time.monotonic() - began
        job.measure(weights_hash_bytes=total, weights_hash_s=round(seconds, 3))
        weights.remember(path, known)
        _stop_if_fatal(findings)
    return weights.with_hashes(known, vouched)


def hash_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Read what is not known of ``path``; with ``full``, all of it; with ``claims``, what the publisher does not vouch
    for. At the ``source`` what was read is held against what was published.
    """
    path = str(spec["path"])
    known = _hashed(path, job, full=bool(spec.get("full")), claims=bool(spec.get("claims")))
    # A target that differs from what was published gets the source's files anyway.
    if spec.get("source"):
        _stop_if_fatal(publisher.differing(path, known, publisher.read(path, known), job.node))
    if spec.get("prove"):
        job.note(weights.verified(path, known, job.node))
    return {"changed": False, "digest": known.digest(), "manifest": known.as_data(), "unread": 0}


def push_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Send to ``node`` at ``addresses`` what it lacks of ``path`` by its manifest ``have``."""
    path, target = str(spec["path"]), str(spec["node"])
    made, findings = weights.scan(path, job.node)
    _stop_if_fatal(findings + weights.completeness(path, made, job.node))
    source = _hashed(path, job)
    # What links the target has is its own matter: they are put right when the files are there.
    have = {"files": (spec.get("have") or {}).get("files") or []}
    lacking = weights.needed(source, weights.manifest_from(have))
    total = sum(source.files[name].size for name in lacking)
    result: dict[str, Any] = {"changed": bool(lacking), "files": len(lacking), "bytes": total}
    result |= {"digest": source.digest(), "manifest": source.as_data()}
    if not lacking:
        return result
    real = os.path.realpath(path)
    incoming = peer.incoming_dir(path)
    job.stage(f"sends {len(lacking)} files of {path} to {target}", total)
    listing = write_listing(lacking)
    began = time.monotonic()

    def attempt(address: str) -> Finding | None:
        outcome = rsync(rsync_argv(real, address, incoming, listing), job.at)
        if outcome.rc == 0:
            job.measure(weights_copy_address=address)
            return None
        return explain(outcome, node=job.node, target=target, address=address, path=os.path.dirname(path))

    try:
        failure = over_rails([str(a) for a in spec["addresses"]], attempt, job.note, node=job.node, target=target)
    finally:
        os.unlink(listing)
        _drop_cache(real, lacking)
    if failure:
        raise JobFailedError(failure)
    seconds = time.monotonic() - began
    job.measure(weights_copy_bytes=total, weights_copy_files=len(lacking), weights_copy_s=round(seconds, 3))
    return result


def send_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Send to ``node`` over its ``rails`` what it lacks of ``path`` by its manifest ``have``.

    With ``fallback`` in the result no rail carried it, and rsync over ssh has to.
    """
    path = str(spec["path"])
    made, findings = weights.scan(path, job.node)
    _stop_if_fatal(findings + weights.completeness(path, made, job.node))
    source = _hashed(path, job, claims=True)
    have = {"files": (spec.get("have") or {}).get("files") or []}
    lacking = weights.needed(source, weights.manifest_from(have))
    total = sum(source.files[name].size for name in lacking)
    identity = {name: (item.size, item.mtime_ns, item.inode) for name, item in made.files.items()}
    proven: list[str] = []
    root = os.open(os.path.realpath(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        carried = copies.give(
            job,
            spec,
            root,
            _items(source, lacking),
            identity=identity,
            last=[name for name in lacking if _description(name)],
            done=proven.append,
            measurement="weights_copy",
        )
    finally:
        os.close(root)
        _remember_sent(path, source, proven)
    return {"changed": bool(lacking), "files": len(lacking), "bytes": total, "fallback": not carried}


def _remember_sent(path: str, source: Manifest, proven: Sequence[str]) -> None:
    """What arrived with its published hash was read here and is right: it need not be read again."""
    known = weights.recall(path, weights.scan(path, "")[0])
    fresh = {
        name: str(source.files[name].sha256)
        for name in proven
        if name in known.files and _same(source.files[name], known.files[name])
    }
    if any(known.files[name].sha256 is None for name in fresh):
        weights.remember(path, weights.with_hashes(known, fresh))


def _items(source: Manifest, names: Sequence[str]) -> list[Item]:
    return [Item(name, source.files[name].size, source.files[name].sha256) for name in names]


def _description(name: str) -> bool:
    """Whether it is the description of the model, which comes last: a folder that is only half there is not taken for
    a model.
    """
    return os.path.basename(name) == "config.json"


def arrive_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Take what this node lacks of ``path`` by the source's ``manifest`` from the rails, give each file its real name
    when it is whole and verified, and judge the whole.
    """
    path, source = _destination(spec, job)
    lock = peer.claim(peer.incoming_dir(path))
    staging = -1
    try:
        staging = peer.open_incoming(peer.incoming_dir(path), [str(spec["models_dir"])])
        shelf = _Shelf(path, source, spec, job)
        lacking = _items(source, shelf.lacking)
        _stop_if_fatal(copies.room_for(job, path, lacking, staging))

        def arrived(item: Item, status: os.stat_result) -> None:
            found = File(status.st_size, source.files[item.path].sha256, status.st_mtime_ns, status.st_ino)
            shelf.put(item.path, found)

        try:
            received = copies.take(job, spec, lacking, staging, arrived)
        finally:
            shelf.settle()
        if not received.complete:
            # Whether something takes the streams' place is known to the sender only.
            missing = sorted({item.path for item in lacking} - received.arrived)
            return {"changed": bool(received.arrived), "complete": False, "missing": len(missing)}
        return shelf.finish() | {"complete": True}
    except peer.RefusedError as error:
        raise JobFailedError(
            finding(
                "COPY_WRITE_FAILED",
                node=job.node,
                found=str(error),
                expected="a folder of root's own for what arrives",
                path=peer.incoming_dir(path),
            )
        ) from error
    finally:
        if staging >= 0:
            os.close(staging)
        os.close(lock)


def _drop_cache(root: str, names: list[str]) -> None:
    """Give back the memory that reading took."""
    for name in names:
        with suppress(OSError):
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NOFOLLOW)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def receive_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Check what rsync has brought for ``path`` against the source's ``manifest``, give it its real names, and judge
    the whole.
    """
    path, source = _destination(spec, job)
    lock = peer.claim(peer.incoming_dir(path))
    try:
        shelf = _Shelf(path, source, spec, job)
        lacking = shelf.lacking
        if lacking:
            total = sum(source.files[name].size for name in lacking)
            job.stage(f"checks {len(lacking)} files that arrived for {path}", total)
        for name in sorted(lacking, key=lambda item: (_description(item), item)):
            if found := _checked(shelf.incoming, name, source.files[name], job):
                shelf.put(name, found)
        return shelf.finish()
    finally:
        os.close(lock)


def _destination(spec: Mapping[str, Any], job: Reporter) -> tuple[str, Manifest]:
    path = str(spec["path"]).rstrip("/")
    source = weights.manifest_from(spec["manifest"])
    if source.digest() is None:
        raise ValueError("the source's manifest has files without a hash")
    if os.path.islink(path):
        raise JobFailedError(
            finding(
                "WEIGHTS_LINK_ESCAPES",
                node=job.node,
                found=f"{path} is itself a link to {os.readlink(path)}, and its contents are not those of the source",
                expected="a folder, or nothing",
                path=path,
            )
        )
    return path, source


class _Shelf:
    """The real folder of a model on this node, to which verified files are moved one by one."""

    def __init__(self, path: str, source: Manifest, spec: Mapping[str, Any], job: Reporter) -> None:
        self.path, self.source, self.job = path, source, job
        self.incoming = peer.incoming_dir(path)
        self.source_node = str(spec["source_node"])
        self.owner = weights.owner_for(str(spec["models_dir"]))
        self.backup = f"{BACKUP}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        self.have = weights.recall(path, weights.scan(path, job.node)[0]) if os.path.isdir(path) else Manifest()
        self.published = dict(self.have.files)
        self.replaced: list[str] = []
        self.lacking = weights.needed(source, self.have)
        self.folders: dict[str, int] = {}
        self.recorded = False

    def put(self, name: str, found: File) -> None:
        """Give the verified file ``name`` its real name. The journal knows of the copy before the first one."""
        if not self.recorded:
            self._record()
        if name in self.have.files:
            _keep(self.path, name, self.backup)
            self.replaced.append(name)
        inner, base = os.path.split(name)
        if inner not in self.folders:
            self.folders[inner] = _open_folder(self.path, inner, self.owner)
        arrived = os.open(os.path.join(self.incoming, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(arrived, 0o644)
            os.fchown(arrived, *self.owner)
            os.posix_fadvise(arrived, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(arrived)
        os.rename(os.path.join(self.incoming, name), base, dst_dir_fd=self.folders[inner])
        self.published[name] = found

    def _record(self) -> None:
        new = not os.path.isdir(self.path)
        undo.record(
            {
                "kind": "weights_copied",
                "path": self.path,
                "new": new,
                "backup": self.backup,
                "added": sorted(
                    [name for name in self.lacking if name not in self.have.files]
                    + [name for name in self.source.links if name not in self.have.links]
                ),
                "replaced": sorted(name for name in self.lacking if name in self.have.files),
            }
        )
        self.recorded = True

    def settle(self) -> None:
        """Make the names durable and remember the hashes, also of a copy that goes on another time."""
        for descriptor in self.folders.values():
            os.fsync(descriptor)
            os.close(descriptor)
        if self.folders:
            undo.sync_directory(Path(os.path.dirname(self.path)))
            weights.remember(self.path, self._now())
        self.folders = {}

    def _now(self) -> Manifest:
        now = weights.scan(self.path, self.job.node)[0]
        known = self.published
        return Manifest(
            {name: known[name] if _same(known.get(name), item) else item for name, item in now.files.items()}, now.links
        )

    def finish(self) -> dict[str, Any]:
        source = self.source
        self.settle()
        _links(self.path, source, self.owner)
        with suppress(FileNotFoundError):
            shutil.rmtree(self.incoming)
        whole = self._now()
        weights.remember(self.path, whole)
        for found in weights.compare(self.path, source, whole, self.job.node):
            self.job.note(found)
        if self.replaced:
            self.job.note(
                finding(
                    "WEIGHTS_REPLACED",
                    node=self.job.node,
                    found=f"{len(self.replaced)} files of {self.path} had other contents than at {self.source_node}",
                    expected="the files of the source",
                    evidence=self.replaced[:10],
                    source=self.source_node,
                    backup=self.backup,
                )
            )
        return {"changed": True, "digest": source.digest(), "files": len(self.lacking)}


def _keep(path: str, name: str, backup: str) -> None:
    """Put a small file that is about to be replaced where only root reads it."""
    former = os.path.join(path, name)
    if not weights.regular(former) or os.lstat(former).st_size > KEPT_BYTES:
        return
    kept = os.path.join(backup, name)
    os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
    shutil.copy2(former, kept, follow_symlinks=False)


def _same(known: File | None, found: File) -> bool:
    """Whether a file is still the one that was read."""
    return known is not None and (known.size, known.mtime_ns, known.inode) == (found.size, found.mtime_ns, found.inode)


def _checked(incoming: str, name: str, wanted: File, job: Reporter) -> File | None:
    """The file that arrived, if it is the source's; a wrong one is removed, so that the next copy sends it anew."""
    arrived = os.path.join(incoming, name)
    if not weights.regular(arrived):
        return None
    item = weights.hash_file(arrived, job.advance)
    if (item.size, item.sha256) == (wanted.size, wanted.sha256):
        return item
    os.unlink(arrived)
    return None


def _open_folder(path: str, inner: str, owner: tuple[int, int]) -> int:
    """The folder ``inner`` of ``path``, made where it is missing; no link is followed below ``path``."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not os.path.isdir(path):
        os.makedirs(path, 0o755)
        os.chown(path, *owner)
    here = os.open(path, flags)
    for part in [part for part in inner.split("/") if part]:
        above = here
        try:
            try:
                os.mkdir(part, 0o755, dir_fd=above)
                os.chown(part, *owner, dir_fd=above, follow_symlinks=False)
            except FileExistsError:
                pass
            try:
                here = os.open(part, flags, dir_fd=above)
            except OSError:
                # Something else stands where the source has a folder: a link or a file.
                os.unlink(part, dir_fd=above)
                os.mkdir(part, 0o755, dir_fd=above)
                os.chown(part, *owner, dir_fd=above, follow_symlinks=False)
                here = os.open(part, flags, dir_fd=above)
        finally:
            os.close(above)
    return here


def _links(path: str, source: Manifest, owner: tuple[int, int]) -> None:
    for name, target in source.links.items():
        inner, base = os.path.split(name)
        folder = _open_folder(path, inner, owner)
        try:
            try:
                if os.readlink(base, dir_fd=folder) == target:
                    continue
            except OSError:
                pass
            fresh = f".{base}.spark-new"
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)
            os.symlink(target, fresh, dir_fd=folder)
            os.chown(fresh, *owner, dir_fd=folder, follow_symlinks=False)
            os.rename(fresh, base, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
