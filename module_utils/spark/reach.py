"""Whether a node's rails work: own addresses, MTU, and every peer answering on every rail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .findings import Finding, finding
from .netplan import Device, Rail, read_devices
from .runner import Run

# An address may vanish for about a second while a renderer takes over: neither success nor failure is judged sooner.
SETTLE_S = 5.0
PATIENCE_S = 25.0
GOOD_IN_A_ROW = 3


@dataclass(frozen=True)
class Answer:
    rail: int
    netdev: str
    peer: str
    address: str
    reached: bool
    said: str = ""


@dataclass
class Look:
    """One look at all rails."""

    devices: dict[str, Device]
    answers: list[Answer] = field(default_factory=list)

    def good(self, rails: Sequence[Rail], mtu: int) -> bool:
        return all(answer.reached for answer in self.answers) and not own_faults("", rails, mtu, self.devices)


def look(run: Run, rails: Sequence[Rail]) -> Look:
    """Ping every peer on every rail at once, bound to the function and to its planned address."""
    devices = read_devices(run)

    def ping(task: tuple[Rail, str, str]) -> Answer:
        rail, peer, address = task
        argv = ["ping", "-n", "-q", "-c", "1", "-W", "2", "-I", rail.netdev, "-I", rail.address, address]
        done = run(argv, timeout_s=6)
        said = (done.stderr or done.stdout).strip().splitlines()
        return Answer(rail.rail, rail.netdev, peer, address, done.ok, said[-1] if said else "")

    tasks = [(rail, peer, address) for rail in rails for peer, address in sorted(rail.peers.items())]
    if not tasks:
        return Look(devices)
    with ThreadPoolExecutor(max_workers=min(8, len(tasks))) as pool:
        return Look(devices, list(pool.map(ping, tasks)))


def watch(
    run: Run,
    rails: Sequence[Rail],
    mtu: int,
    *,
    changed: bool,
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
        seen = look(run, rails)
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
    found = own_faults(node, rails, mtu, seen.devices)
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


def _neighbour(run: Run, answer: Answer) -> str:
    done = run(["ip", "-j", "neighbour", "show", answer.address, "dev", answer.netdev])
    try:
        entries: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    except ValueError:
        return done.stdout.strip()[:200]
    if not entries:
        return f"no entry for {answer.address}"
    return ", ".join(
        f"{answer.address} {entry.get('lladdr', '')} {'/'.join(entry.get('state', []))}" for entry in entries
    )


def confirmed(node: str, rails: Sequence[Rail], mtu: int, seen: Look, spent: float) -> Finding:
    reached = "; ".join(f"{answer.peer} on rail {answer.rail} ({answer.address})" for answer in seen.answers)
    return finding(
        "FABRIC_CONFIRMED",
        node=node,
        found=f"reached: {reached or 'no peers to reach'}",
        expected="every peer on every rail",
        evidence=(*(state_of(seen.devices[rail.netdev]) for rail in rails), f"watched for {spent:.1f} s"),
    )
