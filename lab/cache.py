"""The cache of built images: outside the clone, always optional, published in one step."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEY_LENGTH = 16


def folder() -> Path:
    """${XDG_CACHE_HOME:-~/.cache}/dgx-spark-cluster/lab."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dgx-spark-cluster" / "lab"


def key(*parts: bytes | str) -> str:
    """Hash of everything that decides what a build makes; the lengths keep ("ab", "c") and ("a", "bc") apart."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:KEY_LENGTH]


def key_of_files(paths: Iterable[Path], *parts: bytes | str) -> str:
    """Key from the contents of files (by their names, in order) and further parts."""
    named = [part for path in sorted(paths) for part in (path.name.encode(), path.read_bytes())]
    return key(*named, *parts)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; under sudo they belong to the user, who may not even have a ~/.cache yet."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if user and group and not os.geteuid():
        os.chown(path, int(user), int(group))


@contextmanager
def locked(path: Path, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file; `busy` is called once when somebody else holds it, and then it is waited for."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Entry:
    """One cached folder, e.g. engine-0123456789abcdef. It exists whole or not at all."""

    def __init__(self, kind: str, entry_key: str) -> None:
        self.kind = kind
        self.path = folder() / f"{kind}-{entry_key}"

    def present(self) -> bool:
        return self.path.is_dir()

    def get(self, build: Callable[[Path], None]) -> Path:
        """The folder; made by `build(empty folder)` when it is not there. Older entries of the kind go away then."""
        if self.present():
            return self.path
        make_folder(self.path.parent)
        with locked(self.path.parent / f".{self.kind}.lock"):
            return self.path if self.present() else self._build(build)

    def _build(self, build: Callable[[Path], None]) -> Path:
        work = Path(tempfile.mkdtemp(prefix=f".{self.kind}-", dir=self.path.parent))
        try:
            build(work)
            work.chmod(0o755)
            try:
                work.rename(self.path)
            except OSError:
                # Another build was quicker: its result is as good.
                if not self.present():
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        for old in self.path.parent.glob(f"{self.kind}-*"):
            if old != self.path:
                shutil.rmtree(old, ignore_errors=True)
        return self.path
