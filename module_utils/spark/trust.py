"""Trust between the nodes: this node's key, the peers' lines in root's authorized_keys, and the record of their host
keys.

A line of ours is told by two marks together, the forced command in front and our comment at the end; every other line,
however similar, is somebody else's and stays as it is, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from . import guard, peer, undo
from .findings import Finding, finding
from .runner import Run, run

_KEY = re.compile(r"(?P<type>(?:ssh|ecdsa|sk-ssh|sk-ecdsa)[A-Za-z0-9@.-]*) (?P<blob>[A-Za-z0-9+/]+=*)(?: .*)?")
_NO_CONNECTION = re.compile(
    r"connect to host|timed out|no route|refused|unreachable|connection (closed|reset)|ended after"
)
_COMMENT = "spark-cluster:"
BACKUP = Path("/var/lib/spark-cluster/backup")
_STILL_DEFAULT = ".ssh/authorized_keys"


@dataclass(frozen=True)
class Peer:
    """A peer as this node has to know it. ``public_key`` is None where its key does not exist yet (check mode)."""

    node: str
    addresses: tuple[str, ...]
    public_key: str | None
    host_keys: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A file as it lies there and as it should; ``before`` is None where there is none."""

    path: Path
    before: bytes | None
    after: bytes
    mode: int

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> dict[str, str]:
        return {
            "before_header": str(self.path),
            "after_header": str(self.path),
            "before": _shown(self.before or b""),
            "after": _shown(self.after),
        }


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def plain_key(text: str) -> str | None:
    """``type blob`` of a public key, without its comment; None where it is not one."""
    match = _KEY.fullmatch(text.strip())
    if match is None:
        return None
    try:
        blob = base64.b64decode(match["blob"], validate=True)
    except binascii.Error:
        return None
    # The blob repeats its type, so that a mangled copy is told from a key.
    length = int.from_bytes(blob[:4], "big")
    return f"{match['type']} {match['blob']}" if blob[4 : 4 + length] == match["type"].encode() else None


def fingerprint(key: str) -> str:
    """As ssh-keygen -l prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


# This node's own key


def host_keys(folder: Path = Path("/etc/ssh")) -> list[str]:
    """The public host keys that this node's sshd may show."""
    keys = []
    for path in sorted(folder.glob("ssh_host_*_key.pub")):
        key = plain_key(path.read_text(errors="replace"))
        if key:
            keys.append(key)
    return keys


def read_key(node: str, path: Path = peer.KEY, runner: Run = run) -> tuple[str | None, list[Finding]]:
    """The public half of this node's key: None where there is no key yet, or where a finding says what is wrong with
    it.
    """
    if not os.path.lexists(path):
        return None, []
    done = runner(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    key = plain_key(done.stdout) if done.ok else None
    if key is not None:
        return key, []
    found = finding(
        "PEER_KEY_BROKEN",
        node=node,
        found=f"{path} that ssh-keygen cannot read (exit {done.rc})",
        expected="an unencrypted ed25519 key, readable by root only",
        evidence=[line for line in done.stderr.splitlines() if line.strip("@ ")][-5:],
        path=path,
    )
    return None, [found]


def make_key(node: str, path: Path = peer.KEY, runner: Run = run, journal: Path = undo.ROOT) -> str:
    """Make this node's key beside its place and move it there whole; the private half never leaves ssh-keygen's own
    file.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        fresh = Path(folder, "key")
        runner(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{_COMMENT}{node}", "-f", str(fresh)], check=True)
        public = fresh.with_suffix(".pub")
        for half, target in ((public, path.with_suffix(".pub")), (fresh, path)):
            with half.open("rb") as opened:
                os.fsync(opened.fileno())
                digest = hashlib.sha256(opened.read()).hexdigest()
            undo.record(
                {"kind": "file_written", "path": str(target), "sha256": digest, "before": None, "backup": None},
                root=journal,
            )
            os.replace(half, target)
        undo.sync_directory(path.parent)
    key, findings = read_key(node, path, runner)
    if key is None:
        raise RuntimeError(f"the key just made cannot be read: {findings[0].evidence if findings else 'it is gone'}")
    return key


# The peers


def authorized_line(one: Peer, cluster: str) -> str:
    addresses = ",".join(one.addresses)
    return f'restrict,from="{addresses}",command="{peer.COMMAND}" {one.public_key} {_COMMENT}{cluster}:{one.node}'


def _ours(line: bytes) -> bool:
    return (
        f'command="{peer.COMMAND}"'.encode() in line
        and re.search(rb" " + _COMMENT.encode() + rb"[^\s]+\s*\Z", line) is not None
    )


def authorized(before: bytes | None, peers: Sequence[Peer], cluster: str) -> bytes:
    """authorized_keys with exactly our lines for ``peers``, each in the place where a line of ours for it stood, new
    ones at the end.

    A peer without a key yet keeps the line it has.
    """
    wanted = {one.node: (authorized_line(one, cluster) + "\n").encode() for one in peers if one.public_key}
    unknown = {one.node for one in peers if not one.public_key}
    kept: list[bytes] = []
    for line in (before or b"").splitlines(keepends=True):
        if not _ours(line):
            kept.append(line)
            continue
        node = line.split()[-1].decode("utf-8", "replace").rpartition(":")[2]
        if node in wanted:
            kept.append(wanted.pop(node))
        elif node in unknown:
            kept.append(line)
    if kept and wanted and not kept[-1].endswith((b"\n", b"\r")):
        kept.append(b"\n")
    return b"".join([*kept, *wanted.values()])


def unrestricted(raw: bytes | None, peers: Iterable[Peer], node: str, path: Path) -> list[Finding]:
    """Foreign lines that hold a peer's key: sshd would take the first of them, and with it no forced command."""
    findings = []
    by_blob = {one.public_key.split()[1].encode(): one.node for one in peers if one.public_key}
    for number, line in enumerate((raw or b"").splitlines(), 1):
        if line.lstrip().startswith(b"#") or _ours(line):
            continue
        for word in line.split():
            if word in by_blob:
                findings.append(
                    finding(
                        "PEER_KEY_UNRESTRICTED",
                        node=node,
                        found=f"line {number} of {path} holds the key of {by_blob[word]} and is not ours",
                        expected="that key only behind the forced command",
                        line=number,
                        path=path,
                    )
                )
    return findings


def known_hosts(peers: Iterable[Peer]) -> bytes:
    lines = []
    for one in sorted(peers, key=lambda item: item.node):
        lines += [f"{','.join(one.addresses)} {key}" for key in sorted(one.host_keys)]
    return "".join(f"{line}\n" for line in lines).encode()


def peer_config(cluster: str, node: str, receive: Sequence[str]) -> bytes:
    return (
        json.dumps({"schema": 1, "cluster": cluster, "node": node, "receive": list(receive)}, sort_keys=True, indent=1)
        + "\n"
    ).encode()


def planned(
    node: str, cluster: str, peers: Sequence[Peer], receive: Sequence[str], settings: Mapping[str, Sequence[str]] | None
) -> list[Change]:
    """The files of trust as they are and as they should be, authorized_keys first."""

    def change(path: Path, after: Callable[[bytes | None], bytes], mode: int) -> Change:
        before = path.read_bytes() if path.exists() else None
        return Change(path, before, after(before), mode)

    return [
        change(authorized_keys_path(settings), lambda before: authorized(before, peers, cluster), 0o600),
        change(peer.KNOWN_HOSTS, lambda _before: known_hosts(peers), 0o600),
        change(peer.CONFIG, lambda _before: peer_config(cluster, node, receive), 0o600),
    ]


def parse_peers(me: str, nodes: Sequence[Mapping[str, Any]], identities: Sequence[Mapping[str, Any]]) -> list[Peer]:
    """The peers of ``me`` from the plan's nodes and, in the same order, what peer_key returned on each.

    Raises ValueError for what is not an address, a name or a key: these words go into root's authorized_keys.
    """
    if len(nodes) != len(identities):
        raise ValueError(f"{len(nodes)} nodes and {len(identities)} keys")
    peers = []
    for planned, identity in zip(nodes, identities, strict=True):
        name = str(planned["node"])
        if name == me:
            continue
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(f"{name!r} is not the name of a node")
        addresses = tuple(str(rail["address"]) for rail in planned["rails"])
        for address in addresses:
            if not re.fullmatch(r"[0-9a-fA-F.:]+", address):
                raise ValueError(f"{address!r} is not an address")
        public = identity.get("public_key")
        key = None if public is None else plain_key(str(public))
        if public is not None and key is None:
            raise ValueError(f"what {name} returned is not a public key")
        hosts = [plain_key(str(text)) for text in identity.get("host_keys") or ()]
        if None in hosts:
            raise ValueError(f"what {name} returned are not host keys")
        peers.append(Peer(name, addresses, key, tuple(text for text in hosts if text)))
    return peers


# sshd


def sshd_settings(address: str, runner: Run = run) -> dict[str, list[str]] | None:
    """sshd's effective configuration for root from ``address``; None where sshd would not say."""
    done = runner(["sshd", "-T", "-C", f"user=root,host={address},addr={address}"])
    if not done.ok:
        done = runner(["/usr/sbin/sshd", "-T", "-C", f"user=root,host={address},addr={address}"])
    if not done.ok:
        return None
    settings: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.strip().partition(" ")
        settings.setdefault(name.lower(), []).append(value)
    return settings


def authorized_keys_path(settings: Mapping[str, Sequence[str]] | None, home: Path = Path("/root")) -> Path:
    """The first file in which sshd looks for root's keys."""
    first = ((settings or {}).get("authorizedkeysfile") or [_STILL_DEFAULT])[0].split()
    name = first[0] if first and first[0].lower() != "none" else _STILL_DEFAULT
    name = name.replace("%%", "\0").replace("%h", str(home)).replace("%u", "root").replace("%U", "0").replace("\0", "%")
    return Path(name) if name.startswith("/") else home / name


def root_refused(settings: Mapping[str, Sequence[str]] | None, node: str, addresses: Sequence[str]) -> list[Finding]:
    """Why sshd would not let root in with a key and a forced command, where its configuration says so."""
    if settings is None:
        return []

    def only(name: str, default: str) -> str:
        return (settings.get(name) or [default])[0]

    reasons = []
    if only("permitrootlogin", "prohibit-password") == "no":
        reasons.append("PermitRootLogin no")
    if only("pubkeyauthentication", "yes") == "no":
        reasons.append("PubkeyAuthentication no")
    if only("authorizedkeysfile", _STILL_DEFAULT).lower() == "none":
        reasons.append("AuthorizedKeysFile none")
    allowed, denied = settings.get("allowusers", ()), settings.get("denyusers", ())
    if allowed and not any(_root_matches(pattern) for pattern in allowed):
        reasons.append(f"AllowUsers {' '.join(allowed)}")
    if any(_root_matches(pattern) for pattern in denied):
        reasons.append(f"DenyUsers {' '.join(denied)}")
    if not reasons:
        return []
    by_name = [reason for reason in reasons if reason.startswith(("AllowUsers", "DenyUsers"))]
    remedy = (
        f"On {node}: let root@{addresses[0]} in by AllowUsers or DenyUsers in /etc/ssh/sshd_config, "
        "then sudo systemctl reload ssh"
        if by_name
        else None
    )
    return [
        finding(
            "PEER_ROOT_LOGIN_REFUSED",
            node=node,
            found=", ".join(reasons),
            expected="PermitRootLogin forced-commands-only or prohibit-password, at least for the fabric's addresses",
            evidence=[f"sshd -T -C user=root,host={addresses[0]},addr={addresses[0]}"],
            remedy=remedy,
            addresses=",".join(addresses),
        )
    ]


def _root_matches(pattern: str) -> bool:
    return any(fnmatchcase("root", word.partition("@")[0]) for word in pattern.split())


# Writing


def key_entries(change: Change) -> list[dict[str, Any]]:
    """What the journal has to know of a change of authorized_keys: our lines, so that an undo takes out these and
    nothing else, and what the file and its folder were.
    """
    known = set((change.before or b"").splitlines())
    path = Path(os.path.realpath(change.path))
    was = {
        "before": None if change.before is None else guard.snapshot(path),
        "folder": None if path.parent.is_dir() else str(path.parent),
    }
    return [
        {"kind": "authorized_key_added", "path": str(path), "line": _shown(line), **was}
        for line in change.after.splitlines()
        if _ours(line) and line not in known
    ]


def file_entry(change: Change, backups: Path = BACKUP) -> dict[str, Any]:
    """What the journal has to know of a whole file, whose former content is kept."""
    path = Path(os.path.realpath(change.path))
    entry: dict[str, Any] = {"kind": "file_written", "path": str(path), "before": None, "backup": None}
    entry["sha256"] = hashlib.sha256(change.after).hexdigest()
    if change.before is None:
        return entry
    status = path.stat()
    digest = hashlib.sha256(change.before).hexdigest()
    backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = backups / f"{digest[:16]}-{path.name}"
    _replace(kept, change.before, 0o600, None)
    before = {
        "sha256": digest,
        "size": status.st_size,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }
    return {**entry, "before": before, "backup": str(kept)}


def write(change: Change, entries: Iterable[Mapping[str, Any]], journal: Path = undo.ROOT) -> None:
    """Put ``change`` in place, after the journal knows; the file appears whole or not at all, its mode and owner
    stay.
    """
    path = Path(os.path.realpath(change.path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for entry in entries:
        undo.record(entry, root=journal)
    if change.before is None:
        _replace(path, change.after, change.mode, None)
    else:
        status = path.stat()
        _replace(path, change.after, status.st_mode & 0o7777, (status.st_uid, status.st_gid))


def _replace(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), mode)
            if owner:
                os.fchown(out.fileno(), *owner)
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    undo.sync_directory(path.parent)


# Proof


def ping(
    one: Peer, address: str, node: str, cluster: str, own_code: str | None, runner: Run = run
) -> tuple[Finding, float]:
    """Ask a peer who it is, over a new connection to ``address``; the finding and the seconds it took."""
    done = runner([*peer.ssh_argv(address), "ping"], timeout_s=45)
    said = [line for line in done.stderr.splitlines() if line.strip("@ ")][-6:]
    expected = f"{one.node} answers the request ping at {address}"
    if done.ok:
        return _judge_answer(one, address, node, cluster, own_code, done.stdout, expected), done.duration_s
    text = done.stderr.lower()
    if "host key verification failed" in text or "identification has changed" in text:
        code = "PEER_HOST_KEY_CHANGED"
    elif "permission denied" in text or "too many authentication failures" in text:
        code = "PEER_KEY_REFUSED"
    elif done.rc == peer.REFUSED_RC:
        code = "PEER_REFUSED"
    elif done.rc in (255, 124) and _NO_CONNECTION.search(text):
        code = "PEER_UNREACHABLE"
    else:
        code = "UNKNOWN_CAUSE"
    found = f"ssh exited {done.rc}"
    return (
        finding(code, node=node, found=found, expected=expected, evidence=said, address=address, attach="this message"),
        done.duration_s,
    )


def _judge_answer(
    one: Peer, address: str, node: str, cluster: str, own_code: str | None, stdout: str, expected: str
) -> Finding:
    try:
        answer = json.loads(stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("spark_cluster") != "peer":
        return finding(
            "UNKNOWN_CAUSE",
            node=node,
            found="ssh succeeded and something else than the forced command answered",
            expected=expected,
            evidence=[line[:200] for line in stdout.splitlines()[:5]],
            attach="this message",
        )
    if (answer.get("cluster"), answer.get("node")) != (cluster, one.node):
        return finding(
            "PEER_UNREACHABLE",
            node=node,
            found=f"{answer.get('node')} of cluster {answer.get('cluster')} answers at {address}",
            expected=expected,
            address=address,
        )
    theirs = answer.get("rankctl_sha256")
    if own_code and theirs and theirs != own_code:
        return finding(
            "PEER_REFUSED",
            node=node,
            found=f"{one.node} runs another rankctl ({theirs[:12]}) than this node ({own_code[:12]})",
            expected="the same on all nodes",
        )
    return finding("PEER_REACHED", node=node, found=f"{one.node} answers at {address}", expected=expected)
