"""The one way to run external commands: an argument list, a C locale, a time limit, an error that explains itself."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOT_FOUND_RC = 127
TIMED_OUT_RC = 124


@dataclass(frozen=True)
class Completed:
    """What a command did. ``rc`` is 127 where there is no such program and 124 where it ran past its limit."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.rc == 0


class CommandFailed(Exception):
    """A command that had to succeed and did not."""

    def __init__(self, completed: Completed, remedy: str = "") -> None:
        self.completed = completed
        self.remedy = remedy
        said = completed.stderr.strip() or completed.stdout.strip() or "it printed nothing"
        super().__init__(
            f"{' '.join(completed.argv)} exited {completed.rc}: {said[-2000:]}{' ' + remedy if remedy else ''}"
        )


class Run(Protocol):
    """The shape of ``run``, for code that takes its runner as an argument."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30,
        check: bool = False,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        remedy: str = "",
    ) -> Completed: ...


def _text(raw: bytes | str | None) -> str:
    if raw is None:
        return ""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30,
    check: bool = False,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    remedy: str = "",
) -> Completed:
    """Run ``argv`` without a shell and return what it did; with ``check``, raise CommandFailed unless it exited 0.

    Output is decoded as UTF-8 with undecodable bytes shown escaped: netplan prints raw memory in one of its errors.
    """
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", **(env or {})}
    began = time.monotonic()
    try:
        done = subprocess.run(
            list(argv),
            input=None if stdin is None else stdin.encode(),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
        rc, out, err = done.returncode, _text(done.stdout), _text(done.stderr)
    except FileNotFoundError:
        rc, out, err = NOT_FOUND_RC, "", f"{argv[0]}: no such program"
    except subprocess.TimeoutExpired as expired:
        rc, out = TIMED_OUT_RC, _text(expired.stdout)
        err = f"{_text(expired.stderr)}\nended after its limit of {timeout_s} s".strip()
    completed = Completed(tuple(argv), rc, out, err, time.monotonic() - began)
    if check and rc != 0:
        raise CommandFailed(completed, remedy)
    return completed
