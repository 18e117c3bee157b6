"""Whether a node's network works: the path that the operator came by, own addresses, MTU, and every peer answering on
every rail, with frames of full size."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .findings import Finding, finding
from .netplan import Device, Rail, read_devices
from .parse.whole import records
from .runner import Run

# An address may vanish for about a second while a renderer takes over: neither success nor failure is judged sooner.
SETTLE_S = 5.0
PATIENCE_S = 25.0
GOOD_IN_A_ROW = 3
# What IPv4 and ICMP put in front of a ping's payload.
HEADERS_BYTES = 28
FULL_SIZE_PINGS = 3


@dataclass(frozen=True)
class Answer:
    rail: int
    netdev: str
    peer: str
    address: str
    reached: bool
    said: str = ""


@dataclass(frozen=True)
class Management:
    """The path by which the operator's connection came: our own address, the interface that has it, and theirs."""

    netdev: str
    address: str
    client: str


def session(pid: int | None = None, proc: Path = Path("/proc")) -> tuple[str, str] | None:
    """Client and server address of the ssh connection that a process belongs to, None where it belongs to none.

    sudo takes the variable away, so it is looked for in the environments of the processes above.
    """
    above = os.getpid() if pid is None else pid
    while above > 1:
        try:
            environment = (proc / str(above) / "environ").read_bytes()
            status = (proc / str(above) / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        told = re.search(rb"(?:^|\0)SSH_CONNECTION=([0-9a-fA-F.:]+) \d+ ([0-9a-fA-F.:]+) \d+", environment)
        if told:
            return told[1].decode(), told[2].decode()
        parent = re.search(r"^PPid:\s*(\d+)", status, re.M)
        above = int(parent[1]) if parent else 0
    return None


def management(devices: Mapping[str, Device], ends: tuple[str, str] | None) -> Management | None:
    """The management path of a connection; None where no interface has the address that it came to."""
    if ends is None:
        return None
    client, server = ends
    for device in devices.values():
        if any(address.split("/")[0] == server for address in device.addresses):
            return Management(device.name, server, client)
    return None


@dataclass
class Look:
    """One look at all rails, and at the management path."""

    devices: dict[str, Device]
    answers: list[Answer] = field(default_factory=list)
    lost: str = ""

    def good(self, rails: Sequence[Rail], mtu: int) -> bool:
        reached = all(answer.reached for answer in self.answers)
        return reached and not self.lost and not own_faults("", rails, mtu, self.devices)


def _lost(run: Run, path: Management | None, rails: Sequence[Rail], devices: Mapping[str, Device]) -> str:
    """What is wrong with the management path, empty where it is as it was."""
    if path is None:
        return ""
    device = devices.get(path.netdev)
    if device is None:
        return f"{path.netdev} is gone"
    if device.carrier is not True:
        return f"{path.netdev} has no carrier"
    if not any(address.split("/")[0] == path.address for address in device.addresses):
        return f"{path.netdev} lost {path.address}"
    route = run(["ip", "-j", "route", "get", path.client])
    try:
        leaves_by = {str(entry.get("dev")) for entry in records(route.stdout)}
    except ValueError:
        leaves_by = set()
    if not route.ok:
        return f"no route to {path.client}"
    taken = leaves_by & {rail.netdev for rail in rails} - {path.netdev}
    if taken:
        return f"the way to {path.client} leads over {', '.join(sorted(taken))} instead of {path.netdev}"
    return ""


def look(run: Run, rails: Sequence[Rail], path: Management | None = None) -> Look:
    """Ping every peer on every rail at once, bound to the function and to its planned address."""
    devices = read_devices(run)
    lost = _lost(run, path, rails, devices)

    def ping(task: tuple[Rail, str, str]) -> Answer:
        rail, peer, address = task
        argv = ["ping", "-n", "-q", "-c", "1", "-W", "2", "-I", rail.netdev, "-I", rail.address, address]
        done = run(argv, timeout_s=6)
        said = (done.stderr or done.stdout).strip().splitlines()
        return Answer(rail.rail, rail.netdev, peer, address, done.ok, said[-1] if said else "")

    tasks = [(rail, peer, address) for rail in rails for peer, address in sorted(rail.peers.items())]
    if not tasks:
        return Look(devices, lost=lost)
    with ThreadPoolExecutor(max_workers=min(8, len(tasks))) as pool:
        return Look(devices, list(pool.map(ping, tasks)), lost)


def watch(
    run: Run,
    rails: Sequence[Rail],
    mtu: int,
    *,
    changed: bool,
    path: Management | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Look, float]:
    """Look until the rails can be judged, and return the last look and the seconds that it took.

    After a change they must have been good three times in a row with at least five seconds gone by. Where nothing was
    changed the first good look is enough, and a bad one gets the same five seconds.
    """
    began = clock()
    row = 0
    while True:
        seen = look(run, rails, path)
        row = row + 1 if seen.good(rails, mtu) else 0
        spent = clock() - began
        if row and (not changed or (row >= GOOD_IN_A_ROW and spent >= SETTLE_S)):
            return seen, spent
        if not row and spent >= (PATIENCE_S if changed else SETTLE_S):
            return seen, spent
        sleep(1.0)


def own_faults(node: str, rails: Sequence[Rail], mtu: int, devices: Mapping[str, Device]) -> list[Finding]:
    """What is wrong on the node itself."""
    found = []
    for rail in rails:
        device = devices.get(rail.netdev)
        if device is not None and device.carrier is False:
            found.append(
                finding(
                    "FABRIC_LINK_DOWN",
                    node=node,
                    found=f"{rail.netdev}: no carrier on rail {rail.rail}",
                    expected="carrier at every end of the rail",
                    evidence=(state_of(device),),
                    netdev=rail.netdev,
                )
            )
        elif device is None or rail.cidr not in device.addresses:
            carried = "it is gone" if device is None else ", ".join(device.addresses) or "it has no address"
            found.append(
                finding(
                    "FABRIC_ADDRESS_MISSING",
                    node=node,
                    found=f"{rail.netdev}: {carried}",
                    expected=f"{rail.cidr} on {rail.netdev}",
                    evidence=() if device is None else (state_of(device),),
                    netdev=rail.netdev,
                )
            )
        elif device.mtu != mtu:
            found.append(
                finding(
                    "FABRIC_MTU_DIFFERS",
                    node=node,
                    found=f"{rail.netdev} has MTU {device.mtu}",
                    expected=f"MTU {mtu}",
                    netdev=rail.netdev,
                )
            )
    return found


def state_of(device: Device) -> str:
    carrier = {True: "carrier 1", False: "carrier 0", None: "switched off"}[device.carrier]
    return f"{device.name}: {carrier}, {', '.join(device.addresses) or 'no address'}, mtu {device.mtu}"


def judge(run: Run, node: str, rails: Sequence[Rail], mtu: int, seen: Look) -> list[Finding]:
    """Findings from the last look; the cause of a silent peer is looked for while it is silent."""
    found = [] if not seen.lost else [_management_lost(node, seen.lost)]
    found += own_faults(node, rails, mtu, seen.devices)
    faulty = {item.found.split(":")[0] for item in found if item.code != "FABRIC_MTU_DIFFERS"}
    for answer in seen.answers:
        # Without its own address or carrier the function reaches nobody: one finding for one cause.
        if answer.reached or answer.netdev in faulty:
            continue
        device = seen.devices[answer.netdev]
        found.append(
            finding(
                "FABRIC_RAIL_UNREACHABLE",
                node=node,
                found=f"{answer.peer} ({answer.address}) does not answer on rail {answer.rail} through {answer.netdev}",
                expected="an answer to a ping",
                evidence=(
                    state_of(device),
                    f"neighbour table: {_neighbour(run, answer)}",
                    f"ping: {answer.said or 'nothing'}",
                ),
            )
        )
    return found


def _management_lost(node: str, lost: str) -> Finding:
    return finding(
        "FABRIC_MANAGEMENT_LOST",
        node=node,
        found=lost,
        expected="the path of your own connection as it was before the change",
    )


# --- frames of full size ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carried:
    """How many frames of a size, not to be fragmented, came back from a peer."""

    rail: int
    netdev: str
    peer: str
    address: str
    payload_bytes: int
    sent: int
    received: int
    said: str

    @property
    def whole(self) -> bool:
        return self.received > 0

    def as_dict(self) -> dict[str, Any]:
        shown = {key: getattr(self, key) for key in ("rail", "netdev", "peer", "payload_bytes", "sent", "received")}
        return {**shown, "carried": self.whole}


def carry(run: Run, rails: Sequence[Rail], mtu: int) -> list[Carried]:
    """Send every peer frames that fill the MTU on every rail at once. The peers do the same, so that each direction
    is tried from both ends."""
    payload = mtu - HEADERS_BYTES
    tasks = [(rail, peer, address) for rail in rails for peer, address in sorted(rail.peers.items())]
    if not tasks:
        return []
    with ThreadPoolExecutor(max_workers=min(8, len(tasks))) as pool:
        return list(pool.map(lambda task: _full_size(run, task[0], task[1], task[2], payload), tasks))


def _full_size(run: Run, rail: Rail, peer: str, address: str, payload: int) -> Carried:
    argv = ["ping", "-n", "-q", "-M", "do", "-s", str(payload), "-c", str(FULL_SIZE_PINGS), "-i", "0.3", "-W", "2"]
    done = run([*argv, "-I", rail.netdev, "-I", rail.address, address], timeout_s=15)
    counted = re.search(r"(\d{1,9}) packets transmitted, (\d{1,9}) received", done.stdout)
    sent, received = (int(counted[1]), int(counted[2])) if counted else (FULL_SIZE_PINGS, 0)
    said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    # The line that counts, and before it what the kernel said of the size.
    telling = [line for line in said if "too long" in line or "transmitted" in line or "ping:" in line]
    return Carried(rail.rail, rail.netdev, peer, address, payload, sent, received, "; ".join(telling[:3]) or "nothing")


def not_carried(run: Run, node: str, rails: Sequence[Rail], mtu: int, carried: Sequence[Carried]) -> list[Finding]:
    """A finding for each rail and peer that full frames do not reach, with the size that does."""
    by_rail = {rail.rail: rail for rail in rails}
    found = []
    for one in carried:
        if one.whole:
            continue
        small = _full_size(run, by_rail[one.rail], one.peer, one.address, 1500 - HEADERS_BYTES) if mtu > 1500 else None
        evidence = [f"ping -M do -s {one.payload_bytes}: {one.said}"]
        if small is not None:
            evidence.append(f"ping -M do -s {small.payload_bytes}: {small.said}")
        found.append(
            finding(
                "FABRIC_MTU_NOT_CARRIED",
                node=node,
                found=f"{one.received} of {one.sent} frames of {mtu} bytes came back from {one.peer} "
                f"({one.address}) on rail {one.rail} through {one.netdev}",
                expected=f"frames of {mtu} bytes in both directions on every rail",
                evidence=evidence,
                mtu=mtu,
            )
        )
    return found


def mtu_measured(mtu: int, carried: Sequence[Carried]) -> dict[str, Any]:
    """The measurement of the record."""
    return {"mtu": mtu, "carried": all(one.whole for one in carried), "rails": [one.as_dict() for one in carried]}


def _neighbour(run: Run, answer: Answer) -> str:
    done = run(["ip", "-j", "neighbour", "show", answer.address, "dev", answer.netdev])
    try:
        entries = records(done.stdout)
    except ValueError:
        return done.stdout.strip()[:200]
    if not entries:
        return f"no entry for {answer.address}"
    states = [entry.get("state") for entry in entries]
    shown = ["/".join(map(str, state)) if isinstance(state, list) else "" for state in states]
    return ", ".join(
        f"{answer.address} {entry.get('lladdr', '')} {state}" for entry, state in zip(entries, shown, strict=True)
    )


def confirmed(
    node: str, rails: Sequence[Rail], mtu: int, seen: Look, spent: float, path: Management | None = None
) -> Finding:
    came = (
        f"your connection came over {path.netdev} ({path.address}), as before" if path else "no ssh connection to watch"
    )
    reached = "; ".join(f"{answer.peer} on rail {answer.rail} ({answer.address})" for answer in seen.answers)
    return finding(
        "FABRIC_CONFIRMED",
        node=node,
        found=f"reached: {reached or 'no peers to reach'}",
        expected="every peer on every rail",
        evidence=(
            *(state_of(seen.devices[rail.netdev]) for rail in rails),
            f"frames of {mtu} bytes",
            came,
            f"watched for {spent:.1f} s",
        ),
    )
