"""The receiving end: listens on the fabric while it runs, takes files into a folder that nobody reads, and hands on
each one that has arrived whole, has the right hash, and is on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from . import channel as channels
from .channel import BrokenError, Channel, Credentials, RefusedError, hear, say
from .files import Dropper, Item, open_below, read_into
from .workers import Line, Slots, Worker

IDLE_S = 45.0
POLL_S = 0.2
BUSY_EVERY_S = 1.0
# More streams than anybody opens; beyond it somebody else is knocking.
MOST_STREAMS = 64
_MOST_WORKERS = 4096


@dataclass(frozen=True)
class Listen:
    """Where to listen, one address per rail, and from where streams may come."""

    addresses: tuple[str, ...]
    allowed: tuple[str, ...]
    credentials: Credentials
    idle_s: float = IDLE_S


@dataclass
class Hooks:
    """What the caller wants to know while files arrive. ``arrived`` gets each file that is whole, verified and on the
    disk, in the folder's own place for it; ``moved`` the bytes per rail so far.
    """

    listening: Callable[[list[int]], None] = lambda _ports: None
    arrived: Callable[[Item, os.stat_result], None] = lambda _item, _status: None
    moved: Callable[[list[int]], None] = lambda _rails: None
    warn: Callable[[str, str], None] = lambda _kind, _text: None


@dataclass
class Received:
    """``complete`` where all items arrived. ``failed`` is (kind, text) where the copy cannot go on: ``disk``, ``write``
    or ``idle``.
    """

    arrived: set[str] = field(default_factory=set)
    complete: bool = False
    failed: tuple[str, str] | None = None
    rails: list[int] = field(default_factory=list)
    ended: bool = False


def receive(listen: Listen, items: Sequence[Item], staging: int, hooks: Hooks) -> Received:
    """Take ``items`` into the open folder ``staging`` until all are there, the sender says that it ends, or nothing
    comes any more.
    """
    return _Receiver(listen, items, staging, hooks).run()


@dataclass
class _Stream:
    worker: Worker
    rail: int
    peer: str
    paths: list[str] = field(default_factory=list)


class _Receiver:
    def __init__(self, listen: Listen, items: Sequence[Item], staging: int, hooks: Hooks) -> None:
        self.listen, self.hooks, self.staging = listen, hooks, staging
        self.items = {item.path: item for item in items}
        self.result = Received(rails=[0] * len(listen.addresses))
        self.context = channels.tls_context(listen.credentials, server=True) if listen.credentials.encrypted else None
        self.slots, self.ticks = Slots(_MOST_WORKERS), Slots(_MOST_WORKERS)
        self.streams: dict[int, _Stream] = {}
        self.closed = [0] * len(listen.addresses)
        self.started = 0
        self.foreign: set[str] = set()
        self.ending = False

    def run(self) -> Received:
        listeners = []
        try:
            for address in self.listen.addresses:
                listeners.append(socket.create_server((address, 0), backlog=MOST_STREAMS))
            self.hooks.listening([server.getsockname()[1] for server in listeners])
            self._loop(listeners)
        finally:
            for server in listeners:
                server.close()
            for stream in self.streams.values():
                stream.worker.kill()
        self.result.complete = self.result.arrived >= self.items.keys()
        self._count()
        self.slots.close()
        self.ticks.close()
        return self.result

    def _loop(self, listeners: list[socket.socket]) -> None:
        moved_at, seen = time.monotonic(), -1
        finished_at: float | None = None
        while True:
            reports = {stream.worker.reports.descriptor: stream for stream in self.streams.values()}
            doors = {server.fileno(): number for number, server in enumerate(listeners)}
            ready, _, _ = select.select([*doors, *reports], [], [], POLL_S)
            for one in ready:
                if one in doors:
                    self._accept(listeners[doors[one]], doors[one])
                elif reports[one].worker.alive:
                    self._report(reports[one])
            self._count()
            now = time.monotonic()
            if (total := self._activity()) != seen or ready:
                moved_at, seen = now, total
            if self.result.failed:
                # The worker that failed still tells the sender why.
                finished_at = finished_at or now
            elif self.result.ended or self.result.arrived >= self.items.keys():
                finished_at = finished_at or now
            if finished_at is not None and (not self.streams or now - finished_at > 3):
                return
            if now - moved_at > self.listen.idle_s:
                self.result.failed = ("idle", f"nothing came for {self.listen.idle_s:.0f} s")
                return

    def _activity(self) -> int:
        return sum(self.slots.get(n) + self.ticks.get(n) for n in range(self.started))

    def _count(self) -> None:
        rails = list(self.closed)
        for stream in self.streams.values():
            rails[stream.rail] += self.slots.get(stream.worker.slot)
        self.result.rails = rails
        self.hooks.moved(rails)

    def _accept(self, server: socket.socket, rail: int) -> None:
        try:
            sock, (host, *_rest) = server.accept()
        except OSError:
            return
        if host not in self.listen.allowed or len(self.streams) >= MOST_STREAMS or self.started >= _MOST_WORKERS:
            sock.close()
            if host not in self.listen.allowed and host not in self.foreign and len(self.foreign) < 8:
                self.foreign.add(host)
                self.hooks.warn("foreign", f"a connection from {host}")
            return
        slot = self.started
        self.started += 1

        def work(_orders: Line, reports: Line) -> None:
            _Stand(self, sock, slot, reports).serve()

        worker = Worker.start(slot, work, keep=(sock.fileno(), self.staging))
        sock.close()
        self.streams[worker.pid] = _Stream(worker, rail, host)

    def _report(self, stream: _Stream) -> None:
        messages = stream.worker.reports.hear()
        if messages is None:
            self.closed[stream.rail] += self.slots.get(stream.worker.slot)
            del self.streams[stream.worker.pid]
            stream.worker.reap()
            return
        for message in messages:
            match message["op"]:
                case "begin":
                    stream.paths = message["paths"]
                case "evict":
                    self._evict(stream, message["path"])
                case "arrived":
                    for path in message["paths"]:
                        self._arrived(path)
                case "failed":
                    self.result.failed = self.result.failed or (message["kind"], message["text"])
                case "refused":
                    self.hooks.warn("refused", f"{stream.peer}: {message['text']}")
                case "end":
                    self.result.ended = True

    def _arrived(self, path: str) -> None:
        if path in self.result.arrived:
            # Its first acknowledgement was lost, and the sender sent it again: the first one counts.
            with suppress(OSError):
                _unlink(self.staging, path)
            return
        descriptor = open_below(self.staging, path, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        self.hooks.arrived(self.items[path], status)
        self.result.arrived.add(path)

    def _evict(self, newcomer: _Stream, path: str) -> None:
        """A stream that the sender gave up may still have the file open here; who comes later is who is alive."""
        for stream in list(self.streams.values()):
            if stream is not newcomer and path in stream.paths:
                self.closed[stream.rail] += self.slots.get(stream.worker.slot)
                del self.streams[stream.worker.pid]
                stream.worker.kill()


def _unlink(root: int, path: str) -> None:
    folder, _, name = path.rpartition("/")
    if not folder:
        os.unlink(name, dir_fd=root)
        return
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        os.unlink(name, dir_fd=here)
    finally:
        os.close(here)


class _DiskError(Exception):
    """The disk here does not take what came; the sender has been told."""


class _Stand:
    """One stream, in a process of its own."""

    def __init__(self, receiver: _Receiver, sock: socket.socket, slot: int, reports: Line) -> None:
        self.items, self.staging = receiver.items, receiver.staging
        self.done = set(receiver.result.arrived)
        self.credentials, self.context = receiver.listen.credentials, receiver.context
        self.socket, self.slot, self.reports = sock, slot, reports
        self.slots, self.ticks = receiver.slots, receiver.ticks

    def serve(self) -> None:
        try:
            channel = channels.answer(self.socket, self.credentials, self.context)
        except (RefusedError, BrokenError, OSError) as error:
            self.reports.say(op="refused", text=str(error))
            return
        try:
            self._converse(channel)
        except BrokenError:
            # The sender tries again over another stream, and knows more about it than we do.
            return

    def _converse(self, channel: Channel) -> None:
        first = hear(channel)
        if first.get("op") != "hello" or first.get("version") != 1:
            raise BrokenError(f"a first message {first!r}")
        say(channel, op="ready")
        buffer = memoryview(bytearray(channel.chunk))
        while True:
            message = hear(channel)
            try:
                match message.get("op"):
                    case "file":
                        self._file(channel, self._known(message.get("path")), buffer)
                    case "batch":
                        self._batch(channel, [self._known(path) for path in message.get("paths") or ()])
                    case "end":
                        self.reports.say(op="end", complete=bool(message.get("complete")))
                        say(channel, op="bye")
                        return
                    case other:
                        raise BrokenError(f"a message {other!r}")
            except _DiskError:
                with suppress(BrokenError):
                    while True:
                        channel.fill(buffer)

    def _known(self, path: Any) -> Item:
        item = self.items.get(path) if isinstance(path, str) else None
        if item is None:
            raise BrokenError(f"a file that nobody announced: {path!r}")
        return item

    @contextmanager
    def _disk(self, channel: Channel, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "write"
            text = f"{path}: {error.strerror or error}"
            self.reports.say(op="failed", kind=kind, text=text)
            say(channel, op="error", kind=kind, text=text)
            raise _DiskError from error

    @contextmanager
    def _busy(self, channel: Channel) -> Iterator[None]:
        """Say now and then that this end is at work though no byte moves. The stream is nobody else's meanwhile."""
        ends = Event()

        def tell() -> None:
            while not ends.wait(BUSY_EVERY_S):
                self.ticks.add(self.slot, 1)
                with suppress(BrokenError):
                    say(channel, op="busy")

        thread = Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def _open(self, path: str) -> int:
        descriptor = open_below(self.staging, path, os.O_RDWR | os.O_CREAT, make=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.reports.say(op="evict", path=path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _file(self, channel: Channel, item: Item, buffer: memoryview) -> None:
        self.reports.say(op="begin", paths=[item.path])
        if item.path in self.done:
            say(channel, op="from", at=item.size)
            if item.sha256 is None:
                _said_hash(channel)
            say(channel, op="done", bad=[])
            return
        with self._disk(channel, item.path):
            descriptor = self._open(item.path)
            try:
                digest, done = self._resume(channel, descriptor, item)
                say(channel, op="from", at=done)
                dropper = Dropper(descriptor, done)
                told_at = time.monotonic()
                while done < item.size:
                    part = buffer[: min(len(buffer), item.size - done)]
                    channel.fill(part)
                    digest.update(part)
                    _write(descriptor, part, done)
                    done += len(part)
                    self.slots.add(self.slot, len(part))
                    dropper.at(done)
                    # What the sender gave away may still be under way: only this end knows that it moves.
                    if (now := time.monotonic()) - told_at > BUSY_EVERY_S:
                        say(channel, op="busy")
                        told_at = now
                wanted = item.sha256 or _said_hash(channel)
                with self._busy(channel):
                    os.fsync(descriptor)
                dropper.end()
                good = digest.hexdigest() == wanted
                if not good:
                    # Which of its bytes are wrong nobody can say, so none of them is kept.
                    os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)
        if good:
            self.reports.say(op="arrived", paths=[item.path])
        say(channel, op="done", bad=[] if good else [item.path])

    def _resume(self, channel: Channel, descriptor: int, item: Item) -> tuple[Any, int]:
        """The hash of what an earlier stream left, and how much that is."""
        there = os.fstat(descriptor).st_size
        digest = hashlib.sha256()
        if 0 < there <= item.size:
            with self._busy(channel):
                read_into(digest, descriptor, there)
            if there < item.size or item.sha256 in (None, digest.hexdigest()):
                return digest, there
        if there:
            os.ftruncate(descriptor, 0)
        return hashlib.sha256(), 0

    def _batch(self, channel: Channel, items: Sequence[Item]) -> None:
        self.reports.say(op="begin", paths=[item.path for item in items])
        arrived, bad = [], []
        buffer = memoryview(bytearray(sum(item.size for item in items)))
        channel.fill(buffer)
        self.slots.add(self.slot, len(buffer))
        opened: list[int] = []
        at = 0
        try:
            for item in items:
                content = buffer[at : at + item.size]
                at += item.size
                if item.path in self.done:
                    continue
                if hashlib.sha256(content).hexdigest() != item.sha256:
                    bad.append(item.path)
                    continue
                with self._disk(channel, item.path):
                    opened.append(descriptor := self._open(item.path))
                    os.ftruncate(descriptor, 0)
                    _write(descriptor, content, 0)
                    # Only a hint to begin writing: the files reach the disk together, not one after another.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    arrived.append(item.path)
            with self._disk(channel, items[0].path), self._busy(channel):
                for descriptor in opened:
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self.reports.say(op="arrived", paths=arrived)
        say(channel, op="done", bad=bad)


def _write(descriptor: int, part: memoryview, at: int) -> None:
    while part:
        count = os.pwrite(descriptor, part, at)
        part, at = part[count:], at + count


def _said_hash(channel: Channel) -> str:
    message: Mapping[str, Any] = hear(channel)
    if message.get("op") != "sha256":
        raise BrokenError(f"a message {message.get('op')!r} where a hash was due")
    return str(message.get("sha256"))
