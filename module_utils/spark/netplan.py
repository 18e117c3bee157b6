"""The fabric's netplan file as a transaction on one node.

Look, decide, check the whole resulting tree in a scratch folder, arm a rollback, change, apply. Looking and deciding
are the same in check mode; nothing is written before everything that can be known is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import rollback, undo
from .findings import Finding, fatal, finding
from .parse.netplan import classify, nm_uuid
from .parse.netplan import parse as parse_netplan
from .parse.nmcli import parse_uuids, split_terse
from .runner import Completed, Run

TIMER = "spark-fabric-rollback"
BOOT_UNIT = "spark-fabric-rollback-boot.service"
FILE_MODE = 0o600
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
class Wanted:
    """What one call asks for."""

    node: str
    path: str
    text: str
    rails: Sequence[Rail]
    mtu: int
    orphans: Sequence[str]
    rollback_s: int

    @property
    def renderer(self) -> str:
        """Who carries the text out: what it says itself, since nodes of one cluster may differ."""
        document = parse_netplan(self.text)
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
    devices: dict[str, Device] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.quarantine) or self.write or self.apply


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

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def shown(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))


# --- looking ---------------------------------------------------------------------------------------------------------


def read_devices(run: Run) -> dict[str, Device]:
    """Every interface, from ``ip -j address``. Raises CommandFailed where ip does not answer."""
    found = {}
    for link in json.loads(run(["ip", "-j", "address", "show"], check=True).stdout or "[]"):
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
            candidates.append(str(json.loads(status.stdout).get("NetworkFile") or ""))
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
    decision.pending = rollback.read_state(node.rollback) is not None
    _judge_orphans(node, wanted, decision)
    ours = node.at(wanted.path)
    with contextlib.suppress(FileNotFoundError):
        decision.before = ours.read_bytes().decode("utf-8", "backslashreplace")
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
    return decision


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
    generator = find_generator(node)
    if generator is None:
        return finding(
            "NETPLAN_TOOL_MISSING",
            node=wanted.node,
            found=f"none of {', '.join('/' + path for path in GENERATORS)}",
            expected="netplan.io with its generator",
        )
    with _scratch(node, wanted, decision) as scratch:
        answer = node.run([*generator, "--root-dir", str(scratch)], timeout_s=60)
        if answer.ok:
            return None
        said = (answer.stderr or answer.stdout).replace(str(scratch), "").strip()
    return finding(
        "NETPLAN_INVALID",
        node=wanted.node,
        found=f"the generator exited {answer.rc}: {_first_line(said)}",
        expected="a tree that netplan accepts",
        evidence=tuple(line for line in said.splitlines() if line.strip())[:8],
    )


@contextlib.contextmanager
def _scratch(node: Node, wanted: Wanted, decision: Decision) -> Iterator[Path]:
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
                if path in decision.quarantine or not path.is_file():
                    continue
                (target / path.name).write_bytes(path.read_bytes())
                (target / path.name).chmod(FILE_MODE)
        if not decision.adopted:
            ours = scratch / wanted.path.lstrip("/")
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.write_text(wanted.text, encoding="utf-8")
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
    rollback.roll_back(node.rollback, "a later run wants something else")
    stop_timer(node)
    return True


def carry_out(node: Node, wanted: Wanted, decision: Decision) -> tuple[dict[str, Any], list[Finding]]:
    """Do what was decided; returns what was done and what went wrong. A failed apply is rolled back at once."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    done: dict[str, Any] = {"applied": False, "armed": False, "quarantined": [], "stamp": stamp}
    if not decision.changed:
        if not decision.pending:
            return done, []
        # The same change from an interrupted run: it still has to be confirmed, with the full time to do so.
        refused = rearm(node, wanted)
        done["armed"] = refused is None
        return done, [refused] if refused else []
    backup = node.state / "backup/netplan" / stamp
    moved = [(path, backup / path.name) for path in decision.quarantine]
    if moved or (decision.before is not None and decision.write):
        backup.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = _pending_state(node, wanted, decision, stamp, moved, backup)
    if decision.apply:
        refused = arm(node, wanted, state)
        if refused is not None:
            return done, [refused]
        done["armed"] = True
    for path, target in moved:
        done["quarantined"].append(_quarantine(node, path, target))
    if decision.write:
        undo.record(
            {
                "kind": "file_written",
                "path": wanted.path,
                "sha256": hashlib.sha256(wanted.text.encode()).hexdigest(),
                "before": state["before"],
                "backup": state["before"]["backup"] if state["before"] else None,
            },
            root=node.state / "undo",
        )
        rollback.write_file(node.at(wanted.path), wanted.text.encode(), mode=FILE_MODE)
    if not decision.apply:
        return done, []
    failed = apply(node, wanted)
    done["applied"] = True
    if failed is None:
        return done, []
    rollback.roll_back(node.rollback, "the change could not be applied")
    stop_timer(node)
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


def snapshot(path: Path) -> dict[str, Any]:
    """What a file was, so that it can be made so again."""
    status = path.stat()
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size": status.st_size,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }


def _quarantine(node: Node, path: Path, target: Path) -> dict[str, Any]:
    entry = {"kind": "file_moved", "path": node.shown(path), "to": node.shown(target), "before": snapshot(path)}
    undo.record(entry, root=node.state / "undo")
    rollback.move_file(path, target)
    return {"path": entry["path"], "to": entry["to"], **snapshot(target)}


def _pending_state(
    node: Node, wanted: Wanted, decision: Decision, stamp: str, moved: Sequence[tuple[Path, Path]], backup: Path
) -> dict[str, Any]:
    """Everything that the rollback needs, with real paths: it runs alone."""
    before = None
    ours = node.at(wanted.path)
    if decision.before is not None:
        before = {**snapshot(ours), "backup": str(backup / ours.name)}
        if decision.write:
            status = ours.stat()
            rollback.write_file(
                backup / ours.name,
                ours.read_bytes(),
                mode=FILE_MODE,
                owner=(status.st_uid, status.st_gid),
                mtime_ns=status.st_mtime_ns,
            )
        else:
            before["backup"] = str(ours)
    active = node.run(["nmcli", "-t", "-f", "DEVICE,UUID", "connection", "show", "--active"])
    rows = [split_terse(line) for line in active.stdout.splitlines()] if active.ok else []
    connections = {row[0]: row[1] for row in rows if len(row) == 2}
    return {
        "stamp": stamp,
        "armed_at": time.time(),
        "reapply": _follow_files(node, wanted.renderer),
        "path": str(ours),
        "before": before,
        "moved": [{"path": str(path), "to": str(target)} for path, target in moved],
        "journal": str(node.state / "undo" / undo.JOURNAL),
        "boot_files": [],
        "devices": [
            {
                "netdev": rail.netdev,
                "address": rail.cidr,
                "addresses_before": list(decision.devices[rail.netdev].addresses),
                "mtu_before": decision.devices[rail.netdev].mtu,
                "up_before": decision.devices[rail.netdev].up,
                "connection_before": connections.get(rail.netdev),
            }
            for rail in wanted.rails
        ],
    }


def arm(node: Node, wanted: Wanted, state: dict[str, Any]) -> Finding | None:
    """Put the rollback and its state on the node, and start the timer; a unit stands by for a power cut."""
    folder = node.rollback
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / "rollback.py"
    source = inspect.getsource(rollback)
    rollback.write_file(script, source.encode(), mode=0o700)
    units = node.root / "etc/systemd/system"
    unit = units / BOOT_UNIT
    want = units / "multi-user.target.wants" / BOOT_UNIT
    state["boot_files"] = [str(want), str(unit)]
    with rollback.locked(folder):
        rollback.write_file(folder / rollback.STATE, json.dumps(state, indent=1).encode() + b"\n", mode=0o600)
        want.parent.mkdir(parents=True, exist_ok=True)
        rollback.write_file(unit, _boot_unit(script, folder).encode(), mode=0o644)
        want.unlink(missing_ok=True)
        want.symlink_to(f"/etc/systemd/system/{BOOT_UNIT}")
    answer = start_timer(node, wanted.rollback_s)
    if answer.ok:
        return None
    with rollback.locked(folder):
        rollback.forget(folder, state)
    return _not_armed(wanted, answer)


def rearm(node: Node, wanted: Wanted) -> Finding | None:
    """Give a pending change its whole time again."""
    stop_timer(node)
    answer = start_timer(node, wanted.rollback_s)
    return None if answer.ok else _not_armed(wanted, answer)


def _not_armed(wanted: Wanted, answer: Completed) -> Finding:
    return finding(
        "FABRIC_ROLLBACK_NOT_ARMED",
        node=wanted.node,
        found=f"systemd-run exited {answer.rc}: {_first_line(answer.stderr)}",
        expected=f"a timer that puts the network back after {wanted.rollback_s} s",
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


def _follow_files(node: Node, renderer: str) -> list[list[str]]:
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
    commands = _follow_files(node, wanted.renderer)
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


# --- confirming ------------------------------------------------------------------------------------------------------


def pending(node: Node) -> bool:
    return rollback.read_state(node.rollback) is not None


def last_rollback(node: Node) -> list[str]:
    """What the last rollback says of itself, empty where there was none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        report = json.loads((node.rollback / rollback.LAST).read_text(encoding="utf-8"))
        return [f"rolled back at {report['at']}: {report['reason']}"]
    return []


def confirm(node: Node) -> bool:
    """Keep the change: no rollback any more. False where there was none to cancel, because it ran already."""
    with rollback.locked(node.rollback):
        state = rollback.read_state(node.rollback)
        if state is None:
            return False
        rollback.forget(node.rollback, state)
    stop_timer(node)
    return True
