"""Processes of one copy: each runs one stream, counts what it moved in memory that all share, and reports by a pipe."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

_COUNT = struct.Struct("q")
_SET_PDEATHSIG = 1


class Slots:
    """One counter of bytes per worker, readable by all of them without a call to the kernel."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, count * _COUNT.size)

    def add(self, slot: int, count: int) -> None:
        self.set(slot, self.get(slot) + count)

    def set(self, slot: int, value: int) -> None:
        _COUNT.pack_into(self._memory, slot * _COUNT.size, value)

    def get(self, slot: int) -> int:
        return int(_COUNT.unpack_from(self._memory, slot * _COUNT.size)[0])

    def close(self) -> None:
        self._memory.close()


class Line:
    """JSON lines over a descriptor, read as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def say(self, **message: Any) -> None:
        raw = json.dumps(message).encode() + b"\n"
        while raw:
            raw = raw[os.write(self.descriptor, raw) :]

    def hear(self) -> list[dict[str, Any]] | None:
        """The messages that are there, after waiting for the first byte; None at the end."""
        block = os.read(self.descriptor, 1 << 16)
        if not block:
            return None
        *lines, self._rest = (self._rest + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)


class Worker:
    """A forked process and the two pipes to it."""

    def __init__(self, slot: int, pid: int, orders: Line, reports: Line) -> None:
        self.slot, self.pid = slot, pid
        self.orders, self.reports = orders, reports
        self.alive = True

    @classmethod
    def start(cls, slot: int, work: Callable[[Line, Line], None], keep: Iterable[int] = ()) -> Worker:
        """Fork. The child keeps the descriptors ``keep`` and its own pipes, so that the end of a sibling or of the
        parent is seen; it dies with its parent.
        """
        order_out, order_in = os.pipe()
        report_out, report_in = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(order_out)
            os.close(report_in)
            return cls(slot, pid, Line(order_in), Line(report_out))
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                _close_others({0, 1, 2, order_out, report_in, *keep})
                work(Line(order_out), Line(report_in))
                status = 0
        except BaseException:
            with suppress(BaseException):
                print(traceback.format_exc(), file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> int:
        """Wait for its end, which has to be near, and give back its descriptors."""
        if not self.alive:
            return 0
        self.alive = False
        self.orders.close()
        self.reports.close()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return 0


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
