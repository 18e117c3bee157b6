"""The fabric's netplan file and kernel settings as a transaction on one node.

Look, decide, check the whole resulting tree in a scratch folder, arm a rollback, change, apply. Looking and deciding
are the same in check mode; nothing is written before everything that can be known is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import guard, rollback, undo
from .findings import Finding, fatal, finding
from .guard import Node
from .parse.netplan import classify, nm_uuid
from .parse.netplan import parse as parse_netplan
from .parse.nmcli import parse_uuids, split_terse
from .parse.whole import document, records
from .runner import CommandFailed, Completed, Run

FILE_MODE = 0o600
# As of every file in sysctl.d: it holds no secret, and tools other than root's read it.
SETTINGS_MODE = 0o644
GENERATORS = ("usr/libexec/netplan/generate", "usr/lib/netplan/generate", "lib/netplan/generate")
# Everything that netplan merges, lowest precedence first.
TREES = ("usr/lib/netplan", "lib/netplan", "etc/netplan", "run/netplan")


@dataclass(frozen=True)
class Rail:
    rail: int
    netdev: str
    address: str
    prefix: int
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def cidr(self) -> str:
        return f"{self.address}/{self.prefix}"


def rails_of(entries: Sequence[Mapping[str, Any]]) -> list[Rail]:
    """The rails of a plan's node entry."""
    return [
        Rail(
            int(entry["rail"]),
            str(entry["netdev"]),
            str(entry["address"]),
            int(entry["prefix"]),
            dict(entry.get("peer_addresses") or {}),
        )
        for entry in entries
    ]


@dataclass(frozen=True)
class Device:
    """An interface as it is now; ``carrier`` is None while it is switched off."""

    name: str
    up: bool
    mtu: int
    carrier: bool | None
    addresses: tuple[str, ...]
    mac: str = ""


@dataclass(frozen=True)
class Settings:
    """Kernel settings of the fabric: the file that sets them at boot, and their values."""

    path: str
    text: str
    values: Mapping[str, str]


def settings_of(entry: Mapping[str, Any] | None) -> Settings | None:
    """The kernel settings of a plan's node entry, None where the plan asks for none."""
    if not entry:
        return None
    values = {str(key): str(value) for key, value in dict(entry.get("values") or {}).items()}
    return Settings(str(entry["path"]), str(entry["text"]), values)


@dataclass(frozen=True)
class Wanted:
    """What one call asks for."""

    node: str
    path: str
    text: str
    rails: Sequence[Rail]
    mtu: int
    orphans: Sequence[str]
    rollback_s: int
    settings: Settings | None = None

    @property
    def renderer(self) -> str:
        return renderer_of(self.text)


def renderer_of(text: str) -> str:
    """Who carries a netplan file out: what it says itself, since nodes of one cluster may differ."""
    document = parse_netplan(text)
    named = [claim.renderer for claim in document.claims if claim.renderer]
    return named[0] if named else document.renderer or "networkd"


@dataclass
class Decision:
    """What has to be done on this node, and what was found out on the way."""

    quarantine: list[Path] = field(default_factory=list)
    write: bool = False
    apply: bool = False
    adopted: bool = False
    pending: bool = False
    before: str | None = None
    settings_before: str | None = None
    settings_write: bool = False
    # Those whose value is another one now, with that value.
    settings_set: dict[str, str] = field(default_factory=dict)
    remnants: list[Path] = field(default_factory=list)
    devices: dict[str, Device] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.quarantine or self.write or self.settings_write or self.remnants) or self.touches

    @property
    def touches(self) -> bool:
        """Whether the network itself is touched, and not only files."""
        return self.apply or bool(self.settings_set)


# --- looking ---------------------------------------------------------------------------------------------------------


def read_devices(run: Run) -> dict[str, Device]:
    """Every interface, from ``ip -j address``. Raises CommandFailed where ip does not answer."""
    done = run(["ip", "-j", "address", "show"], check=True)
    try:
        return _devices(records(done.stdout))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as wrong:
        raise CommandFailed(replace(done, stderr=f"its output cannot be read: {wrong}")) from wrong


def _devices(links: Iterable[Mapping[str, Any]]) -> dict[str, Device]:
    found = {}
    for link in links:
        if "ifname" not in link:
            continue
        flags = link.get("flags", ())
        up = "UP" in flags
        found[link["ifname"]] = Device(
            name=link["ifname"],
            up=up,
            mtu=int(link.get("mtu", 0)),
            carrier=("LOWER_UP" in flags and "NO-CARRIER" not in flags) if up else None,
            addresses=tuple(
                f"{info['local']}/{info['prefixlen']}"
                for info in link.get("addr_info", ())
                if info.get("family") == "inet" and "local" in info
            ),
            mac=str(link.get("address", "")),
        )
    return found


def live_uuids(run: Run) -> set[str] | None:
    """The connections that NetworkManager knows; None where it does not answer, which is not the same as none."""
    answer = run(["nmcli", "-t", "-f", "UUID", "connection", "show"])
    if not answer.ok:
        return None
    return set(parse_uuids(answer.stdout))


def foreign_claims(node: Node, ours: str, devices: Mapping[str, Device]) -> dict[str, set[str]]:
    """The readable netplan files that are not ours, with the interfaces and definitions that each of them names."""
    macs = {device.name: device.mac for device in devices.values()}
    found = {}
    for tree in TREES:
        for path in sorted((node.root / tree).glob("*.yaml")):
            shown = node.shown(path)
            if shown == ours:
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                claims = parse_netplan(path.read_text(encoding="utf-8")).claims
                found[shown] = {name for claim in claims for name in (claim.name, *claim.netdevs(macs))}
    return found


def lasting_source(node: Node, netdev: str, foreign: Mapping[str, set[str]]) -> str | None:
    """What will configure this interface at the next boot, None where only somebody's hand did.

    Files under /run are made from netplan's at boot: they count only where the netplan file is still there.
    """
    for path, names in foreign.items():
        if netdev in names:
            return path
    candidates = []
    profiles = node.run(["nmcli", "-t", "-f", "DEVICE,FILENAME", "connection", "show", "--active"])
    if profiles.ok:
        rows = (split_terse(line) for line in profiles.stdout.splitlines())
        candidates += [row[1] for row in rows if len(row) == 2 and row[0] == netdev]
    status = node.run(["networkctl", "--json=short", "status", netdev])
    if status.ok:
        with contextlib.suppress(ValueError, AttributeError):
            candidates.append(str(document(status.stdout).get("NetworkFile") or ""))
    for candidate in candidates:
        generated = re.fullmatch(r"/run/.*/(?:10-)?netplan-(.+)\.(?:network|nmconnection)", candidate)
        if generated:
            claimed = [path for path, names in foreign.items() if generated[1] in names]
            if claimed:
                return claimed[0]
        elif candidate.startswith("/etc/"):
            return candidate
    return None


def find_generator(node: Node) -> list[str] | None:
    """The command that reads a netplan tree under another root, without ``--root-dir``."""
    for candidate in GENERATORS:
        if os.access(node.root / candidate, os.X_OK):
            return [str(node.root / candidate)]
    return ["netplan", "generate"] if shutil.which("netplan") else None


# --- deciding --------------------------------------------------------------------------------------------------------


def decide(node: Node, wanted: Wanted) -> Decision:
    """Find out what has to change. A fatal finding in the result means that nothing may."""
    decision = Decision(devices=read_devices(node.run))
    decision.pending = guard.pending(node)
    decision.remnants = guard.remnants(node)
    _judge_orphans(node, wanted, decision)
    ours = node.at(wanted.path)
    decision.before = _read(ours)
    for rail in wanted.rails:
        device = decision.devices.get(rail.netdev)
        if device is None:
            decision.findings.append(
                finding(
                    "FABRIC_FUNCTION_MISSING",
                    node=wanted.node,
                    found=f"no interface {rail.netdev}",
                    expected=f"{rail.netdev} for rail {rail.rail}",
                    evidence=(f"interfaces: {', '.join(sorted(decision.devices))}",),
                )
            )
    if fatal(decision.findings):
        return decision
    right = all(is_right(decision.devices[rail.netdev], rail, wanted.mtu) for rail in wanted.rails)
    if decision.before == wanted.text:
        decision.write = (ours.stat().st_mode & 0o7777) != FILE_MODE
        decision.apply = not right
    elif decision.before is not None:
        decision.write = decision.apply = True
    else:
        _judge_foreign(node, wanted, decision, right)
    if wanted.settings is not None:
        _judge_settings(node, wanted.settings, decision)
    return decision


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return None


def _judge_settings(node: Node, settings: Settings, decision: Decision) -> None:
    file = node.at(settings.path)
    decision.settings_before = _read(file)
    decision.settings_write = (
        decision.settings_before != settings.text or (file.stat().st_mode & 0o7777) != SETTINGS_MODE
    )
    for key, value in settings.values.items():
        now = _read(node.setting(key))
        if now is None or now.strip() != value:
            decision.settings_set[key] = "" if now is None else now.strip()


def is_right(device: Device, rail: Rail, mtu: int) -> bool:
    return rail.cidr in device.addresses and device.mtu == mtu


def _judge_foreign(node: Node, wanted: Wanted, decision: Decision, right: bool) -> None:
    """Without a file of ours: adopt what is already right and lasting, write where nobody else does, refuse the
    rest."""
    foreign = foreign_claims(node, wanted.path, decision.devices)
    sources = {rail.netdev: lasting_source(node, rail.netdev, foreign) for rail in wanted.rails} if right else {}
    if right and all(sources.values()):
        decision.adopted = True
        decision.findings.append(
            finding(
                "FABRIC_ADOPTED",
                node=wanted.node,
                found=", ".join(f"{rail.cidr} on {rail.netdev} by {sources[rail.netdev]}" for rail in wanted.rails),
                expected="the planned addresses on the planned functions",
            )
        )
        return
    for rail in wanted.rails:
        for path, names in foreign.items():
            if rail.netdev in names:
                carried = ", ".join(decision.devices[rail.netdev].addresses) or "no address"
                decision.findings.append(
                    finding(
                        "NETPLAN_FOREIGN_CLAIM",
                        node=wanted.node,
                        found=f"{path} configures {rail.netdev}, and the rails together are not as planned",
                        expected="one file for all rails: ours, or another one that does what the plan says",
                        evidence=(f"{rail.netdev} has {carried}, planned is {rail.cidr} with MTU {wanted.mtu}",),
                        netdev=rail.netdev,
                        path=path,
                    )
                )
    # Addresses that are right but were set by hand only need the file; nothing is disturbed for it.
    decision.write = True
    decision.apply = not right


def _judge_orphans(node: Node, wanted: Wanted, decision: Decision) -> None:
    present = [path for path in wanted.orphans if node.at(path).exists()]
    if not present:
        return
    known = live_uuids(node.run)
    if known is None:
        decision.findings.append(
            finding(
                "NETPLAN_NM_SILENT",
                node=wanted.node,
                found=f"{', '.join(present)} to be moved, and no answer from NetworkManager",
                expected="an answer to `nmcli -t -f UUID connection show`",
            )
        )
        return
    for shown in present:
        path = node.at(shown)
        plain = path.is_file() and not path.is_symlink() and path.parent == node.root / "etc/netplan"
        data = path.read_bytes() if plain else b""
        kind = classify(shown, data, known).kind
        if kind == "live_nul":
            decision.findings.append(
                finding(
                    "NETPLAN_NUL_LIVE",
                    node=wanted.node,
                    found=f"{shown}: {len(data)} bytes, all NUL, of a connection that NetworkManager knows",
                    expected="a readable file",
                    uuid=nm_uuid(shown),
                )
            )
        elif kind != "orphan_nul":
            decision.findings.append(
                finding(
                    "NETPLAN_ORPHAN_CHANGED",
                    node=wanted.node,
                    found=f"{shown}: {len(data)} bytes, not all of them NUL" if plain else f"{shown} is no plain file",
                    expected="a file 90-NM-<uuid>.yaml in /etc/netplan of nothing but NUL bytes",
                    evidence=(f"sha256 {hashlib.sha256(data).hexdigest()}",),
                )
            )
        else:
            decision.quarantine.append(path)


def validate(node: Node, wanted: Wanted, decision: Decision) -> Finding | None:
    """Give the whole tree, as it would be afterwards, to netplan's generator in a scratch folder."""
    if not (decision.quarantine or decision.write or decision.apply):
        return None
    texts = {} if decision.adopted else {wanted.path: wanted.text.encode()}
    return check_tree(node, wanted.node, without=decision.quarantine, texts=texts)


def check_tree(node: Node, name: str, *, without: Sequence[Path], texts: Mapping[str, bytes]) -> Finding | None:
    """What netplan's generator says against the tree with some files gone and others saying what they will."""
    generator = find_generator(node)
    if generator is None:
        return finding(
            "NETPLAN_TOOL_MISSING",
            node=name,
            found=f"none of {', '.join('/' + path for path in GENERATORS)}",
            expected="netplan.io with its generator",
        )
    with _scratch(node, without, texts) as scratch:
        answer = node.run([*generator, "--root-dir", str(scratch)], timeout_s=60)
        if answer.ok:
            return None
        said = (answer.stderr or answer.stdout).replace(str(scratch), "").strip()
    return finding(
        "NETPLAN_INVALID",
        node=name,
        found=f"the generator exited {answer.rc}: {_first_line(said)}",
        expected="a tree that netplan accepts",
        evidence=tuple(line for line in said.splitlines() if line.strip())[:8],
    )


@contextlib.contextmanager
def _scratch(node: Node, without: Sequence[Path], texts: Mapping[str, bytes]) -> Iterator[Path]:
    """A copy of every netplan tree with the change made; root-only, because profiles hold Wi-Fi passwords."""
    with tempfile.TemporaryDirectory(prefix="spark-netplan-") as name:
        scratch = Path(name)
        for tree in TREES:
            source = node.root / tree
            if not source.is_dir() or (tree == "lib/netplan" and (node.root / "lib").is_symlink()):
                continue
            target = scratch / tree
            target.mkdir(parents=True, exist_ok=True)
            for path in source.glob("*.yaml"):
                if path in without or not path.is_file():
                    continue
                (target / path.name).write_bytes(path.read_bytes())
                (target / path.name).chmod(FILE_MODE)
        for shown, text in texts.items():
            ours = scratch / shown.lstrip("/")
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.write_bytes(text)
            ours.chmod(FILE_MODE)
        yield scratch


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it printed nothing")


def diffs(node: Node, wanted: Wanted, decision: Decision) -> list[dict[str, str]]:
    """The exact files, before and after."""
    shown = []
    for path in decision.quarantine:
        size = path.stat().st_size
        shown.append(
            {
                "before_header": node.shown(path),
                "after_header": f"{node.shown(node.state / 'backup/netplan')}/<stamp>/{path.name}",
                "before": f"{size} NUL bytes\n",
                "after": "",
            }
        )
    if decision.write and decision.before != wanted.text:
        shown.append(
            {
                "before_header": wanted.path if decision.before is not None else "/dev/null",
                "after_header": wanted.path,
                "before": decision.before or "",
                "after": wanted.text,
            }
        )
    if wanted.settings is not None and decision.settings_before != wanted.settings.text:
        shown.append(
            {
                "before_header": wanted.settings.path if decision.settings_before is not None else "/dev/null",
                "after_header": wanted.settings.path,
                "before": decision.settings_before or "",
                "after": wanted.settings.text,
            }
        )
    if wanted.settings is not None and decision.settings_set:
        now = decision.settings_set
        shown.append(
            {
                "before_header": "kernel settings",
                "after_header": "kernel settings",
                "before": "".join(f"{key} = {now[key]}\n" for key in sorted(now)),
                "after": "".join(f"{key} = {wanted.settings.values[key]}\n" for key in sorted(now)),
            }
        )
    if decision.apply:
        before = [f"{rail.netdev} {_carries(decision.devices[rail.netdev])}" for rail in wanted.rails]
        after = [f"{rail.netdev} {rail.cidr} mtu {wanted.mtu}" for rail in wanted.rails]
        shown.append(
            {
                "before_header": "addresses",
                "after_header": "addresses",
                "before": "\n".join(before) + "\n",
                "after": "\n".join(after) + "\n",
            }
        )
    return shown


def _carries(device: Device) -> str:
    return f"{', '.join(device.addresses) or 'no address'} mtu {device.mtu}"


# --- changing --------------------------------------------------------------------------------------------------------


def settle(node: Node, decision: Decision) -> bool:
    """End a change that an interrupted run left pending and that is not what is wanted now; then decide anew."""
    if not decision.pending or not decision.changed:
        return False
    guard.take_back(node, "a later run wants something else")
    return True


def carry_out(node: Node, wanted: Wanted, decision: Decision) -> tuple[dict[str, Any], list[Finding]]:
    """Do what was decided; returns what was done and what went wrong. What cannot be carried out goes back at once."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    done: dict[str, Any] = {"applied": False, "armed": False, "quarantined": [], "stamp": stamp}
    if not decision.changed:
        if not decision.pending:
            return done, []
        # The same change from an interrupted run: it still has to be confirmed, with the full time to do so.
        refused = guard.rearm(node, wanted.node, wanted.rollback_s)
        done["armed"] = refused is None
        return done, [refused] if refused else []
    guard.sweep(decision.remnants)
    backup = node.state / "backup/netplan" / stamp
    moved = [(path, backup / path.name) for path in decision.quarantine]
    if moved:
        backup.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = _files(node, wanted, decision, backup)
    state = _pending_state(node, wanted, decision, stamp, moved, files)
    if decision.touches:
        refused = guard.arm(node, wanted.node, state, wanted.rollback_s)
        if refused is not None:
            return done, [refused]
        done["armed"] = True
    try:
        failed = _change(node, wanted, decision, state, files, done["quarantined"])
    except OSError as error:
        failed = Completed(("write",), 1, "", str(error))
    done["applied"] = decision.touches
    if failed is None:
        return done, []
    if done["armed"]:
        guard.take_back(node, "the change could not be carried out")
        done["armed"] = False
    return done, [
        finding(
            "NETPLAN_APPLY_FAILED",
            node=wanted.node,
            found=f"`{' '.join(failed.argv)}` exited {failed.rc}",
            expected="the configuration applied",
            evidence=tuple(line for line in (failed.stderr or failed.stdout).splitlines() if line.strip())[-8:],
        )
    ]


@dataclass(frozen=True)
class File:
    """A file that is to be written, and what it was."""

    path: Path
    data: bytes
    mode: int
    before: dict[str, Any] | None


def _files(node: Node, wanted: Wanted, decision: Decision, backup: Path) -> list[File]:
    """What has to be written; the copies of what is there are made now."""
    files = []
    if decision.write:
        path = node.at(wanted.path)
        files.append(File(path, wanted.text.encode(), FILE_MODE, guard.keep(path, backup)))
    if wanted.settings is not None and decision.settings_write:
        path = node.at(wanted.settings.path)
        files.append(File(path, wanted.settings.text.encode(), SETTINGS_MODE, guard.keep(path, backup)))
    return files


def _change(
    node: Node,
    wanted: Wanted,
    decision: Decision,
    state: Mapping[str, Any],
    files: Sequence[File],
    quarantined: list[dict[str, Any]],
) -> Completed | None:
    """Carry out the change, each step recorded first; returns the command that failed."""
    for moved in state["moved"]:
        quarantined.append(_quarantine(node, Path(moved["path"]), Path(moved["to"])))
    for file in files:
        undo.record(
            {
                "kind": "file_written",
                "path": node.shown(file.path),
                "sha256": hashlib.sha256(file.data).hexdigest(),
                "before": file.before,
                "backup": file.before["backup"] if file.before else None,
            },
            root=node.journal,
        )
        file.path.parent.mkdir(parents=True, exist_ok=True)
        rollback.write_file(file.path, file.data, mode=file.mode)
    if not decision.touches:
        return None
    undo.record(
        {"kind": "network_changed", "devices": state["devices"], "settings": state["settings"]}, root=node.journal
    )
    if wanted.settings is not None:
        for key in decision.settings_set:
            node.setting(key).write_text(f"{wanted.settings.values[key]}\n", encoding="ascii")
    return apply(node, wanted) if decision.apply else None


def _quarantine(node: Node, path: Path, target: Path) -> dict[str, Any]:
    entry = {"kind": "file_moved", "path": node.shown(path), "to": node.shown(target), "before": guard.snapshot(path)}
    undo.record(entry, root=node.journal)
    rollback.move_file(path, target)
    return {"path": entry["path"], "to": entry["to"], **guard.snapshot(target)}


def _pending_state(
    node: Node,
    wanted: Wanted,
    decision: Decision,
    stamp: str,
    moved: Sequence[tuple[Path, Path]],
    files: Sequence[File],
) -> dict[str, Any]:
    devices = [
        {
            "netdev": rail.netdev,
            "address": rail.cidr,
            "addresses_before": list(decision.devices[rail.netdev].addresses),
            "mtu_before": decision.devices[rail.netdev].mtu,
            "up_before": decision.devices[rail.netdev].up,
        }
        for rail in wanted.rails
        if decision.apply
    ]
    return guard.state_of_change(
        node,
        stamp=stamp,
        files=[{"path": str(file.path), "before": file.before} for file in files],
        moved=moved,
        devices=devices,
        settings=[node.setting(key) for key in decision.settings_set],
        follow=follow_files(node, wanted.renderer) if decision.apply else [],
    )


def follow_files(node: Node, renderer: str) -> list[list[str]]:
    """What makes the renderer read netplan's files again without touching an interface that is not ours.

    `netplan apply` disconnects every device that NetworkManager has from netplan and restarts NetworkManager, the
    operator's Wi-Fi included. It is only for machines on which NetworkManager does not run. The generator is called
    itself, because `netplan generate` reloads systemd after it.
    """
    generate = find_generator(node) or ["netplan", "generate"]
    if renderer == "networkd":
        if node.run(["nmcli", "-t", "-f", "RUNNING", "general"]).stdout.strip() != "running":
            return [["netplan", "apply"]]
        return [
            generate,
            ["nmcli", "general", "reload", "conf"],
            ["systemctl", "start", "systemd-networkd.service"],
            ["networkctl", "reload"],
        ]
    return [generate, ["nmcli", "connection", "reload"]]


def apply(node: Node, wanted: Wanted) -> Completed | None:
    """Make the network follow the files, bringing up our own functions only; returns the command that failed."""
    commands = follow_files(node, wanted.renderer)
    if wanted.renderer == "networkd" and len(commands) > 1:
        commands += [["networkctl", "reconfigure", rail.netdev] for rail in wanted.rails]
    for argv in commands:
        answer = node.run(argv, timeout_s=90)
        if not answer.ok:
            return answer
    if wanted.renderer == "networkd":
        return None
    states = [
        split_terse(line) for line in node.run(["nmcli", "-t", "-f", "DEVICE,STATE", "device"]).stdout.splitlines()
    ]
    for rail in wanted.rails:
        # At a function that NetworkManager was told to ignore, its connection could never come up.
        if [rail.netdev, "unmanaged"] in states:
            node.run(["nmcli", "device", "set", rail.netdev, "managed", "yes"])
        answer = node.run(["nmcli", "--wait", "20", "connection", "up", f"netplan-{rail.netdev}"], timeout_s=40)
        if not answer.ok and _carrier(node, rail.netdev):
            return answer
    return None


def _carrier(node: Node, netdev: str) -> bool:
    """Without a carrier NetworkManager brings nothing up, and will do so by itself once the other end is on."""
    device = read_devices(node.run).get(netdev)
    return device is not None and device.carrier is True
