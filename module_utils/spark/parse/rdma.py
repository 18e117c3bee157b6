"""RDMA devices and their GID tables, from sysfs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .whole import whole

if TYPE_CHECKING:
    from ..facts import GidFacts, RdmaDeviceFacts


_ZERO = b"0000:0000:0000:0000:0000:0000:0000:0000"


def read_gids(port: Path) -> list[GidFacts]:
    """The non-empty slots of one port's GID table; ``port`` is ``/sys/class/infiniband/DEV/ports/P``.

    A table may have 1024 slots, almost all of them empty: each is read once, and type and netdev are asked for the rest
    only (an empty slot answers EINVAL). A slot that empties between the two reads is left out.
    """
    found: list[GidFacts] = []
    try:
        slots = sorted(slot for name in os.listdir(port / "gids") if (slot := whole(name)) is not None)
        table = os.open(port / "gids", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return found
    try:
        for index in slots:
            try:
                slot = os.open(str(index), os.O_RDONLY, dir_fd=table)
            except OSError:
                continue
            try:
                gid = os.read(slot, 64).strip()
            except OSError:
                continue
            finally:
                os.close(slot)
            if gid in (_ZERO, b""):
                continue
            kind = _text(port / "gid_attrs" / "types" / str(index))
            if kind is None:
                continue
            netdev = _text(port / "gid_attrs" / "ndevs" / str(index)) or ""
            found.append({"index": index, "gid": gid.decode("ascii", "replace"), "type": kind, "netdev": netdev})
    finally:
        os.close(table)
    return found


def read_devices(root: Path = Path("/")) -> list[RdmaDeviceFacts]:
    """Every port of every RDMA device, in the order of their names."""
    devices: list[RdmaDeviceFacts] = []
    base = root / "sys/class/infiniband"
    for name in sorted(_names(base)):
        for port in sorted(_names(base / name / "ports"), key=lambda text: (len(text), text)):
            gids = read_gids(base / name / "ports" / port)
            devices.append(
                {
                    "name": name,
                    "port": int(port),
                    "netdev": _netdev(base / name, int(port), gids),
                    # "4: ACTIVE"
                    "state": (_text(base / name / "ports" / port / "state") or "").rpartition(": ")[2],
                    "gids": gids,
                }
            )
    return devices


def _netdev(device: Path, port: int, gids: list[GidFacts]) -> str | None:
    """The interface behind a port: hardware names it by its bus device, soft-RoCE by ``parent``."""
    siblings = sorted(_names(device / "device/net"))
    for name in siblings:
        if len(siblings) == 1 or _text(device / "device/net" / name / "dev_port") == str(port - 1):
            return name
    parent = _text(device / "parent")
    if parent:
        return parent
    return next((gid["netdev"] for gid in gids if gid["netdev"]), None)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
