"""What the nodes may ask of each other: the forced command behind the key that they use among themselves.

A peer's key opens no shell. sshd runs ``rankctl peer`` in its place, which reads the wish from SSH_ORIGINAL_COMMAND,
takes a few requests in one exact spelling each, and refuses everything else. Nothing of the wish is passed on: what is
run is built here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import signal
import stat
import sys
import syslog
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SSH_DIR = Path("/etc/spark-cluster/ssh")
KEY = SSH_DIR / "id_ed25519"
KNOWN_HOSTS = SSH_DIR / "known_hosts"
LOCKS = Path("/run/spark-cluster/receive")
CONFIG = Path("/etc/spark-cluster/peer.json")
COMMAND = "/usr/bin/python3 /usr/local/lib/spark-cluster/rankctl.pyz peer"

# Files arrive in a folder of this prefix, owned by root, beside their destination; they get their real names only
# after their hashes have been checked there. So this channel cannot touch a file that is in use.
INCOMING = ".spark-incoming-"
COPY_CIPHER = "aes128-gcm@openssh.com"
REFUSED_RC = 77

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST = 4096
_RSYNC_FLAGS = re.compile(r"-[tR]{0,2}e\d*\.[A-Za-z]{0,16}")
_RSYNC_TIMEOUT = re.compile(r"--timeout=[1-9]\d{0,3}")
IMAGE_REFERENCE = re.compile(
    r"(?=.{1,512}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)

# Requests beside rsync's: word to (module, function). The function gets the words that follow and returns the exit
# status; it has to check them itself, by an exact grammar.
VERBS: dict[str, tuple[str, str]] = {
    "ping": ("peer", "answer_ping"),
    "image-serve": ("image_serve", "answer_serve"),
}


class RefusedError(Exception):
    """A wish that is not granted, and why."""


@dataclass(frozen=True)
class Receive:
    """Take files into ``destination``. ``flags`` is rsync's bundle of short options, ``timeout`` its limit for a silent
    connection.
    """

    flags: str
    timeout: str
    destination: str


@dataclass(frozen=True)
class Verb:
    word: str
    arguments: tuple[str, ...]


def ssh_argv(address: str, *, cipher: str | None = None) -> list[str]:
    """ssh to a peer, up to where the request follows: our key and host keys only, nobody's configuration, never a
    question.
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(KNOWN_HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "ControlPath": "none",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "4",
        "LogLevel": "ERROR",
    }
    argv = ["ssh", "-F", "/dev/null", "-T", "-x", "-a", "-i", str(KEY)]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    if cipher:
        argv += ["-c", cipher]
    return [*argv, "-l", "root", address]


def parse(wish: str) -> Receive | Verb:
    """What a peer asks for; raises RefusedError unless it is one of the requests, spelt as our own side spells it."""
    if len(wish) > _LONGEST:
        raise RefusedError(f"a request of {len(wish)} characters")
    if any(not character.isprintable() for character in wish):
        raise RefusedError("a request with control characters")
    try:
        words = shlex.split(wish)
    except ValueError as error:
        raise RefusedError(f"a request that cannot be split into words: {error}") from error
    if not words:
        raise RefusedError("no request: this key opens no shell")
    if words[0] == "rsync":
        return _parse_rsync(words[1:])
    if words[0] in VERBS:
        return Verb(words[0], tuple(words[1:]))
    raise RefusedError(f"no request {words[0]!r}")


def _parse_rsync(words: Sequence[str]) -> Receive:
    if len(words) != 6 or words[0] != "--server":
        raise RefusedError("rsync other than as the receiver of a copy")
    _server, flags, *long_options, dot, destination = words
    timeouts = [option for option in long_options if _RSYNC_TIMEOUT.fullmatch(option)]
    if (
        not _RSYNC_FLAGS.fullmatch(flags)
        or len(timeouts) != 1
        or sorted({*long_options} - {*timeouts}) != ["--inplace"]
        or dot != "."
    ):
        raise RefusedError("rsync with options other than those of our copies")
    plain = destination[:-1] if destination.endswith("/") else destination
    if not plain.startswith("/") or plain != os.path.normpath(plain) or plain.startswith("//"):
        raise RefusedError(f"a destination that is not a plain absolute path: {destination!r}")
    if not os.path.basename(plain).startswith(INCOMING):
        raise RefusedError(f"a destination that is not a folder for incoming files: {destination!r}")
    return Receive(flags, timeouts[0], plain)


def incoming_dir(path: str) -> str:
    """Where the files of the folder ``path`` arrive."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(parent, INCOMING + name)


def read_config(path: Path = CONFIG) -> dict[str, Any]:
    """What peer_trust installed: the node's and the cluster's name and the folders into which peers may copy; empty
    where it has not.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def may_receive(path: str, roots: Sequence[str]) -> str | None:
    """The root below which ``path`` lies, by its spelling."""
    for root in roots:
        plain = os.path.normpath(root)
        if plain != "/" and path.startswith(plain + "/"):
            return plain
    return None


def open_incoming(destination: str, roots: Sequence[str]) -> int:
    """Open the folder for incoming files, made if need be, and return its descriptor.

    The root may be a link: that is the administrator's choice. Below it no component may be, and the last one has to be
    root's own and closed to others, so that nobody who may write beside it can turn the copy elsewhere.
    """
    root = may_receive(destination, roots)
    if root is None:
        raise RefusedError(f"{destination} is not below {' or '.join(roots) or 'any folder, since none is set'}")
    *between, last = Path(destination).relative_to(root).parts
    existing = start = Path(os.path.realpath(root))
    while not existing.exists():
        existing = existing.parent
    try:
        here = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in (*start.relative_to(existing).parts, *between):
            here = _step(here, name, private=False)
        return _step(here, last, private=True)
    except OSError as error:
        raise RefusedError(f"{destination}: {error.strerror or error}") from error


def _step(above: int, name: str, *, private: bool) -> int:
    """Go one folder down, making it if need be: as its parent's owner has it, or private to us. Closes ``above``."""
    try:
        owner = os.fstat(above)
        try:
            os.mkdir(name, 0o700 if private else 0o755, dir_fd=above)
            made = True
        except FileExistsError:
            made = False
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)
    found = os.fstat(below)
    if made and not private:
        os.fchown(below, owner.st_uid, owner.st_gid)
    if private and (found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077):
        os.close(below)
        raise OSError(
            f"{name} belongs to somebody else, or others may enter it (mode {stat.S_IMODE(found.st_mode):04o})"
        )
    return below


def claim(destination: str, patience_s: float = 10.0, locks: Path = LOCKS) -> int:
    """Become the only one that writes into a folder for incoming files, until the returned descriptor is closed.

    A receiver whose connection went silent lives on until its own timeout, with a file open that by then may have been
    completed over another rail and published. So a newcomer ends it first. Anything else that holds the lock is waited
    for: files are just being given their names.
    """
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = locks / f"{hashlib.sha256(destination.encode()).hexdigest()[:24]}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    ends = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for process in _receivers(path):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if time.monotonic() > ends:
                os.close(lock)
                raise RefusedError(f"another copy into {destination} does not end") from None
            time.sleep(0.05)
        else:
            return lock


def _receivers(lock: Path) -> list[int]:
    """The rsync processes that have the lock open."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if comm.read_text() == "rsync\n" and any(
                os.readlink(entry) == str(lock) for entry in os.scandir(comm.parent / "fd")
            ):
                found.append(int(comm.parent.name))
    return found


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What a granted request runs with; of what came in only who is connected is kept."""
    kept = {name: inherited[name] for name in ("SSH_CONNECTION", "SSH_CLIENT") if name in inherited}
    return {**kept, "PATH": _PATH, "HOME": "/root", "LC_ALL": "C"}


def answer_ping(arguments: Sequence[str]) -> int:
    """Who this is, and which code answers: the proof that an address leads to the node that it should."""
    if arguments:
        raise RefusedError("ping takes no argument")
    config = read_config()
    code = Path(sys.argv[0])
    print(
        json.dumps(
            {
                "spark_cluster": "peer",
                "schema": 1,
                "cluster": config.get("cluster"),
                "node": config.get("node"),
                "hostname": os.uname().nodename,
                "rankctl_sha256": hashlib.sha256(code.read_bytes()).hexdigest() if code.is_file() else None,
            },
            sort_keys=True,
        )
    )
    return 0


def _receive(request: Receive) -> int:
    descriptor = open_incoming(request.destination, [str(root) for root in read_config().get("receive", [])])
    os.set_inheritable(claim(request.destination), True)
    os.umask(0o077)
    os.fchdir(descriptor)
    argv = ["rsync", "--server", request.flags, request.timeout, "--inplace", ".", "./"]
    try:
        os.execvpe(argv[0], argv, environment(os.environ))  # noqa: S606 - an argument list built here
    except FileNotFoundError:
        print("rankctl peer: rsync is not installed", file=sys.stderr)
        return 127


def _log(priority: int, text: str) -> None:
    client = os.environ.get("SSH_CONNECTION", "nowhere").partition(" ")[0]
    syslog.syslog(priority, f"peer {client}: {text}")


def serve(wish: str, receive: Callable[[Receive], int] = _receive) -> int:
    """Grant or refuse one wish; the exit status says which."""
    shown = shlex.quote(wish[:500])
    try:
        request = parse(wish)
        _log(syslog.LOG_INFO, f"request {shown}")
        if isinstance(request, Receive):
            return receive(request)
        module, function = VERBS[request.word]
        return int(getattr(import_module(f".{module}", __package__), function)(list(request.arguments)))
    except RefusedError as refusal:
        _log(syslog.LOG_WARNING, f"refused {shown}: {refusal}")
        print(f"rankctl peer: refused: {refusal}", file=sys.stderr)
        return REFUSED_RC


def main(argv: Sequence[str]) -> int:
    if argv:
        print("rankctl peer: it reads SSH_ORIGINAL_COMMAND and takes no argument", file=sys.stderr)
        return REFUSED_RC
    syslog.openlog("spark-cluster", syslog.LOG_PID, syslog.LOG_AUTH)
    return serve(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
