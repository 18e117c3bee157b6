"""Puts a node's network back as it was, without a controller.

A copy of this file lies on the node beside the state of one pending change, and a timer, or a unit at the next boot,
runs it. It therefore imports nothing of this package. Every step may be repeated: an interrupted rollback is finished
by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path("/var/lib/spark-cluster/rollback")
STATE = "state.json"
LAST = "last.json"
# What a power cut in the middle of a write leaves behind; netplan, sysctl and systemd pass over such names.
UNFINISHED = ".spark-tmp"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the change: confirming it and rolling it back exclude each other."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_state(root: Path) -> dict[str, Any] | None:
    """The pending change, None where there is none."""
    try:
        state = json.loads((root / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return state if isinstance(state, dict) else None


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(
    path: Path, data: bytes, *, mode: int, owner: Sequence[int] = (0, 0), mtime_ns: int | None = None
) -> None:
    """Replace a file so that a reader, or a power cut, finds either the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            if os.geteuid() == 0:
                os.fchown(handle.fileno(), owner[0], owner[1])
            os.fchmod(handle.fileno(), mode)
            if mtime_ns is not None:
                os.utime(handle.fileno(), ns=(mtime_ns, mtime_ns))
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def move_file(source: Path, target: Path) -> None:
    """Move a file, also between file systems, keeping bytes, mode, owner and time; at no moment is it nowhere."""
    status = source.stat()
    data = source.read_bytes()
    write_file(
        target, data, mode=status.st_mode & 0o7777, owner=(status.st_uid, status.st_gid), mtime_ns=status.st_mtime_ns
    )
    if hashlib.sha256(target.read_bytes()).digest() != hashlib.sha256(data).digest():
        raise OSError(f"{target} does not read back as written")
    source.unlink()
    sync_directory(source.parent)


def call(argv: Sequence[str], timeout_s: float = 60) -> dict[str, Any]:
    """Run a command and note what it did. A failing one does not stop a rollback: the next step may still help."""
    if shutil.which(argv[0]) is None:
        return {"argv": list(argv), "rc": 127, "said": "no such program"}
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return {"argv": list(argv), "rc": 124, "said": f"still running after {timeout_s} s"}
    said = (done.stderr or done.stdout).decode("utf-8", "backslashreplace").strip()[-500:]
    return {"argv": list(argv), "rc": done.returncode, "said": said}


def restore_files(state: Mapping[str, Any]) -> None:
    """Each file as it was, or none."""
    for file in state["files"]:
        path, before = Path(file["path"]), file["before"]
        if before is not None:
            write_file(
                path,
                Path(before["backup"]).read_bytes(),
                mode=int(before["mode"], 8),
                owner=(before["uid"], before["gid"]),
                mtime_ns=before["mtime_ns"],
            )
        elif path.exists():
            path.unlink()
            sync_directory(path.parent)


def restore_settings(state: Mapping[str, Any]) -> None:
    """Kernel settings as they were; one of an interface that is gone went with it."""
    for setting in state["settings"]:
        path = Path(setting["path"])
        if path.exists():
            path.write_text(f"{setting['before']}\n", encoding="ascii")


def reapply(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the network follow the files again, touching only the functions that the change touched."""
    done = [call(argv) for argv in state["reapply"]]
    for device in state["devices"]:
        name = device["netdev"]
        if device["address"] not in device["addresses_before"]:
            done.append(call(["ip", "address", "del", device["address"], "dev", name]))
        if device.get("connection_before"):
            done.append(call(["nmcli", "--wait", "10", "connection", "up", device["connection_before"]]))
        if device.get("ignored_before"):
            done.append(call(["nmcli", "device", "set", name, "managed", "no"]))
        if device.get("mtu_before"):
            done.append(call(["ip", "link", "set", "dev", name, "mtu", str(device["mtu_before"])]))
        done.append(call(["ip", "link", "set", "dev", name, "up" if device["up_before"] else "down"]))
    return done


def roll_back(root: Path = ROOT, reason: str = "not confirmed in time") -> dict[str, Any] | None:
    """Undo the pending change and return what was done, None where nothing was pending."""
    with locked(root):
        state = read_state(root)
        if state is None:
            return None
        restore_files(state)
        commands = reapply(state)
        restore_settings(state)
        # Last: while an all-NUL file lies in /etc/netplan, nothing can be applied.
        for moved in state["moved"]:
            if Path(moved["to"]).exists():
                move_file(Path(moved["to"]), Path(moved["path"]))
        report = {
            "stamp": state["stamp"],
            "reason": reason,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commands": commands,
        }
        write_file(root / LAST, json.dumps(report, indent=1).encode() + b"\n", mode=0o600)
        journal = Path(state["journal"])
        if journal.exists():
            entry = {"kind": "rolled_back", "stamp": state["stamp"], "reason": reason, "at": report["at"]}
            with journal.open("ab") as handle:
                handle.write(json.dumps(entry, sort_keys=True).encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
        forget(root, state)
        return report


def forget(root: Path, state: Mapping[str, Any]) -> None:
    """Nothing is pending any more; the caller holds the lock."""
    (root / STATE).unlink(missing_ok=True)
    sync_directory(root)
    for path in map(Path, state["boot_files"]):
        if path.exists() or path.is_symlink():
            path.unlink()
            sync_directory(path.parent)


if __name__ == "__main__":
    result = roll_back(Path(__file__).resolve().parent, sys.argv[1] if len(sys.argv) > 1 else "not confirmed in time")
    sys.stdout.write("nothing was pending\n" if result is None else json.dumps(result) + "\n")
