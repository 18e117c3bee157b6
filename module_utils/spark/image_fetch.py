"""The job that brings an image from the node that has it, and the one that pulls it from its registry.

It runs on the node that lacks the image. On the containerd store that node's Docker pulls from a registry on its own
loopback that has the other node's blobs behind it; on the classic store, which does not recognise by a digest the
layers that were loaded, it loads an archive in which the layers that it has are left out. Docker checks every layer
against its hash in both cases.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import Any

from . import image_store, undo
from .findings import Finding, finding
from .image_daemon import Call, Daemon, DaemonError, Store, silent
from .image_lanes import LaneError, Source, SourceError, since
from .image_registry import REPOSITORY, Registry
from .image_store import Described, StoreError, chain_ids, described_from
from .images import ABSENT, find, judge, local_name, pulled, remember, same, split, unavailable
from .jobs import JobFailedError, Reporter

# The daemon's own work has no counter: the disk has to show it. Longer than any fsync of a large layer takes.
IDLE_DAEMON_S = 900
_LOOK_EVERY_S = 1.0
_LEFTOVER = re.compile(rf"127\.0\.0\.1:\d+/{REPOSITORY}/")
_DAMAGED = re.compile(
    r"unexpected commit digest|digest mismatch|failed size validation|verification failed|invalid diffID"
    r"|does not match|wrong diff id|layers from manifest don't match|mismatched (image )?rootfs",
    re.IGNORECASE,
)
_GIB = 1 << 30


def fetch_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Bring ``reference`` from ``source_node`` at ``addresses``, unless this node has the same image already."""
    reference, source_node = str(spec["reference"]), str(spec["source_node"])
    daemon = Daemon()
    source = Source(
        reference,
        [str(item) for item in spec["addresses"]],
        node=job.node,
        source_node=source_node,
        note=job.note,
        moved=job.advance,
    )
    try:
        return Fetch(reference, source_node, daemon, source, job, int(spec.get("headroom_bytes") or 0)).run()
    except DaemonError as error:
        raise JobFailedError(silent(error, job.node)) from error
    except LaneError as error:
        raise JobFailedError(error.finding) from error
    except SourceError as error:
        raise JobFailedError(_source_refuses(error, reference, source_node)) from error
    finally:
        source.close()


def _source_refuses(error: SourceError, reference: str, source_node: str) -> Finding:
    if error.kind == "daemon" and "not here any more" in str(error):
        return unavailable(reference, None, source_node, [str(error)])
    return finding(
        "DOCKER_SILENT",
        node=source_node,
        found="the source's Docker does not give the image",
        expected="its manifest and its layers",
        evidence=str(error).splitlines()[-5:],
    )


class Fetch:
    def __init__(
        self, reference: str, source_node: str, daemon: Daemon, source: Source, job: Reporter, headroom_bytes: int
    ) -> None:
        self.reference, self.source_node = reference, source_node
        self.daemon, self.source, self.job = daemon, source, job
        self.headroom_bytes = headroom_bytes
        self.name = local_name(reference)

    def run(self) -> dict[str, Any]:
        job, daemon = self.job, self.daemon
        store = daemon.store()
        _forget_leftovers(daemon)
        job.stage(f"asks {self.source_node} for {self.name}")
        began = time.monotonic()
        plain = ""
        try:
            said = self.source.describe(sizes=store.kind == "containerd")
            described = described_from(said["described"])
            theirs = dict(said["identity"])
        except (StoreError, SourceError) as error:
            if isinstance(error, SourceError) and error.kind != "store":
                raise
            plain, described, said, theirs = str(error), None, {}, {}
        if described:
            mine = self._present()
            if mine and same(mine, theirs):
                self._name(mine, theirs)
                job.note(judge(self.reference, mine, theirs, job.node, self.source_node))
                return {"changed": False, "bytes": 0, "image": mine}
            lacking = _lacking(store, described)
            self._room(store, described, lacking, int(said.get("disk_bytes") or 0))
            self._journal(store, described)
            try:
                self._bring(store, described, lacking)
            except StoreError as error:
                plain = str(error)
        if plain:
            self._plainly(plain)
        seconds = since(began)
        mine = self._present()
        if mine is None:
            raise JobFailedError(judge(self.reference, ABSENT, theirs or ABSENT, job.node, self.source_node))
        if theirs:
            self._name(mine, theirs)
            mine = self._present() or mine
            job.note(judge(self.reference, mine, theirs, job.node, self.source_node))
        rails = {address: count for address, count in self.source.by_address.items() if count}
        job.measure(
            image_copy_bytes=self.source.bytes,
            image_copy_s=seconds,
            image_copy_rails=json.dumps(rails, sort_keys=True),
            image_copy_way="docker save" if plain else "pull" if store.kind == "containerd" else "load",
        )
        return {"changed": True, "bytes": self.source.bytes, "image": mine}

    def _present(self) -> dict[str, Any] | None:
        """What was brought, by whatever name it has now; a pinned digest alone would not find it on every store."""
        return find(self.reference, self.daemon.image) or find(self.name, self.daemon.image)

    def _name(self, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """The name by which every node knows it, and the digest that the copy proved where the store cannot keep it."""
        found = self.daemon.image(self.name)
        if (found or {}).get("Id") != mine["id"]:
            repository, tag, _ = split(self.name)
            self.daemon.tag(str(mine["id"]), repository, tag or "latest")
        digest = split(self.reference)[2]
        if same(mine, theirs) and digest and digest in theirs["digests"] and digest not in mine["digests"]:
            remember(str(mine["content"]), digest)

    # Before a byte moves

    def _room(self, store: Store, described: Described, lacking: Sequence[image_store.Layer], disk: int) -> None:
        """What will be written, in words and bytes, against what the disk has."""
        packed = sum(layer.size for layer in lacking)
        whole = sum(layer.size for layer in described.layers)
        unpacked_whole = max(0, disk - whole) if store.kind == "containerd" and disk > whole else max(disk, whole)
        unpacked = round(unpacked_whole * packed / whole) if whole else 0
        words = "kept beside what they unpack to" if store.kind == "containerd" else "staged while they are unpacked"
        need = packed + unpacked + self.headroom_bytes
        free = os.statvfs(store.root).f_bavail * os.statvfs(store.root).f_frsize
        if free >= need:
            return
        total = (
            f"{len(lacking)} of {len(described.layers)} layers {_gib(packed)}, {words}: {_gib(unpacked)}"
            f"; headroom {_gib(self.headroom_bytes)}; together {_gib(need)}"
        )
        raise JobFailedError(
            finding(
                "IMAGE_DISK_TOO_SMALL",
                node=self.job.node,
                found=f"{_gib(free)} free for {store.root}",
                expected=f"{_gib(need)} for {self.name}",
                evidence=[total],
                missing=_gib(need - free),
                path=store.root,
            )
        )

    def _journal(self, store: Store, described: Described) -> None:
        """Before the change, as with every change: the id is known from what the source said."""
        found = self.daemon.image(self.name)
        # Each store calls an image by another document's hash.
        after = described.top if store.kind == "containerd" else described.config
        before = str((found or {}).get("Id") or "")
        if before != after:
            undo.record({"kind": "image_loaded", "reference": self.name, "id": after, "replaced": before})

    # The ways

    def _bring(self, store: Store, described: Described, lacking: Sequence[image_store.Layer]) -> None:
        total = sum(layer.size for layer in lacking)
        skipped = len(described.layers) - len(lacking)
        there = f", {skipped} of {len(described.layers)} layers are there" if skipped else ""
        self.job.stage(f"fetches {self.name} from {self.source_node}{there}", total)
        work = self._pull if store.kind == "containerd" else self._load
        Watched(store, self.job, self.source, self.name).run(lambda began: work(described, began))

    def _pull(self, described: Described, began: Callable[[Call], None]) -> None:
        sizes = {layer.digest: layer.size for layer in described.layers}
        with Registry(described.documents, sizes, self.source.layer) as registry:
            try:
                self.daemon.pull(registry.repository, described.top, lambda _done, _total: None, began)
            except DaemonError as error:
                raise self._explained(error, registry.errors) from error
            temporary = f"{registry.repository}@{described.top}"
            repository, tag, _ = split(self.name)
            self.daemon.tag(temporary, repository, tag or "latest")
            self.daemon.forget(temporary)

    def _load(self, described: Described, began: Callable[[Call], None]) -> None:
        chain = chain_ids([layer.diff_id for layer in described.layers])
        store = self.daemon.store()
        lacking = [
            layer for layer, at in zip(described.layers, chain, strict=True) if not image_store.has_chain(store, at)
        ]
        try:
            self.daemon.load(archive(described, self.name, lacking, self.source.layer_size), began)
        except DaemonError as error:
            raise self._explained(error, []) from error

    def _explained(self, error: DaemonError, behind: Sequence[Exception]) -> Exception:
        """The cause rather than Docker's view of it: a rail that broke shows as a registry's short answer."""
        for cause in behind:
            if isinstance(cause, (LaneError, SourceError)):
                return cause
        said = str(error)
        if "no space left on device" in said.lower():
            return JobFailedError(
                finding(
                    "DISK_FULL",
                    node=self.job.node,
                    found="the disk ran full below Docker's folder",
                    expected=f"a whole copy on {self.job.node}",
                    evidence=[said],
                    path="/var/lib/docker",
                    short="space",
                )
            )
        if _DAMAGED.search(said):
            return JobFailedError(
                finding(
                    "IMAGE_LAYER_DAMAGED",
                    node=self.job.node,
                    found="Docker refuses a layer",
                    expected="layers with the hashes that the image names",
                    evidence=said.splitlines()[-5:],
                    source=self.source_node,
                    reference=self.reference,
                )
            )
        return error

    def _plainly(self, why: str) -> None:
        """``docker save`` there, ``docker load`` here: the way that needs no knowledge of the stores."""
        self.job.note(
            finding(
                "IMAGE_SAVED_WHOLE",
                node=self.job.node,
                found=f"{self.name} is copied whole by docker save and docker load",
                expected="layers read from the store of the source",
                evidence=[why],
            )
        )
        self.job.stage(f"fetches {self.name} from {self.source_node} by docker save")
        found = self.daemon.image(self.name)
        undo.record(
            {"kind": "image_loaded", "reference": self.name, "id": "", "replaced": str((found or {}).get("Id") or "")}
        )
        watched = Watched(self.daemon.store(), self.job, self.source, self.name)
        try:
            watched.run(lambda began: self.daemon.load(self.source.save(), began))
        except DaemonError as error:
            explained = self._explained(error, [])
            raise explained from error


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


def _lacking(store: Store, described: Described) -> list[image_store.Layer]:
    if store.kind == "containerd":
        return [layer for layer in described.layers if not image_store.has_blob(store, layer.digest)]
    chain = chain_ids([layer.diff_id for layer in described.layers])
    return [layer for layer, at in zip(described.layers, chain, strict=True) if not image_store.has_chain(store, at)]


def _forget_leftovers(daemon: Daemon) -> None:
    """Names of a pull that was killed before it gave the image its own."""
    for name in daemon.names():
        if _LEFTOVER.match(name):
            daemon.forget(name)


def archive(
    described: Described,
    name: str,
    lacking: Sequence[image_store.Layer],
    layer: Callable[[str], tuple[int, Iterator[bytes]]],
) -> Iterator[bytes]:
    """What ``docker load`` takes, with the layers left out that it has: it looks for a layer by its chain first and
    opens the file only if it does not know it.
    """
    files = {item.digest: f"{item.digest.removeprefix('sha256:')}/layer.tar" for item in described.layers}
    config = f"{described.config.removeprefix('sha256:')}.json"
    entry = {"Config": config, "RepoTags": [name], "Layers": [files[item.digest] for item in described.layers]}
    yield from _small(config, described.documents[described.config][1])
    yield from _small("manifest.json", json.dumps([entry]).encode())
    for item in {item.digest: item for item in lacking}.values():
        size, blocks = layer(item.digest)
        yield _header(files[item.digest], size)
        yield from blocks
        yield bytes(-size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _small(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


class Watched:
    """A call to the daemon that is given up when neither a byte comes in nor the disk changes."""

    def __init__(
        self,
        store: Store,
        job: Reporter,
        source: Source | None,
        name: str,
        *,
        idle_s: float = IDLE_DAEMON_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._job, self._source, self._name = store, job, source, name
        self._idle_s, self._clock = idle_s, clock
        self._call: Call | None = None
        self._over = Event()
        self._given_up = False

    def run(self, work: Callable[[Callable[[Call], None]], None]) -> None:
        Thread(target=self._watch, daemon=True).start()
        try:
            work(self._began)
        except DaemonError as error:
            if self._given_up:
                raise DaemonError(0, f"nothing moved for {self._idle_s:.0f} s, neither bytes nor the disk") from error
            raise
        finally:
            self._over.set()

    def _began(self, call: Call) -> None:
        self._call = call

    def _state(self) -> tuple[int, int]:
        try:
            found = os.statvfs(self._store.root)
        except OSError:
            return (self._source.bytes if self._source else 0), 0
        return (self._source.bytes if self._source else 0), found.f_bavail * found.f_frsize

    def _watch(self) -> None:
        began_free = self._state()[1]
        last, moved_at, moved, unpacking = self._state(), self._clock(), self._clock(), False
        while not self._over.wait(_LOOK_EVERY_S):
            now = self._state()
            if now != last:
                if now[0] != last[0]:
                    moved, unpacking = self._clock(), False
                last, moved_at = now, self._clock()
            elif self._clock() - moved_at > self._idle_s and self._call:
                self._given_up = True
                self._call.abandon()
                return
            # Bytes stand still, the disk does not: say what goes on.
            if not unpacking and self._clock() - moved > 3 and self._source and self._source.bytes:
                unpacking = True
                self._job.stage(f"unpacks {self._name}")
            if unpacking:
                self._job.at(max(0, began_free - now[1]))


# From a registry


def pull_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Pull ``reference`` by its ``digest``; a tag alone is never pulled."""
    reference, digest = str(spec["reference"]), str(spec["digest"])
    repository = split(reference)[0]
    if split(f"{repository}@{digest}")[2] is None:
        raise ValueError(f"{repository}@{digest} has no digest")
    daemon, name = Daemon(), local_name(reference)
    try:
        store = daemon.store()
        before = str((daemon.image(name) or {}).get("Id") or "")
        job.stage(f"pulls {repository}@{digest}")
        undo.record({"kind": "image_loaded", "reference": name, "id": "", "replaced": before})
        undo.record({"kind": "image_loaded", "reference": f"{repository}@{digest}", "id": "", "replaced": ""})
        began = time.monotonic()
        shown = [0]

        def moved(done: int, total: int) -> None:
            if total > shown[0]:
                shown[0] = total
                job.stage(f"pulls {repository}@{digest}", total)
            job.at(done)

        watched = Watched(store, job, None, name)
        watched.run(lambda began_call: daemon.pull(repository, digest, moved, began_call))
        repository_name, tag, _ = split(name)
        daemon.tag(f"{repository}@{digest}", repository_name, tag or "latest")
        job.measure(image_pull_s=since(began))
        found = pulled(f"{repository}@{digest}", name, daemon.image)
    except DaemonError as error:
        raise JobFailedError(_pull_failed(error, reference, digest, job.node)) from error
    if found is None:
        raise JobFailedError(unavailable(reference, digest, job.node))
    return {"changed": True, "image": found}


def _pull_failed(error: DaemonError, reference: str, digest: str, node: str) -> Finding:
    said = str(error)
    if "no space left on device" in said.lower():
        return finding(
            "DISK_FULL",
            node=node,
            found="the disk ran full below Docker's folder",
            expected=f"{reference} on {node}",
            evidence=[said],
            path="/var/lib/docker",
            short="space",
        )
    return unavailable(reference, digest, node, said.splitlines()[-5:])
