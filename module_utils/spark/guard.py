"""A change of a node's network under guard: what is needed to take it back lies on the node before it begins, a timer
takes it back unless it is confirmed, and a unit of the next boot does so after a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import rollback, undo
from .findings import Finding, finding
from .parse.nmcli import split_terse
from .parse.whole import document
from .runner import Completed, Run

TIMER = "spark-fabric-rollback"
BOOT_UNIT = "spark-fabric-rollback-boot.service"
UNITS = "etc/systemd/system"
# Where an unfinished write of a change may lie.
CHANGED_FOLDERS = ("etc/netplan", "etc/sysctl.d", UNITS)


class Node:
    """The file system and the commands of one machine; ``root`` is another folder in tests."""

    def __init__(self, run: Run, root: Path = Path("/")) -> None:
        self.run = run
        self.root = root

    @property
    def state(self) -> Path:
        return self.root / "var/lib/spark-cluster"

    @property
    def rollback(self) -> Path:
        return self.state / "rollback"

    @property
    def journal(self) -> Path:
        return self.state / "undo"

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def shown(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))

    def setting(self, key: str) -> Path:
        """Where the kernel keeps a setting; as for sysctl, names with a dot in them are told by separating with /."""
        return self.root / "proc/sys" / (key if "/" in key else key.replace(".", "/"))


def snapshot(path: Path) -> dict[str, Any]:
    """What a file is, so that it can be made so again."""
    status = path.stat()
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size": status.st_size,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }


def keep(path: Path, folder: Path) -> dict[str, Any] | None:
    """Copy a file into a folder that only root reads; what it was and where its copy lies, None where there is none."""
    if not path.exists():
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = snapshot(path)
    rollback.write_file(
        folder / path.name,
        path.read_bytes(),
        mode=0o600,
        owner=(before["uid"], before["gid"]),
        mtime_ns=before["mtime_ns"],
    )
    return {**before, "backup": str(folder / path.name)}


def connections(run: Run) -> tuple[dict[str, str], set[str]]:
    """The active connection of each interface, and the interfaces that NetworkManager was told to ignore."""
    active = run(["nmcli", "-t", "-f", "DEVICE,UUID", "connection", "show", "--active"])
    rows = [split_terse(line) for line in active.stdout.splitlines()] if active.ok else []
    states = run(["nmcli", "-t", "-f", "DEVICE,STATE", "device"])
    told = [split_terse(line) for line in states.stdout.splitlines()] if states.ok else []
    return {row[0]: row[1] for row in rows if len(row) == 2}, {row[0] for row in told if row[1:] == ["unmanaged"]}


def state_of_change(
    node: Node,
    *,
    stamp: str,
    files: Sequence[Mapping[str, Any]],
    moved: Sequence[tuple[Path, Path]],
    devices: Sequence[Mapping[str, Any]],
    settings: Iterable[Path],
    follow: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Everything that taking back needs, with real paths: it runs alone."""
    by_device, ignored = connections(node.run)
    values = {path: _value(path) for path in settings}
    return {
        "stamp": stamp,
        "armed_at": time.time(),
        "reapply": [list(argv) for argv in follow],
        "files": list(files),
        "moved": [{"path": str(path), "to": str(target)} for path, target in moved],
        "journal": str(node.journal / undo.JOURNAL),
        "boot_files": [str(path) for path in boot_files(node)],
        "settings": [{"path": str(path), "before": value} for path, value in values.items() if value is not None],
        "devices": [
            {
                **device,
                "connection_before": by_device.get(str(device["netdev"])),
                "ignored_before": device["netdev"] in ignored,
            }
            for device in devices
        ],
    }


def _value(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


# --- arming ----------------------------------------------------------------------------------------------------------


def boot_files(node: Node) -> list[Path]:
    """The link that starts the boot unit, and the unit."""
    return [node.root / UNITS / "multi-user.target.wants" / BOOT_UNIT, node.root / UNITS / BOOT_UNIT]


def arm(node: Node, name: str, state: Mapping[str, Any], seconds: int) -> Finding | None:
    """Put the rollback and its state on the node, and start the timer; a unit stands by for a power cut."""
    folder = node.rollback
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / "rollback.py"
    rollback.write_file(script, inspect.getsource(rollback).encode(), mode=0o700)
    want, unit = boot_files(node)
    with rollback.locked(folder):
        # The unit first: a state without one would wait for ever if the power went now.
        want.parent.mkdir(parents=True, exist_ok=True)
        rollback.write_file(unit, _boot_unit(script, folder).encode(), mode=0o644)
        want.unlink(missing_ok=True)
        want.symlink_to(f"/{UNITS}/{BOOT_UNIT}")
        rollback.sync_directory(want.parent)
        rollback.write_file(folder / rollback.STATE, json.dumps(state, indent=1).encode() + b"\n", mode=0o600)
    answer = start_timer(node, seconds)
    if answer.ok:
        return None
    with rollback.locked(folder):
        rollback.forget(folder, state)
    return _not_armed(name, seconds, answer)


def rearm(node: Node, name: str, seconds: int) -> Finding | None:
    """Give a pending change its whole time again."""
    stop_timer(node)
    answer = start_timer(node, seconds)
    return None if answer.ok else _not_armed(name, seconds, answer)


def _not_armed(name: str, seconds: int, answer: Completed) -> Finding:
    said = next((line.strip() for line in answer.stderr.splitlines() if line.strip()), "it printed nothing")
    return finding(
        "FABRIC_ROLLBACK_NOT_ARMED",
        node=name,
        found=f"systemd-run exited {answer.rc}: {said}",
        expected=f"a timer that puts the network back after {seconds} s",
    )


def start_timer(node: Node, seconds: int) -> Completed:
    argv = [
        "systemd-run",
        f"--unit={TIMER}",
        "--description=Put the fabric's network back unless it is confirmed",
        f"--on-active={seconds}s",
        "--timer-property=AccuracySec=1s",
        "--collect",
        "/usr/bin/python3",
        "-I",
        str(node.rollback / "rollback.py"),
    ]
    answer = node.run(argv)
    if answer.ok:
        return answer
    # One of an earlier run may still be there, waiting or failed.
    stop_timer(node)
    node.run(["systemctl", "reset-failed", f"{TIMER}.timer", f"{TIMER}.service"])
    return node.run(argv)


def stop_timer(node: Node) -> None:
    """The timer only: a rollback that has begun is never interrupted."""
    node.run(["systemctl", "stop", f"{TIMER}.timer"])


def _boot_unit(script: Path, folder: Path) -> str:
    return f"""[Unit]
Description=Finish a rollback of the fabric's network that a power cut interrupted
ConditionPathExists={folder / rollback.STATE}
After=network.target NetworkManager.service systemd-networkd.service

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {script} "the node restarted before the change was confirmed"
"""


# --- ending ----------------------------------------------------------------------------------------------------------


def pending(node: Node) -> bool:
    return rollback.read_state(node.rollback) is not None


def confirm(node: Node) -> bool:
    """Keep the change: no rollback any more. False where there was none to cancel, because it ran already."""
    with rollback.locked(node.rollback):
        state = rollback.read_state(node.rollback)
        if state is None:
            return False
        rollback.forget(node.rollback, state)
    stop_timer(node)
    return True


def take_back(node: Node, reason: str) -> bool:
    """Put everything back now instead of when the time is over; False where nothing was pending."""
    report = rollback.roll_back(node.rollback, reason)
    stop_timer(node)
    return report is not None


def last_rollback(node: Node) -> list[str]:
    """What the last rollback says of itself, empty where there was none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        report = document((node.rollback / rollback.LAST).read_text(encoding="utf-8"))
        return [f"rolled back at {report['at']}: {report['reason']}"]
    return []


def remnants(node: Node) -> list[Path]:
    """What a power cut at an unlucky moment leaves: unfinished writes, and the boot unit of a change that is over."""
    found = [path for folder in CHANGED_FOLDERS for path in (node.root / folder).glob(f".*{rollback.UNFINISHED}")]
    if not pending(node):
        found += [path for path in boot_files(node) if path.exists() or path.is_symlink()]
    return sorted(found)


def sweep(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        rollback.sync_directory(path.parent)
