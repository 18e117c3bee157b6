"""Bytes from this node to a peer: files by rsync, streams through a pipe, both over ssh on the fabric.

A copy is given up for lack of progress, never for the time it takes. Each address of the peer is one rail; the next one
is tried when a rail does not carry.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import IO

from .findings import Finding, finding
from .peer import COPY_CIPHER, REFUSED_RC, ssh_argv

STALL_S = 60
_PROGRESS = re.compile(rb"^\s*([\d,.]+)\s+\d+%")
_BLOCK = 1 << 20


@dataclass
class Outcome:
    """How a program of a copy ended. ``moved`` counts bytes; ``said`` are the last lines of its stderr."""

    rc: int
    moved: int = 0
    seconds: float = 0.0
    said: list[str] = field(default_factory=list)
    stdout: str = ""


class Tail(Thread):
    """Reads a stream to its end and keeps the last lines, so that a talkative program never blocks on its stderr."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream, self._lines = stream, deque[str](maxlen=12)
        self.start()

    def run(self) -> None:
        for line in self._stream:
            text = line.decode("utf-8", "backslashreplace").strip()
            if text:
                self._lines.append(text[:400])

    def lines(self) -> list[str]:
        self.join(5)
        return list(self._lines)


def _environment() -> dict[str, str]:
    # A user's rsync settings would change the spelling of the request, which the peer takes in one form only.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    return {**kept, "LC_ALL": "C", "RSYNC_PROTECT_ARGS": "0"}


def rsync_argv(
    source: str, address: str, destination: str, listing: str, shell: Sequence[str] | None = None
) -> list[str]:
    """rsync of the files named in ``listing`` into the peer's folder for incoming files.

    Written in place there, since nothing reads that folder: a copy that was cut off goes on inside the file in which it
    ended.
    """
    remote_shell = list(shell) if shell else ssh_argv(address, cipher=COPY_CIPHER)[:-1]
    argv = ["rsync", "--times", "--inplace", "--from0", f"--files-from={listing}", f"--timeout={STALL_S}"]
    argv += ["--no-inc-recursive", "--info=progress2", "--no-human-readable", "--outbuf=N"]
    return [*argv, "-e", " ".join(remote_shell), f"{source.rstrip('/')}/", f"{address}:{destination}/"]


def rsync(argv: Sequence[str], moved: Callable[[int], None]) -> Outcome:
    """Run one rsync and follow its progress; ``moved`` gets the bytes done so far."""
    began = time.monotonic()
    try:
        child = subprocess.Popen(list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment())
    except FileNotFoundError:
        return Outcome(127, said=[f"{argv[0]}: no such program"])
    outcome = Outcome(-1)
    with child:
        if child.stdout is None or child.stderr is None:
            raise RuntimeError("pipes were asked for")
        tail = Tail(child.stderr)
        rest = b""
        while block := os.read(child.stdout.fileno(), 65536):
            *lines, rest = re.split(rb"[\r\n]", rest + block)
            for line in lines:
                match = _PROGRESS.match(line)
                if match:
                    outcome.moved = int(re.sub(rb"[,.]", b"", match[1]))
                    moved(outcome.moved)
        outcome.rc = child.wait()
        outcome.said = tail.lines()
    outcome.seconds = time.monotonic() - began
    return outcome


def write_listing(paths: Sequence[str]) -> str:
    """A file of names for rsync, separated by NUL; the caller removes it."""
    descriptor, name = tempfile.mkstemp(prefix="spark-copy-")
    with os.fdopen(descriptor, "wb") as out:
        for path in paths:
            # Without the dot a name that begins with # would be a comment to rsync.
            out.write(b"./" + os.fsencode(path) + b"\0")
    return name


def pump(
    producer: Sequence[str], consumer: Sequence[str], moved: Callable[[int], None], sent: Callable[[], None]
) -> tuple[Outcome, Outcome]:
    """Connect two programs and count what passes between them; how each of them ended.

    ``sent`` is called when all has passed and the consumer still works on it.
    """
    began = time.monotonic()
    try:
        source = subprocess.Popen(list(producer), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment())
    except FileNotFoundError:
        return Outcome(127, said=[f"{producer[0]}: no such program"]), Outcome(-1)
    first, second = Outcome(-1), Outcome(-1)
    with source:
        sink = subprocess.Popen(
            list(consumer), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
        )
        with sink:
            if not (source.stdout and source.stderr and sink.stdin and sink.stdout and sink.stderr):
                raise RuntimeError("pipes were asked for")
            tails, answers = (Tail(source.stderr), Tail(sink.stderr)), Tail(sink.stdout)
            total = 0
            try:
                while block := os.read(source.stdout.fileno(), _BLOCK):
                    sink.stdin.write(block)
                    total += len(block)
                    moved(total)
                sink.stdin.close()
                sent()
            except BrokenPipeError:
                source.kill()
                _abandon(sink)
            first.rc, second.rc = source.wait(), sink.wait()
            first.moved = second.moved = total
            first.said, second.said = tails[0].lines(), tails[1].lines()
            second.stdout = "\n".join(answers.lines())
    first.seconds = second.seconds = time.monotonic() - began
    return first, second


def _abandon(sink: subprocess.Popen[bytes]) -> None:
    if sink.stdin:
        try:
            sink.stdin.close()
        except BrokenPipeError:
            sink.stdin = None


_NO_CONNECTION = re.compile(
    r"connect to host|connection (timed out|refused|reset|closed)|no route to host|network is unreachable|broken pipe"
    r"|timeout, server|client_loop|connection unexpectedly closed",
    re.IGNORECASE,
)


def explain(outcome: Outcome, *, node: str, target: str, address: str, path: str) -> Finding:
    """Why a copy to ``target`` failed, by what the programs said; never the nearest match."""
    text = "\n".join(outcome.said)
    low = text.lower()
    evidence = [f"exit {outcome.rc} after {outcome.moved} bytes over {address}", *outcome.said[-6:]]
    expected = f"a whole copy on {target}"
    if "no space left on device" in low or "(28)" in low:
        return finding(
            "DISK_FULL",
            node=target,
            found=f"the disk ran full below {path}",
            expected=expected,
            evidence=evidence,
            path=path,
            short="space",
        )
    if outcome.rc == 127 or "is not installed" in low:
        where = target if "is not installed" in low else node
        package = "rsync" if "rsync" in low else "openssh-client"
        return finding(
            "TOOL_MISSING",
            node=where,
            found=outcome.said[-1] if outcome.said else "nothing",
            expected=package,
            package=package,
        )
    if outcome.rc == REFUSED_RC or "rankctl peer: refused" in text:
        return finding(
            "PEER_REFUSED", node=target, found="the request of a copy was refused", expected=expected, evidence=evidence
        )
    if "host key verification failed" in low or "identification has changed" in low:
        return finding(
            "PEER_HOST_KEY_CHANGED",
            node=target,
            found=f"another host key at {address}",
            expected=expected,
            evidence=evidence,
            address=address,
        )
    if re.search(r"permission denied \([a-z]", low):
        return finding(
            "PEER_KEY_REFUSED", node=target, found="the key was not accepted", expected=expected, evidence=evidence
        )
    if outcome.rc == 30:
        return finding(
            "COPY_STALLED", node=target, found=f"no byte for {STALL_S} s", expected=expected, evidence=evidence
        )
    if outcome.rc in (10, 12, 35, 255) and _NO_CONNECTION.search(text):
        return finding(
            "PEER_UNREACHABLE",
            node=node,
            found=f"the connection to {target} at {address} broke or did not come about",
            expected=expected,
            evidence=evidence,
            address=address,
        )
    return finding(
        "UNKNOWN_CAUSE",
        node=target,
        found=f"the copy ended with exit {outcome.rc}",
        expected=expected,
        evidence=evidence,
        attach="this message",
    )


def another_rail_may_help(item: Finding) -> bool:
    return item.code in ("COPY_STALLED", "PEER_UNREACHABLE")


def over_rails(
    addresses: Sequence[str],
    attempt: Callable[[str], Finding | None],
    note: Callable[[Finding], None],
    *,
    node: str,
    target: str,
) -> Finding | None:
    """Try each rail until one carries: None, or the finding of the last one; a change of rails is noted."""
    failure: Finding | None = None
    for address in addresses:
        before, failure = failure, attempt(address)
        if failure is None:
            if before is not None:
                note(
                    finding(
                        "COPY_RAIL_CHANGED",
                        node=node,
                        found=f"the copy to {target} went over {address}",
                        expected=f"the rail of {addresses[0]}",
                        evidence=[f"{before.code}: {before.found}", *before.evidence[:3]],
                    )
                )
            return None
        if not another_rail_may_help(failure):
            return failure
    return failure
