"""Units of earlier deployments: what they are now, and how they are kept from serving beside the cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import undo
from .findings import Finding, finding
from .parse.systemd import parse_show
from .runner import Run

# States in which systemd starts a unit at boot, or something else of the system may.
_STARTS = ("enabled", "enabled-runtime", "alias", "linked")
_RUNS = ("active", "activating", "reloading", "deactivating")


@dataclass(frozen=True)
class Unit:
    """``enabled`` and ``active`` are systemd's words; ``not-found`` where there is no such unit."""

    name: str
    enabled: str
    active: str

    @property
    def conflicts(self) -> bool:
        return self.enabled in _STARTS or self.active in _RUNS

    @property
    def state(self) -> str:
        return f"{self.enabled}, {self.active}"


def read(run: Run, names: Sequence[str]) -> list[Unit]:
    """The state of each unit, in the order asked for."""
    if not names:
        return []
    shown = run(["systemctl", "show", "-p", "Id,LoadState,UnitFileState,ActiveState", *names], check=True)
    units = parse_show(shown.stdout)
    found = []
    for name in names:
        fields = units.get(name, {})
        enabled = fields.get("UnitFileState") or fields.get("LoadState") or "not-found"
        found.append(Unit(name, enabled, fields.get("ActiveState", "inactive")))
    return found


def links_of(name: str, root: Path = Path("/")) -> list[dict[str, Any]]:
    """The links by which a unit is enabled, each so that it can be made again exactly as it is."""
    folder = root / "etc/systemd/system"
    found = []
    for path in sorted([*folder.glob("*"), *folder.glob("*.wants/*"), *folder.glob("*.requires/*")]):
        if path.is_symlink() and name in (path.name, Path(os.readlink(path)).name):
            status = path.lstat()
            link = {"path": "/" + str(path.relative_to(root)), "target": os.readlink(path)}
            found.append({**link, "mtime_ns": status.st_mtime_ns})
    return found


def disable(
    run: Run, units: Sequence[Unit], *, dry: bool = False, journal: Path = undo.ROOT, root: Path = Path("/")
) -> list[Unit]:
    """Disable and stop those that conflict, each recorded first, and return what they are then."""
    conflicting = [unit for unit in units if unit.conflicts]
    if dry:
        return [replace(unit, enabled="disabled", active="inactive") if unit.conflicts else unit for unit in units]
    for unit in conflicting:
        undo.record(
            {
                "kind": "unit_disabled",
                "unit": unit.name,
                "was_enabled": unit.enabled in _STARTS,
                "was_active": unit.active in _RUNS,
                "links": links_of(unit.name, root),
            },
            root=journal,
        )
    if conflicting:
        # A unit that does not stop in time is seen in the state afterwards.
        run(["systemctl", "disable", "--now", *(unit.name for unit in conflicting)], timeout_s=120)
        run(["systemctl", "reset-failed", *(unit.name for unit in conflicting)])
    return read(run, [unit.name for unit in units])


def judge(node: str, before: Sequence[Unit], after: Sequence[Unit]) -> list[Finding]:
    """What was taken over, and what still conflicts."""
    found = []
    for old, new in zip(before, after, strict=True):
        if new.conflicts:
            found.append(
                finding(
                    "UNIT_STILL_ENABLED",
                    node=node,
                    found=f"{new.name} is {new.state}",
                    expected=f"{new.name} neither enabled nor running",
                    unit=new.name,
                )
            )
        elif old.conflicts:
            found.append(
                finding(
                    "UNIT_TAKEN_OVER",
                    node=node,
                    found=f"{old.name} was {old.state} and is {new.state}",
                    expected="nothing that takes the GPU or the port at boot",
                    unit=old.name,
                )
            )
    return found


def left(node: str, units: Sequence[Unit], reason: str) -> list[Finding]:
    """What was not disabled, because that would disturb a serving rank."""
    return [
        finding(
            "UNIT_LEFT_WHILE_SERVING",
            node=node,
            found=f"{unit.name} is {unit.state}; {reason}",
            expected="nothing that takes the GPU or the port at boot",
        )
        for unit in units
    ]
