"""Takes back what this project changed on a node: the undo journal, replayed backwards.

What is to be done is found by comparing the node with the journal, so that a reset may be interrupted anywhere and
begun again. Nothing that somebody changed after us is overwritten. The network comes first and under guard, as any
change of it: whoever is cut off by it gets the fabric back. The journal goes last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import bundle, guard, netplan, peer, rollback, undo
from .findings import Finding, finding
from .guard import Node
from .takeover import links_of

OURS = (bundle.PREFIX, "/etc/spark-cluster", "/var/lib/spark-cluster")
RUNTIME = "/run/spark-cluster"
# What is put back under guard. Orphans wait until that is done: with one of them nothing can be applied.
NETWORK = ("/etc/netplan/", "/etc/sysctl.d/")
TRANSIENT = ("spark-job-", "spark-link-", "spark-fabric-")
LABEL = "spark-cluster.config-sha256"
_TEXT_LIMIT = 64 * 1024


@dataclass(frozen=True)
class Restore:
    """A file as it was before us, ``before`` None where there was none."""

    path: str
    before: Mapping[str, Any] | None
    backup: Path | None


@dataclass(frozen=True)
class Lines:
    """A file out of which our lines go; ``before`` is what it was, to which it may come back exactly."""

    path: str
    after: bytes
    before: Mapping[str, Any] | None
    remove: bool
    folder: str | None


@dataclass(frozen=True)
class Unit:
    """A unit that was enabled or running, with the links that were its being enabled."""

    name: str
    links: tuple[Mapping[str, Any], ...]
    start: bool


@dataclass(frozen=True)
class Copied:
    """A folder of weights, or an image; ``backup`` is where replaced files lie, or the image that had the name."""

    what: str
    new: bool = True
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    backup: str = ""
    identity: str = ""


@dataclass
class Survey:
    """What separates a node from what it was, and why some of that stays."""

    pending: bool = False
    network: list[Restore] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    disable: list[Path] = field(default_factory=list)
    files: list[Restore] = field(default_factory=list)
    remnants: list[Path] = field(default_factory=list)
    weights: list[Copied] = field(default_factory=list)
    images: list[Copied] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    kept: list[Finding] = field(default_factory=list)

    @property
    def network_changes(self) -> bool:
        return bool(self.network or self.devices)

    @property
    def rest_changes(self) -> bool:
        # What is left keeps its record, and that is no change.
        folders = bool(self.folders) and not self.left
        steps = (self.moves, self.lines, self.units, self.disable, self.files, self.remnants, self.weights, self.images)
        return folders or any(bool(step) for step in steps)


# --- looking ---------------------------------------------------------------------------------------------------------


def survey(node: Node, name: str, *, weights: bool = False, images: bool = False) -> Survey:
    """Compare the node with the journal; nothing is changed."""
    entries = undo.read(root=node.journal)
    found = Survey(pending=guard.pending(node))
    _survey_files(node, name, entries, found)
    _survey_network(node, entries, found)
    _survey_moves(node, name, entries, found)
    _survey_lines(node, entries, found)
    _survey_units(node, entries, found)
    _survey_copies(node, name, entries, found, weights=weights, images=images)
    _survey_folders(node, name, entries, found)
    found.remnants += guard.remnants(node)
    found.remnants += (node.root / guard.UNITS).glob(f".{bundle.UNIT_NAME}.*")
    return found


def _of(entries: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry.get("kind") == kind]


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _manifest(node: Node, path: str) -> dict[str, str]:
    try:
        return dict(bundle.read_manifest(node.at(path).read_bytes()))
    except (OSError, ValueError):
        return {}


def _survey_files(node: Node, name: str, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    first: dict[str, Mapping[str, Any]] = {}
    known: dict[str, set[str]] = {}
    for entry in _of(entries, "file_written"):
        path = str(entry["path"])
        first.setdefault(path, entry)
        shas = known.setdefault(path, set())
        shas.add(str(entry["sha256"]))
        if entry.get("before"):
            shas.add(str(entry["before"]["sha256"]))
    for manifest in (bundle.MANIFEST, bundle.PENDING):
        for path, sha256 in _manifest(node, manifest).items():
            first.setdefault(path, {"path": path, "before": None, "backup": None})
            known.setdefault(path, set()).add(sha256)
    # The newest first: what was laid last is taken up first.
    for path, entry in reversed(first.items()):
        if path in (bundle.MANIFEST, bundle.PENDING, bundle.PLAN) and not entry.get("before"):
            continue  # ours whatever they say: they are written anew each time, and go with their folder
        step = _restore(node, name, entry, known[path], found)
        if step is not None:
            (found.network if path.startswith(NETWORK) else found.files).append(step)


def _restore(node: Node, name: str, entry: Mapping[str, Any], known: set[str], found: Survey) -> Restore | None:
    path = str(entry["path"])
    file = node.at(path)
    before = entry.get("before")
    now = _sha256(file)
    if before is None:
        if now is None:
            return None
        if now in known:
            return Restore(path, None, None)
        cure = f"remove it (`sudo rm {path}`)"
    else:
        if now == before["sha256"] and _same(file, before):
            return None
        backup = _backup(node, entry)
        if now in known or now == before["sha256"]:
            if backup is not None and _sha256(backup) == before["sha256"]:
                return Restore(path, before, backup)
            found.left.append(
                finding(
                    "RESET_BACKUP_LOST",
                    node=name,
                    found=f"no copy of {path} with SHA-256 {before['sha256']}",
                    expected="the copy that was made before the change",
                    path=path,
                    backup=entry.get("backup") or "not recorded",
                )
            )
            return None
        cure = f"put back what was there before (`sudo cp -p {entry.get('backup')} {path}`)"
    found.left.append(
        finding(
            "RESET_EDITED",
            node=name,
            found=f"{path} is gone" if now is None else f"{path} has SHA-256 {now}",
            expected="the file as this project wrote it",
            evidence=[f"written by this project: SHA-256 {sha256}" for sha256 in sorted(known)[-3:]],
            path=path,
            cure=cure,
        )
    )
    return None


def _backup(node: Node, entry: Mapping[str, Any]) -> Path | None:
    named = entry.get("backup")
    if not named:
        return None
    return next((path for path in (Path(str(named)), node.at(str(named))) if path.is_file()), None)


def _same(path: Path, before: Mapping[str, Any]) -> bool:
    status = path.stat()
    owner = os.geteuid() != 0 or (status.st_uid, status.st_gid) == (before["uid"], before["gid"])
    return owner and f"{status.st_mode & 0o7777:04o}" == before["mode"] and status.st_mtime_ns == before["mtime_ns"]


def _survey_network(node: Node, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    """The functions and settings that our changes touched, as they were before the first of them."""
    devices: dict[str, dict[str, Any]] = {}
    ours: dict[str, set[str]] = {}
    settings: dict[str, str] = {}
    for entry in _of(entries, "network_changed"):
        for device in entry["devices"]:
            devices.setdefault(str(device["netdev"]), dict(device))
            ours.setdefault(str(device["netdev"]), set()).add(str(device["address"]))
        for setting in entry["settings"]:
            settings.setdefault(str(setting["path"]), str(setting["before"]))
    if any(item.code == "RESET_EDITED" and item.found.startswith(NETWORK) for item in found.left):
        found.network.clear()  # somebody else's network now
        return
    live = netplan.read_devices(node.run) if devices else {}
    for netdev, device in devices.items():
        now = live[netdev].addresses if netdev in live else ()
        added = sorted(ours[netdev] - set(device["addresses_before"]))
        present = [address for address in added if address in now]
        if netdev in live and (present or found.network):
            found.devices.append({**device, "address": (present or added or [device["address"]])[0]})
            found.devices += [{**device, "address": other, "connection_before": None} for other in present[1:]]
    for path, before in settings.items():
        now_set = _text(Path(path))
        if now_set is not None and now_set != before:
            found.settings.append({"path": path, "before": before})


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _survey_moves(node: Node, name: str, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    last: dict[str, Mapping[str, Any]] = {}
    for entry in _of(entries, "file_moved"):
        if str(entry["path"]) not in last or node.at(str(entry["to"])).exists():
            last[str(entry["path"])] = entry
    for path, entry in last.items():
        now, kept = _sha256(node.at(path)), _sha256(node.at(str(entry["to"])))
        wanted = entry["before"]["sha256"]
        if now == wanted:
            continue
        if now is None and kept == wanted:
            found.moves.append((str(entry["to"]), path))
        elif now is None:
            found.left.append(
                finding(
                    "RESET_BACKUP_LOST",
                    node=name,
                    found=f"{entry['to']} is {'gone' if kept is None else 'another file'}",
                    expected=f"the file that was moved from {path}",
                    path=path,
                    backup=entry["to"],
                )
            )
        else:
            found.left.append(
                finding(
                    "RESET_EDITED",
                    node=name,
                    found=f"{path} is there again with SHA-256 {now}",
                    expected=f"nothing in the place of the file that was moved to {entry['to']}",
                    path=path,
                    cure=f"remove it (`sudo rm {path}`)",
                )
            )


def _survey_lines(node: Node, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for entry in _of(entries, "authorized_key_added"):
        by_path.setdefault(str(entry["path"]), []).append(entry)
    for path, added in by_path.items():
        ours = {str(entry["line"]).encode() for entry in added}
        file = node.at(path)
        found.remnants += file.parent.glob(f".{file.name}.????????")
        try:
            now = file.read_bytes()
        except FileNotFoundError:
            continue
        after = b"".join(line for line in now.splitlines(keepends=True) if line.rstrip(b"\r\n") not in ours)
        before = added[0].get("before")
        if before is not None and hashlib.sha256(after[:-1]).hexdigest() == before["sha256"]:
            after = after[:-1]  # the end of the line that we had to add before our own
        back = before if before is not None and hashlib.sha256(after).hexdigest() == before["sha256"] else None
        if after == now and (back is None or _same(file, back)):
            continue
        folder = added[0].get("folder")
        found.lines.append(
            Lines(
                path,
                after,
                back,
                remove=not after and "before" in added[0] and added[0]["before"] is None,
                folder=str(folder) if folder else None,
            )
        )


def _survey_units(node: Node, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    units: dict[str, Mapping[str, Any]] = {}
    for entry in _of(entries, "unit_disabled"):
        units.setdefault(str(entry["unit"]), entry)
    for name, entry in units.items():
        missing = tuple(link for link in entry.get("links") or () if not _is_link(node, link))
        if missing:
            found.units.append(Unit(name, missing, start=bool(entry["was_active"])))
    ours = {str(entry["unit"]) for entry in _of(entries, "unit_enabled")} | {bundle.UNIT_NAME}
    for name in sorted(ours - set(units)):
        found.disable += [node.at(str(link["path"])) for link in links_of(name, node.root)]


def _is_link(node: Node, link: Mapping[str, Any]) -> bool:
    path = node.at(str(link["path"]))
    return path.is_symlink() and os.readlink(path) == link["target"] and path.lstat().st_mtime_ns == link["mtime_ns"]


def _survey_copies(
    node: Node, name: str, entries: Sequence[Mapping[str, Any]], found: Survey, *, weights: bool, images: bool
) -> None:
    copied: dict[str, Copied] = {}
    for entry in _of(entries, "weights_copied"):
        path = str(entry["path"])
        known = copied.get(path, Copied(path, new=False))
        copied[path] = Copied(
            path,
            new=known.new or bool(entry["new"]),
            added=(*known.added, *map(str, entry.get("added") or ())),
            replaced=(*known.replaced, *map(str, entry.get("replaced") or ())),
            backup=known.backup or str(entry.get("backup") or ""),
        )
    there = [one for one in copied.values() if node.at(one.what).is_dir() or _incoming(node, one.what).is_dir()]
    loaded: dict[str, Copied] = {}
    for entry in _of(entries, "image_loaded"):
        reference = str(entry["reference"])
        known = loaded.get(reference, Copied(reference, backup=str(entry.get("replaced") or "")))
        loaded[reference] = replace(known, identity=str(entry.get("id") or "") or known.identity)
    present = [one for one in loaded.values() if _is_ours(node, one)]
    if weights:
        found.weights = there
    else:
        found.kept += [_kept(name, one.what, "reset_weights", f"sudo rm -r {one.what}") for one in there]
    if images:
        found.images = present
    else:
        found.kept += [_kept(name, one.what, "reset_images", f"docker image rm {one.what}") for one in present]


def _incoming(node: Node, path: str) -> Path:
    return node.at(peer.incoming_dir(path))


def _is_ours(node: Node, one: Copied) -> bool:
    """Whether the name still means the image that this project loaded; its id is unknown after an interrupted load."""
    now = _image(node, one.what)
    return now is not None and now != one.backup and one.identity in ("", now)


def _image(node: Node, reference: str) -> str | None:
    shown = node.run(["docker", "image", "inspect", "-f", "{{.Id}}", reference])
    return shown.stdout.strip() if shown.ok else None


def _kept(name: str, what: str, variable: str, command: str) -> Finding:
    return finding(
        "RESET_KEPT",
        node=name,
        found=what,
        expected=f"to stay unless {variable} is true",
        variable=variable,
        command=command,
    )


def _survey_folders(node: Node, name: str, entries: Sequence[Mapping[str, Any]], found: Survey) -> None:
    """Our own folders, and what in them is not ours."""
    known = {str(entry["path"]) for entry in _of(entries, "file_written")} | {bundle.PLAN, bundle.PENDING}
    known |= {bundle.MANIFEST, *_manifest(node, bundle.MANIFEST), *_manifest(node, bundle.PENDING)}
    for folder in (*OURS, RUNTIME):
        if not node.at(folder).exists():
            continue
        found.folders.append(folder)
        if folder not in OURS[:2]:
            continue
        for path in sorted(node.at(folder).rglob("*")):
            shown = node.shown(path)
            if path.is_dir() and not path.is_symlink():
                continue
            if shown in known or _unfinished(path, known, node) or "__pycache__" in path.parts:
                continue
            found.left.append(
                finding(
                    "RESET_FOREIGN",
                    node=name,
                    found=shown,
                    expected="files that this project put there",
                    path=shown,
                )
            )


def _unfinished(path: Path, known: set[str], node: Node) -> bool:
    """A temporary file of ours beside its destination, or in a folder in which a key was about to be made."""
    beside = [Path(one).name for one in known if node.at(one).parent == path.parent]
    return any(path.name.startswith(f".{name}.") for name in beside) or path.parent.name.startswith(".new-")


# --- telling ---------------------------------------------------------------------------------------------------------


def network_diffs(node: Node, found: Survey) -> list[dict[str, str]]:
    shown = [_file_diff(node, step) for step in found.network]
    if found.devices:
        live = netplan.read_devices(node.run)
        before = "".join(f"{one['netdev']} {', '.join(live[one['netdev']].addresses)}\n" for one in found.devices)
        after = "".join(f"{one['netdev']} {', '.join(one['addresses_before'])}\n" for one in found.devices)
        shown.append({"before_header": "addresses", "after_header": "addresses", "before": before, "after": after})
    if found.settings:
        before = "".join(f"{one['path']} = {_text(Path(one['path']))}\n" for one in found.settings)
        after = "".join(f"{one['path']} = {one['before']}\n" for one in found.settings)
        shown.append(
            {"before_header": "kernel settings", "after_header": "kernel settings", "before": before, "after": after}
        )
    return shown


def rest_diffs(node: Node, found: Survey) -> list[dict[str, str]]:
    shown = [
        {"before_header": source, "after_header": path, "before": "", "after": _printable(node.at(source).read_bytes())}
        for source, path in found.moves
    ]
    for lines in found.lines:
        before = _printable(node.at(lines.path).read_bytes())
        after = "" if lines.remove else _printable(lines.after)
        shown.append({"before_header": lines.path, "after_header": lines.path, "before": before, "after": after})
    # What the project ships is the same everywhere: that it goes is news, its text is not.
    shipped = [step for step in found.files if step.before is None and step.path.startswith(f"{bundle.PREFIX}/")]
    shown += [_file_diff(node, step) for step in found.files if step not in shipped]
    for unit in found.units:
        after = "".join(f"{link['path']} -> {link['target']}\n" for link in unit.links)
        shown.append({"before_header": unit.name, "after_header": unit.name, "before": "", "after": after})
    gone = [step.path for step in shipped]
    gone += [node.shown(path) for path in (*found.disable, *found.remnants)]
    gone += [one.what for one in (*found.weights, *found.images)]
    gone += [] if found.left else found.folders
    if gone:
        text = "".join(f"{one}\n" for one in gone)
        shown.append({"before_header": "removed", "after_header": "removed", "before": text, "after": ""})
    return shown


def _file_diff(node: Node, step: Restore) -> dict[str, str]:
    return {
        "before_header": step.path,
        "after_header": step.path if step.before else "/dev/null",
        "before": _printable(node.at(step.path).read_bytes()),
        "after": _printable(step.backup.read_bytes()) if step.backup else "",
    }


def _printable(content: bytes) -> str:
    """Text as text, everything else by its hash. A private key is no text for others' eyes."""
    if content and not content.strip(b"\0"):
        return f"{len(content)} NUL bytes\n"
    if len(content) <= _TEXT_LIMIT and b"PRIVATE KEY" not in content:
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode()
    return f"SHA-256 {hashlib.sha256(content).hexdigest()}\n"


# --- the network, under guard ----------------------------------------------------------------------------------------


def network_back(node: Node, name: str, found: Survey, seconds: int) -> tuple[bool, list[Finding]]:
    """Put the network back with a rollback to the fabric; whether one is armed, and what went wrong."""
    gone = [node.at(step.path) for step in found.network]
    texts = {step.path: step.backup.read_bytes() for step in found.network if step.backup}
    trees = {path: text for path, text in texts.items() if path.startswith(NETWORK[0])}
    if found.network and (invalid := netplan.check_tree(node, name, without=gone, texts=trees)):
        return False, [invalid]
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    backup = node.state / "backup/reset" / stamp
    live = netplan.read_devices(node.run)
    ours = next((node.at(step.path) for step in found.network if step.path.startswith(NETWORK[0])), None)
    follow = netplan.follow_files(node, netplan.renderer_of((_text(ours) if ours else None) or ""))
    state = guard.state_of_change(
        node,
        stamp=stamp,
        files=[
            {"path": str(node.at(step.path)), "before": guard.keep(node.at(step.path), backup)}
            for step in found.network
        ],
        moved=[],
        devices=[
            {
                "netdev": one["netdev"],
                "address": one["address"],
                "addresses_before": list(live[one["netdev"]].addresses),
                "mtu_before": live[one["netdev"]].mtu,
                "up_before": live[one["netdev"]].up,
            }
            for one in found.devices
        ],
        settings=[Path(one["path"]) for one in found.settings],
        follow=follow,
    )
    refused = guard.arm(node, name, state, seconds)
    if refused is not None:
        return False, [refused]
    wanted = {
        "files": [
            {"path": str(node.at(step.path)), "before": {**step.before, "backup": str(step.backup)}}
            if step.before
            else {"path": str(node.at(step.path)), "before": None}
            for step in found.network
        ],
        "reapply": follow,
        "devices": found.devices,
        "settings": found.settings,
    }
    rollback.restore_files(wanted)
    rollback.reapply(wanted)
    rollback.restore_settings(wanted)
    return True, []


# --- everything else -------------------------------------------------------------------------------------------------


def rest_back(node: Node, found: Survey) -> None:
    """Put back everything that is not the network, and remove what is ours; the journal goes last."""
    _end_transients(node)
    for source, path in found.moves:
        rollback.move_file(node.at(source), node.at(path))
    for lines in found.lines:
        _take_out(node, lines)
    for step in found.files:
        _put_back(node, step)
    for link in found.disable:
        link.unlink(missing_ok=True)
    for unit in found.units:
        _link(node, unit)
    guard.sweep(path for path in found.remnants if path.exists() or path.is_symlink())
    for one in found.weights:
        _remove_weights(node, one)
    for one in found.images:
        # A name that meant another image before means it again, where it still exists.
        if not (one.backup and node.run(["docker", "tag", one.backup, one.what]).ok):
            node.run(["docker", "image", "rm", one.what], timeout_s=120)
    if found.units or found.disable or any(step.path.startswith(f"/{guard.UNITS}/") for step in found.files):
        node.run(["systemctl", "daemon-reload"], timeout_s=60)
        node.run(["systemctl", "reset-failed", bundle.UNIT_NAME])
    for unit in found.units:
        if unit.start:
            node.run(["systemctl", "start", "--no-block", unit.name])
    _remove_ours(node, whole=not found.left)


def _end_transients(node: Node) -> None:
    listed = node.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "spark-*"])
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip().startswith(TRANSIENT)]
    if names:
        node.run(["systemctl", "stop", *names], timeout_s=60)
        node.run(["systemctl", "reset-failed", *names])
    if not node.at(bundle.LAUNCH).exists():
        return
    boxes = node.run(["docker", "ps", "-aq", "--filter", f"label={LABEL}"])
    if boxes.ok and boxes.stdout.split():
        node.run(["docker", "rm", "-f", *boxes.stdout.split()], timeout_s=60)


def _take_out(node: Node, lines: Lines) -> None:
    path = node.at(lines.path)
    if lines.remove:
        path.unlink()
        rollback.sync_directory(path.parent)
        if lines.folder:
            with contextlib.suppress(OSError):
                node.at(lines.folder).rmdir()
        return
    status = path.stat()
    before = lines.before
    rollback.write_file(
        path,
        lines.after,
        mode=int(before["mode"], 8) if before else status.st_mode & 0o7777,
        owner=(before["uid"], before["gid"]) if before else (status.st_uid, status.st_gid),
        mtime_ns=before["mtime_ns"] if before else None,
    )


def _put_back(node: Node, step: Restore) -> None:
    path = node.at(step.path)
    if step.before is None:
        path.unlink(missing_ok=True)
        rollback.sync_directory(path.parent)
    elif step.backup is not None:
        rollback.write_file(
            path,
            step.backup.read_bytes(),
            mode=int(step.before["mode"], 8),
            owner=(step.before["uid"], step.before["gid"]),
            mtime_ns=step.before["mtime_ns"],
        )


def _link(node: Node, unit: Unit) -> None:
    for link in unit.links:
        path = node.at(str(link["path"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(str(link["target"]))
        os.utime(path, ns=(link["mtime_ns"], link["mtime_ns"]), follow_symlinks=False)
        rollback.sync_directory(path.parent)


def _remove_weights(node: Node, one: Copied) -> None:
    folder = node.at(one.what)
    incoming = _incoming(node, one.what)
    if incoming.is_dir() and not incoming.is_symlink():
        shutil.rmtree(incoming)
    if not folder.is_dir() or folder.is_symlink():
        return
    if one.new:
        shutil.rmtree(folder)
        return
    for name in one.added:
        file = folder / name
        here = file.parent.resolve()  # what a link points to is not what was added
        if folder.resolve() in (here, *here.parents):
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                file.parent.rmdir()
    for name in one.replaced:
        kept = next((path for path in (Path(one.backup), node.at(one.backup)) if (path / name).is_file()), None)
        if kept is not None:
            shutil.copy2(kept / name, folder / name, follow_symlinks=False)


def _remove_ours(node: Node, *, whole: bool) -> None:
    lib, etc, state = (node.at(folder) for folder in OURS)
    runtime = node.at(RUNTIME)
    if runtime.is_dir():
        shutil.rmtree(runtime, ignore_errors=True)
    for name in ("jit", "weights", "rollback"):
        if (state / name).is_dir():
            shutil.rmtree(state / name)
    for path in (node.at(bundle.PLAN), node.at(bundle.PENDING)):
        path.unlink(missing_ok=True)
    if not whole:
        return
    # The manifest says what in its folder is ours, and the journal what everywhere else is: they go last.
    for folder, last in ((lib, node.at(bundle.MANIFEST)), (etc, None), (state, state / "undo" / undo.JOURNAL)):
        if folder.is_dir():
            _remove_folder(folder, last)


def _remove_folder(folder: Path, last: Path | None) -> None:
    spared = () if last is None else (last, *last.parents)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path in spared:
            continue
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    if last is not None:
        last.unlink(missing_ok=True)
    shutil.rmtree(folder)
    rollback.sync_directory(folder.parent)


def done(name: str, found: Survey, *, changed: bool) -> Finding:
    """What was put back, in numbers; where something is left the finding of that says so."""
    counts = {
        "files of the network": len(found.network),
        "files": len(found.files),
        "orphans": len(found.moves),
        "files with our lines": len(found.lines),
        "units": len(found.units),
        "folders": len(found.folders),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return finding(
        "RESET_DONE",
        node=name,
        found=f"put back or removed: {said or 'what was pending'}" if changed else "nothing of this project was left",
        expected="the node as it was before this project",
        evidence=[json.dumps(counts)] if changed else (),
    )
