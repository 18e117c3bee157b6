"""External commands and progress of the lab."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lab.errors import LabError

TAIL_LINES = 15


def run(
    argv: Sequence[str],
    *,
    stdin: bytes | str | None = None,
    check: bool = True,
    timeout: float | None = 600,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its output; a failure is a LabError that shows the end of what it said."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            list(argv),
            input=b"" if data is None else data,
            capture_output=True,
            timeout=timeout,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]}: command not found", f"install the package that has {argv[0]}") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"no end after {timeout} s: {shlex.join(argv)}") from None
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode:
        said = "\n    ".join((err.strip() or out.strip()).splitlines()[-TAIL_LINES:])
        raise LabError(f"exit code {done.returncode}: {shlex.join(argv)}\n    {said}")
    return subprocess.CompletedProcess(list(argv), done.returncode, out, err)


class Progress:
    """Says what is being done, with the seconds since the command began."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce a longer step and say how long it took."""
        self.say(f"{text} ...")
        begin = time.monotonic()
        yield
        self.say(f"{text}: {time.monotonic() - begin:.1f} s")
