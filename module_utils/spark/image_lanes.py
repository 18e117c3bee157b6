"""The target's side of an image's way between nodes: ssh connections to the source, spread over the rails.

Each connection is given up for lack of progress, never for the time it takes; what it carried goes on over another rail
from the byte at which it ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from .findings import Finding, finding
from .peer import COPY_CIPHER, ssh_argv
from .transfer import STALL_S, Outcome, Tail, another_rail_may_help, explain

_BLOCK = 1 << 20
_LINE_LIMIT = 1 << 16
_TRIES_A_RAIL = 2
END_S = 5.0


class SourceError(Exception):
    """What the source says against a question, in words; ``kind`` is ``store`` or ``daemon``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class LaneError(Exception):
    """No rail carries, and this finding says why."""

    def __init__(self, item: Finding) -> None:
        super().__init__(item.found)
        self.finding = item


class _BrokenError(Exception):
    """One connection ended or stood still; ``stalled`` tells which."""

    def __init__(self, *, stalled: bool) -> None:
        super().__init__("stalled" if stalled else "ended")
        self.stalled = stalled


class _Lane:
    def __init__(self, address: str, reference: str, stall_s: float) -> None:
        self.address, self._stall_s = address, stall_s
        argv = [*ssh_argv(address, cipher=COPY_CIPHER), f"image-serve {reference}"]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if not (self._child.stdin and self._child.stdout and self._child.stderr):
            raise RuntimeError("pipes were asked for")
        self._in, self._out = self._child.stdin, self._child.stdout
        with suppress(OSError):
            # Sixteen times fewer turns through this loop than with a pipe of the usual size.
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _BLOCK)
        self._tail = Tail(self._child.stderr)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._rest = b""

    def _read(self, count: int) -> bytes:
        if self._rest:
            block, self._rest = self._rest[:count], self._rest[count:]
            return block
        if not self._poll.poll(self._stall_s * 1000):
            raise _BrokenError(stalled=True)
        block = os.read(self._out.fileno(), count)
        if not block:
            raise _BrokenError(stalled=False)
        return block

    def ask(self, question: Mapping[str, Any]) -> int:
        """The number of bytes that the answer has, -1 for all that comes."""
        try:
            self._in.write(json.dumps(question).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            raise _BrokenError(stalled=False) from None
        line = b""
        while b"\n" not in line:
            line += self._read(_BLOCK)
            if len(line) > _LINE_LIMIT and b"\n" not in line:
                raise _BrokenError(stalled=False)
        head, _, self._rest = line.partition(b"\n")
        try:
            said = json.loads(head)
            if said["ok"]:
                return int(said["bytes"])
            refused = SourceError(str(said["kind"]), str(said["error"]))
        except (ValueError, KeyError, TypeError):
            raise _BrokenError(stalled=False) from None
        raise refused

    def take(self, count: int) -> Iterator[bytes]:
        while count > 0:
            block = self._read(min(count, _BLOCK))
            count -= len(block)
            yield block

    def take_all(self) -> Iterator[bytes]:
        """To the end of the connection; raises _BrokenError unless the other side ended well."""
        with suppress(_BrokenError):
            while True:
                yield self._read(_BLOCK)
        if self.end().rc != 0:
            raise _BrokenError(stalled=False)

    def end(self) -> Outcome:
        """How ssh ended, after the patience that it may need to find its last words."""
        with suppress(OSError):
            self._in.close()
        try:
            rc = self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            rc = self._child.wait()
        outcome = Outcome(rc, said=self._tail.lines())
        self._out.close()
        return outcome


class Source:
    """The image's source at ``addresses``, one for each rail. Safe to use from several threads."""

    def __init__(
        self,
        reference: str,
        addresses: Sequence[str],
        *,
        node: str,
        source_node: str,
        note: Callable[[Finding], None],
        moved: Callable[[int], None],
        stall_s: float = STALL_S,
    ) -> None:
        self.reference, self.addresses, self.node, self.source_node = reference, list(addresses), node, source_node
        self._note, self._moved, self._stall_s = note, moved, stall_s
        self._free: list[_Lane] = []
        self._lock = Lock()
        self._opened = 0
        self._failed: dict[str, int] = {}
        self.bytes = 0
        self.by_address: dict[str, int] = dict.fromkeys(self.addresses, 0)

    def describe(self, *, sizes: bool) -> dict[str, Any]:
        answer = b"".join(self._carried({"ask": "describe", "sizes": sizes}, counted=False))
        data = json.loads(answer)
        if not isinstance(data, dict):
            raise SourceError("store", "the description is not an object")
        return data

    def layer_size(self, digest: str) -> tuple[int, Iterator[bytes]]:
        """The bytes of a layer, with their number said before the first of them."""
        sized: list[int] = []
        blocks = self._carried({"ask": "layer", "digest": digest}, sized=sized)
        first = next(blocks, b"")

        def all_of_it() -> Iterator[bytes]:
            yield first
            yield from blocks

        return sized[0] if sized else 0, all_of_it()

    def layer(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        return self._carried({"ask": "layer", "digest": digest}, offset=offset)

    def save(self) -> Iterator[bytes]:
        """The whole image as ``docker save`` writes it; not to be resumed, so the first rail has to carry it."""
        lane = self._lane()
        try:
            lane.ask({"ask": "save"})
            for block in lane.take_all():
                self._count(lane.address, len(block))
                yield block
        except _BrokenError as broken:
            raise LaneError(self._why(lane, broken)) from None
        finally:
            lane.end()

    def _carried(
        self, question: dict[str, Any], *, offset: int = 0, counted: bool = True, sized: list[int] | None = None
    ) -> Iterator[bytes]:
        """The answer's bytes; over the next rail from where the last one ended, as long as one of them carries."""
        before: Finding | None = None
        while True:
            lane = self._lane()
            try:
                count = lane.ask({**question, "offset": offset} if question["ask"] == "layer" else question)
                if sized is not None and not sized:
                    sized.append(count + offset)
                for block in lane.take(count):
                    offset += len(block)
                    if counted:
                        self._count(lane.address, len(block))
                    yield block
            except SourceError:
                self._release(lane)
                raise
            except _BrokenError as broken:
                failure = self._why(lane, broken)
                before = self._give_up_or_go_on(lane.address, failure)
                if question["ask"] != "layer":
                    offset = 0
                    if counted:
                        raise LaneError(failure) from None
            except GeneratorExit:
                # Nobody wants the rest, and there is no way to tell the source.
                lane.end()
                raise
            else:
                self._release(lane)
                if before is not None:
                    self._note(
                        finding(
                            "COPY_RAIL_CHANGED",
                            node=self.node,
                            found=f"the copy from {self.source_node} went on over {lane.address}",
                            expected="the rail on which it began",
                            evidence=[f"{before.code}: {before.found}", *before.evidence[:3]],
                        )
                    )
                return

    def _give_up_or_go_on(self, address: str, failure: Finding) -> Finding:
        with self._lock:
            self._failed[address] = self._failed.get(address, 0) + 1
            spent = all(self._failed.get(item, 0) >= _TRIES_A_RAIL for item in self.addresses)
        if spent or not another_rail_may_help(failure):
            raise LaneError(failure)
        return failure

    def _count(self, address: str, count: int) -> None:
        with self._lock:
            self.bytes += count
            self.by_address[address] += count
            for item in (address,):
                # A rail that carries again is not counted out by what was before.
                self._failed.pop(item, None)
        self._moved(count)

    def _lane(self) -> _Lane:
        with self._lock:
            fewest = min(self._failed.get(item, 0) for item in self.addresses)
            usable = [item for item in self.addresses if self._failed.get(item, 0) == fewest]
            for lane in self._free:
                if lane.address in usable:
                    self._free.remove(lane)
                    return lane
            address = usable[self._opened % len(usable)]
            self._opened += 1
        return _Lane(address, self.reference, self._stall_s)

    def _release(self, lane: _Lane) -> None:
        with self._lock:
            self._free.append(lane)

    def _why(self, lane: _Lane, broken: _BrokenError) -> Finding:
        outcome = lane.end()
        if broken.stalled:
            outcome.rc = 30
        elif outcome.rc == 0:
            # It ended in the middle of an answer and thinks that all is well.
            outcome = Outcome(255, said=[*outcome.said, "the connection unexpectedly closed"])
        outcome.moved = self.by_address.get(lane.address, 0)
        return explain(outcome, node=self.node, target=self.source_node, address=lane.address, path="Docker's folder")

    def close(self) -> None:
        with self._lock:
            lanes, self._free = self._free, []
        for lane in lanes:
            lane.end()


def since(began: float) -> float:
    return round(time.monotonic() - began, 3)
