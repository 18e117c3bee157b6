"""The sending end: several streams on every rail, the largest file first, each file retried where a stream fails."""

from __future__ import annotations

import errno
import hashlib
import os
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from . import channel as channels
from .channel import BrokenError, Channel, Credentials, Plain, RefusedError, hear, say
from .files import ChangedError, Dropper, Item, open_below, read_into, sha256_of
from .workers import Line, Slots, Worker

STALL_S = 20.0
POLL_S = 0.2
RETRY_PAUSE_S = 0.5
# A handshake takes far less, on any machine that is worth a copy.
REACHED_AFTER_S = 3.0
SMALL_BYTES = 1 << 20
BATCH_BYTES = 4 << 20
BATCH_FILES = 128
_MOST_WORKERS = 4096
_TRIES_PER_FILE = 2


@dataclass(frozen=True)
class Rail:
    """A way to the receiver. ``local`` is this node's own address on it, which keeps the stream on it."""

    name: str
    address: str
    port: int
    local: str | None = None


class SendError(Exception):
    """Why the copy ended. ``kind``: ``changed``, ``unreadable``, ``damaged`` (the source has other contents than its
    manifest says), ``differs`` (twice other contents at the other end), ``refused``, ``disk``, ``write`` (both at the
    other end) or ``rails`` (no rail carries: another way may).
    """

    def __init__(self, kind: str, text: str, path: str = "", evidence: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.kind, self.text, self.path, self.evidence = kind, text, path, evidence


@dataclass
class Hooks:
    """``moved`` gets the bytes per rail so far, ``resumed`` those that the receiver had of a file already, ``done``
    each file that it has verified; ``warn`` what went wrong on the way and was repaired: (kind, text) with
    ``stalled``, ``broken``, ``unreachable`` or ``repeated``.
    """

    moved: Callable[[list[int]], None] = lambda _rails: None
    resumed: Callable[[int], None] = lambda _count: None
    done: Callable[[str], None] = lambda _path: None
    warn: Callable[[str, str], None] = lambda _kind, _text: None


@dataclass
class Plan:
    """``identity`` says of a path which file it has to be: size, time and inode at the time its hash was made; a file
    that is not named there is taken as it is. ``last`` are sent when all others have arrived.
    """

    root: int
    items: Sequence[Item]
    rails: Sequence[Rail]
    credentials: Credentials
    streams_per_rail: int = 2
    identity: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    last: frozenset[str] = frozenset()
    stall_s: float = STALL_S


def streams_for(cores: int, rails: int, targets: int = 1) -> int:
    """Streams per rail to one of ``targets``: as many as half the cores can feed, two at least, since one that waits
    for the other end's disk leaves the rail idle.
    """
    return max(2, min(6, cores // (2 * max(1, rails) * max(1, targets))))


def send(plan: Plan, hooks: Hooks) -> list[int]:
    """Send all files; the bytes that each rail carried. Raises SendError."""
    return _Sender(plan, hooks).run()


@dataclass
class _Task:
    items: tuple[Item, ...]
    tries: int = 0

    @property
    def words(self) -> str:
        first = self.items[0].path
        return first if len(self.items) == 1 else f"{first} and {len(self.items) - 1} more"


@dataclass
class _Stream:
    number: int
    rail: int
    worker: Worker | None = None
    up: bool = False
    task: _Task | None = None
    seen: int = -1
    moved_at: float = 0.0
    again_at: float = 0.0


def tasks_of(items: Sequence[Item], last: frozenset[str]) -> tuple[deque[_Task], deque[_Task]]:
    """Large files alone and the largest first, small ones in batches; and what has to wait for all of these."""

    def cut(some: Sequence[Item]) -> deque[_Task]:
        tasks: deque[_Task] = deque()
        batch: list[Item] = []
        for item in sorted(some, key=lambda one: (-one.size, one.path)):
            if item.size > SMALL_BYTES or item.sha256 is None:
                tasks.append(_Task((item,)))
                continue
            if batch and (len(batch) >= BATCH_FILES or sum(one.size for one in batch) + item.size > BATCH_BYTES):
                tasks.append(_Task(tuple(batch)))
                batch = []
            batch.append(item)
        if batch:
            tasks.append(_Task(tuple(batch)))
        return tasks

    return cut([item for item in items if item.path not in last]), cut([item for item in items if item.path in last])


class _Sender:
    def __init__(self, plan: Plan, hooks: Hooks) -> None:
        self.plan, self.hooks = plan, hooks
        self.context = channels.tls_context(plan.credentials, server=False) if plan.credentials.encrypted else None
        self.queue, self.later = tasks_of(plan.items, plan.last)
        self.slots, self.ticks = Slots(_MOST_WORKERS), Slots(_MOST_WORKERS)
        self.carried = [0] * len(plan.rails)
        self.strikes = [0] * len(plan.rails)
        self.troubles: list[str] = []
        self.begun: set[str] = set()
        self.started, self.was_up = 0, False
        self.reached: set[int] = set()
        self.began_at = time.monotonic()
        wanted = plan.streams_per_rail * len(plan.rails)
        count = max(1, min(wanted, len(self.queue) + len(self.later)))
        # Rails take turns, so that few files use both.
        self.streams = [_Stream(number, number % len(plan.rails)) for number in range(count)]

    def run(self) -> list[int]:
        try:
            while self._open_work():
                self._start_missing()
                self._hand_out()
                self._wait()
                self._judge_silence()
            self._name_unreached()
            self._end(complete=True)
        except SendError:
            self._end(complete=False)
            raise
        finally:
            for stream in self.streams:
                if stream.worker:
                    self.carried[stream.rail] += self.slots.get(stream.worker.slot)
                    stream.worker.kill()
                    stream.worker = None
            self._count()
            self.slots.close()
            self.ticks.close()
        return list(self.carried)

    def _open_work(self) -> bool:
        if not self.queue and self.later and not any(stream.task for stream in self.streams):
            self.queue, self.later = self.later, deque()
        return bool(self.queue or self.later) or any(stream.task for stream in self.streams)

    def _start_missing(self) -> None:
        now = time.monotonic()
        for stream in self.streams:
            if stream.worker is None and self.queue and now >= stream.again_at:
                rail, slot = self.plan.rails[stream.rail], self.started
                self.started += 1
                if slot >= _MOST_WORKERS:
                    raise SendError("rails", "the streams break as fast as they are opened")

                def work(orders: Line, reports: Line, rail: Rail = rail, slot: int = slot) -> None:
                    _Hand(self.plan, self.context, rail, self.slots, self.ticks, slot).work(orders, reports)

                stream.worker = Worker.start(slot, work, keep=(self.plan.root,))
                stream.up, stream.seen, stream.moved_at = False, -1, now

    def _hand_out(self) -> None:
        for stream in self.streams:
            if stream.worker and stream.up and stream.task is None and self.queue:
                stream.task = self.queue.popleft()
                stream.moved_at = time.monotonic()
                try:
                    stream.worker.orders.say(paths=[item.path for item in stream.task.items])
                except OSError:
                    self._failed(stream, "broken", "its process is gone")

    def _wait(self) -> None:
        reports = {stream.worker.reports.descriptor: stream for stream in self.streams if stream.worker}
        ready, _, _ = select.select(list(reports), [], [], POLL_S)
        for descriptor in ready:
            stream = reports[descriptor]
            if stream.worker is None:
                continue
            messages = stream.worker.reports.hear()
            if messages is None:
                self._failed(stream, "broken", "its process ended without a word")
                continue
            for message in messages:
                self._report(stream, message)
        self._count()

    def _report(self, stream: _Stream, message: Mapping[str, Any]) -> None:
        match message["op"]:
            case "up":
                stream.up = self.was_up = True
                self.reached.add(stream.rail)
            case "resumed":
                # What an earlier stream of this copy sent of the file was counted then.
                if stream.task and stream.task.items[0].path not in self.begun:
                    self.hooks.resumed(int(message["bytes"]))
                if stream.task:
                    self.begun.add(stream.task.items[0].path)
            case "done":
                self._done(stream, message)
            case "unreachable" | "broken" as kind:
                self._failed(stream, kind, str(message["text"]))
            case "refused":
                raise SendError("refused", str(message["text"]), evidence=(self._name(stream),))
            case kind:
                path = str(message.get("path", ""))
                raise SendError(kind, str(message["text"]), path, (self._name(stream),))

    def _done(self, stream: _Stream, message: Mapping[str, Any]) -> None:
        task, stream.task = stream.task, None
        if task is None:
            return
        self.strikes[stream.rail] = 0
        bad = set(message["bad"])
        for item in task.items:
            if item.path not in bad:
                self.hooks.done(item.path)
        again = tuple(item for item in task.items if item.path in bad)
        if not again:
            return
        where = f"{self._name(stream)}: {again[0].path}"
        if task.tries + 1 >= _TRIES_PER_FILE:
            text = f"{again[0].path} arrived with other contents {task.tries + 1} times"
            raise SendError("differs", text, again[0].path, (where,))
        self.hooks.warn("repeated", where)
        self.queue.appendleft(_Task(again, task.tries + 1))

    def _name_unreached(self) -> None:
        """A rail on which connections hang is not failed yet when the others have done all the work."""
        if time.monotonic() - self.began_at < REACHED_AFTER_S:
            return
        for stream in self.streams:
            if stream.worker and not stream.up and stream.rail not in self.reached:
                self.reached.add(stream.rail)
                self.hooks.warn("unreachable", f"{self._name(stream)}: no connection until all was sent")

    def _name(self, stream: _Stream) -> str:
        rail = self.plan.rails[stream.rail]
        return f"stream {stream.number} on {rail.name} ({rail.address})"

    def _count(self) -> None:
        rails = list(self.carried)
        for stream in self.streams:
            if stream.worker:
                rails[stream.rail] += self.slots.get(stream.worker.slot)
        self.hooks.moved(rails)

    def _judge_silence(self) -> None:
        now = time.monotonic()
        for stream in self.streams:
            if stream.worker is None or (stream.up and stream.task is None):
                continue
            seen = self.slots.get(stream.worker.slot) + self.ticks.get(stream.worker.slot)
            if seen != stream.seen:
                stream.seen, stream.moved_at = seen, now
            elif now - stream.moved_at > self.plan.stall_s:
                self._failed(stream, "stalled", f"no byte for {self.plan.stall_s:.0f} s")

    def _failed(self, stream: _Stream, kind: str, text: str) -> None:
        """Give the stream's work back and open it anew, on another rail where one is not known to fail."""
        name = self._name(stream)
        at = f" in {stream.task.words}" if stream.task else ""
        trouble = f"{name} {kind}{at}: {text}"
        self.troubles.append(trouble)
        if stream.worker:
            self.carried[stream.rail] += self.slots.get(stream.worker.slot)
            stream.worker.kill()
            stream.worker = None
        if stream.task:
            self.queue.appendleft(stream.task)
            stream.task = None
        self.strikes[stream.rail] += 1
        allowed = 2 * self.plan.streams_per_rail
        count = len(self.plan.rails)
        ways = [(stream.rail + step) % count for step in (*range(1, count), 0)]
        usable = [rail for rail in ways if self.strikes[rail] < allowed]
        if not usable:
            raise SendError("rails", "no rail carries the copy", evidence=tuple(self.troubles[-6:]))
        stream.rail = min(usable, key=lambda rail: (self.strikes[rail] > 0, ways.index(rail)))
        stream.again_at = time.monotonic() + RETRY_PAUSE_S
        self.hooks.warn(kind, trouble)

    def _end(self, *, complete: bool) -> None:
        """Tell the receiver that nothing more comes, over an idle stream or a new one; it would notice by itself, but
        later.
        """
        for stream in self.streams:
            if stream.worker and stream.up and stream.task is None:
                try:
                    stream.worker.orders.say(end=complete)
                    select.select([stream.worker.reports.descriptor], [], [], 5)
                except OSError:
                    continue
                return
        for rail in self.plan.rails if self.was_up else ():
            with suppress(OSError, BrokenError, RefusedError):
                channel = _greeted(self.plan, self.context, rail)
                say(channel, op="end", complete=complete)
                channel.close()
                return


class _Hand:
    """One stream, in a process of its own."""

    def __init__(
        self, plan: Plan, context: ssl.SSLContext | None, rail: Rail, slots: Slots, ticks: Slots, slot: int
    ) -> None:
        self.plan, self.context, self.rail = plan, context, rail
        self.slots, self.ticks, self.slot = slots, ticks, slot
        self.items = {item.path: item for item in plan.items}

    def work(self, orders: Line, reports: Line) -> None:
        try:
            channel = _greeted(self.plan, self.context, self.rail)
        except RefusedError as error:
            reports.say(op="refused", text=str(error))
            return
        except (OSError, BrokenError) as error:
            reports.say(op="unreachable", text=str(getattr(error, "strerror", None) or error))
            return
        reports.say(op="up")
        buffer = memoryview(bytearray(channel.chunk))
        while (messages := orders.hear()) is not None:
            for order in messages:
                try:
                    if "end" in order:
                        say(channel, op="end", complete=bool(order["end"]))
                        self._hear(channel, "bye")
                        reports.say(op="up")
                        continue
                    items = [self.items[path] for path in order["paths"]]
                    single = len(items) == 1 and (items[0].size > SMALL_BYTES or items[0].sha256 is None)
                    bad = self._file(channel, reports, items[0], buffer) if single else self._batch(channel, items)
                    reports.say(op="done", bad=bad)
                except _SourceError as error:
                    reports.say(op=error.kind, path=error.path, text=error.text)
                    return
                except (RefusedError, BrokenError) as error:
                    reports.say(op="broken", text=str(error))
                    return

    def _hear(self, channel: Channel, wanted: str) -> dict[str, Any]:
        while (message := self._hear_one(channel)).get("op") != wanted:
            if message.get("op") != "busy":
                raise BrokenError(f"a message {message.get('op')!r} where {wanted!r} was due")
        return message

    def _hear_one(self, channel: Channel) -> dict[str, Any]:
        message = hear(channel)
        if message.get("op") == "busy":
            self.ticks.add(self.slot, 1)
        elif message.get("op") == "error":
            raise _SourceError(str(message.get("kind")), "", str(message.get("text")))
        return message

    @contextmanager
    def _opened(self, item: Item) -> Iterator[int]:
        """The file, which has to be the one that was announced, before and after it is read."""
        try:
            descriptor = open_below(self.plan.root, item.path, os.O_RDONLY)
        except OSError as error:
            raise _SourceError("unreadable", item.path, f"{item.path}: {error.strerror or error}") from error
        try:
            before = os.fstat(descriptor)
            known = self.plan.identity.get(item.path)
            if before.st_size != item.size or (
                known is not None and known != (before.st_size, before.st_mtime_ns, before.st_ino)
            ):
                raise ChangedError
            yield descriptor
            after = os.fstat(descriptor)
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ChangedError
        except ChangedError:
            text = f"{item.path} has another size or time than when the copy began"
            raise _SourceError("changed", item.path, text) from None
        finally:
            os.close(descriptor)

    def _file(self, channel: Channel, reports: Line, item: Item, buffer: memoryview) -> list[str]:
        with self._opened(item) as descriptor:
            say(channel, op="file", path=item.path)
            at = self._hear(channel, "from").get("at")
            if not isinstance(at, int) or not 0 <= at <= item.size:
                raise BrokenError(f"an offset {at!r} in a file of {item.size} bytes")
            reports.say(op="resumed", bytes=at)
            digest = hashlib.sha256() if item.sha256 is None else None
            if digest is not None and at:
                # What the receiver has already was sent by an earlier stream; our own reading of it is due again.
                read_into(digest, descriptor, at)
            self._bytes(channel, descriptor, at, item, buffer, digest)
            if digest is not None:
                say(channel, op="sha256", sha256=digest.hexdigest())
            bad = [str(path) for path in self._hear(channel, "done").get("bad", ())]
            if bad and item.sha256 and (found := sha256_of(descriptor, item.size)) != item.sha256:
                text = f"{item.path} has the hash {found[:12]}, and its manifest says {item.sha256[:12]}"
                raise _SourceError("damaged", item.path, text)
        return bad

    def _bytes(self, channel: Channel, descriptor: int, at: int, item: Item, buffer: memoryview, digest: Any) -> None:
        dropper = Dropper(descriptor, at)
        whole = isinstance(channel, Plain) and digest is None
        while at < item.size:
            left = min(channel.chunk, item.size - at)
            if whole and isinstance(channel, Plain):
                count = self._sendfile(channel, descriptor, at, left, item)
            else:
                count = self._read(descriptor, buffer[:left], at, item)
                if digest is not None:
                    digest.update(buffer[:count])
                if count:
                    channel.write(buffer[:count])
            if not count:
                raise ChangedError
            at += count
            self.slots.add(self.slot, count)
            dropper.at(at)
            while at < item.size and channel.waiting():
                if (word := self._hear_one(channel).get("op")) != "busy":
                    raise BrokenError(f"a message {word!r} while bytes are under way")
        dropper.end()

    def _sendfile(self, channel: Plain, descriptor: int, at: int, left: int, item: Item) -> int:
        try:
            return os.sendfile(channel.socket.fileno(), descriptor, at, left)
        except OSError as error:
            if error.errno == errno.EIO:
                raise _SourceError("unreadable", item.path, f"{item.path}: {error.strerror}") from error
            raise BrokenError(error.strerror or str(error)) from error

    def _read(self, descriptor: int, view: memoryview, at: int, item: Item) -> int:
        try:
            return os.preadv(descriptor, [view], at)
        except OSError as error:
            raise _SourceError("unreadable", item.path, f"{item.path}: {error.strerror or error}") from error

    def _batch(self, channel: Channel, items: Sequence[Item]) -> list[str]:
        parts: list[bytes] = []
        for item in items:
            with self._opened(item) as descriptor:
                view = memoryview(bytearray(item.size))
                done = 0
                while done < item.size:
                    count = self._read(descriptor, view[done:], done, item)
                    if not count:
                        raise _SourceError("changed", item.path, f"{item.path} became shorter while it was read")
                    done += count
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                parts.append(bytes(view))
        say(channel, op="batch", paths=[item.path for item in items])
        channel.write(b"".join(parts))
        self.slots.add(self.slot, sum(len(part) for part in parts))
        bad = [str(path) for path in self._hear(channel, "done").get("bad", ())]
        for item, part in zip(items, parts, strict=True):
            if item.path in bad and item.sha256 and (found := hashlib.sha256(part).hexdigest()) != item.sha256:
                text = f"{item.path} has the hash {found[:12]}, and its manifest says {item.sha256[:12]}"
                raise _SourceError("damaged", item.path, text)
        return bad


class _SourceError(Exception):
    """What ends the whole copy and not only a stream."""

    def __init__(self, kind: str, path: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.path, self.text = kind, path, text


def _greeted(plan: Plan, context: ssl.SSLContext | None, rail: Rail) -> Channel:
    channel = channels.dial(rail.address, rail.port, rail.local, plan.credentials, context)
    say(channel, op="hello", version=1)
    if (message := hear(channel)).get("op") != "ready":
        raise BrokenError(f"a first answer {message!r}")
    return channel
