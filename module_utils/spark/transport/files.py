"""The files of a copy on either end: opened below one folder without following links, read once and given back to the
memory, written aside and never under a real name.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

DROP_EVERY = 32 << 20
_READ = 1 << 20


class Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Item:
    """One file to copy. ``sha256`` is None where nobody knows it yet: then both ends make it and compare."""

    path: str
    size: int
    sha256: str | None = None


class ChangedError(Exception):
    """A file is not the one that it was when the copy began."""


def plain(path: str) -> bool:
    """Whether ``path`` is a relative path in its shortest spelling that stays below its root."""
    return (
        bool(path)
        and path == os.path.normpath(path)
        and not path.startswith("/")
        and path.split("/")[0] not in ("..", ".")
        and "\0" not in path
        and "\n" not in path
    )


def open_below(root: int, path: str, flags: int, mode: int = 0o600, *, make: bool = False) -> int:
    """Open ``path`` below the open folder ``root``. No component is followed where it is a link; with ``make``, missing
    folders are made for their owner only.
    """
    if not plain(path):
        raise OSError(f"{path!r} is not a path below the folder")
    *folders, name = path.split("/")
    here = os.dup(root)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=here)
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        # A pipe under that name would block for ever; for a regular file the flag means nothing.
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{path!r} is not a regular file")
    return opened


class Dropper:
    """Gives pages back as a file is read or written from front to back: on these machines they are the GPU's memory.

    For dirty pages the kernel takes the first call as a hint to write them and the second to drop them, so each window
    is named twice, and little is left for the fsync at the end.
    """

    def __init__(self, descriptor: int, at: int = 0) -> None:
        self._descriptor, self._from, self._last = descriptor, at, at

    def at(self, offset: int) -> None:
        if offset - self._last >= DROP_EVERY:
            os.posix_fadvise(self._descriptor, self._from, offset - self._from, os.POSIX_FADV_DONTNEED)
            self._from, self._last = self._last, offset

    def end(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_into(digest: Hash, descriptor: int, count: int, moved: Callable[[int], None] = lambda _count: None) -> None:
    """Hash the first ``count`` bytes of an open file. Raises ChangedError where there are fewer."""
    buffer = memoryview(bytearray(min(_READ, count) or 1))
    dropper = Dropper(descriptor)
    done = 0
    while done < count:
        got = os.preadv(descriptor, [buffer[: min(len(buffer), count - done)]], done)
        if not got:
            raise ChangedError
        digest.update(buffer[:got])
        done += got
        dropper.at(done)
        moved(got)


def sha256_of(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    read_into(digest, descriptor, size)
    return digest.hexdigest()
