"""Frames on the wire: which functions of other nodes lie on the same segment, and who answers for an address.

Nothing on the node is changed: packet sockets of their own send a few broadcast frames of the EtherType that is set
aside for experiments, and ARP probes without a sender's address, which no neighbour table remembers. A node listens
until every peer has heard it and been heard, so that nodes need not start at the same moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .parse.whole import document

ETHERTYPE = 0x88B5
ARP = 0x0806
MAGIC = b"SPARKF1"
BROADCAST = b"\xff" * 6
# Shorter frames are padded by drivers, or not at all: the payload carries its own length.
MIN_FRAME = 60

BEACON_EVERY_S = 0.2
# After everybody has met: time for each port to be heard on, and for a peer to learn that it was heard.
LINGER_S = 1.2
PROBES = 3
PROBE_EVERY_S = 0.3
PROBE_WAIT_S = 1.0


@dataclass(frozen=True)
class Ask:
    """What one node is asked; ``peers`` are the nodes to meet, ``addresses`` those that nobody else may answer for."""

    cluster: str
    node: str
    peers: tuple[str, ...]
    netdevs: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    limit_s: float = 20.0


@dataclass(frozen=True, order=True)
class Heard:
    """A frame of ``peer_netdev`` of ``peer`` arrived on ``netdev``."""

    netdev: str
    peer: str
    peer_netdev: str


@dataclass(frozen=True, order=True)
class Answered:
    """Somebody with ``mac`` claims ``address`` on ``netdev``."""

    netdev: str
    address: str
    mac: str


@dataclass
class Report:
    """``met`` is whether every peer was heard and has heard this node; ``refused`` are functions without a socket."""

    netdevs: list[str]
    heard: set[Heard] = field(default_factory=set)
    answered: set[Answered] = field(default_factory=set)
    met: bool = False
    spent_s: float = 0.0
    sent: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "netdevs": self.netdevs,
            "heard": [asdict(item) for item in sorted(self.heard)],
            "answered": [asdict(item) for item in sorted(self.answered)],
            "met": self.met,
            "spent_s": round(self.spent_s, 3),
            "sent": self.sent,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Beacon:
    """``heard`` are the nonces of the runs that the sender has heard: a node finds its own there, or waits on."""

    cluster: str
    node: str
    netdev: str
    nonce: str
    heard: tuple[str, ...] = ()


def encode(beacon: Beacon, mac: bytes) -> bytes:
    body = json.dumps(
        [beacon.cluster, beacon.node, beacon.netdev, beacon.nonce, list(beacon.heard)], separators=(",", ":")
    ).encode()
    head = BROADCAST + mac + struct.pack("!H", ETHERTYPE)
    return (head + MAGIC + struct.pack("!H", len(body)) + body).ljust(MIN_FRAME, b"\0")


def decode(frame: bytes) -> Beacon | None:
    """The beacon in a frame, None for anything else: the EtherType belongs to everybody."""
    start = 14 + len(MAGIC)
    if frame[12:14] != struct.pack("!H", ETHERTYPE) or frame[14:start] != MAGIC:
        return None
    try:
        (length,) = struct.unpack("!H", frame[start : start + 2])
        cluster, node, netdev, nonce, heard = document(frame[start + 2 : start + 2 + length])
    except (struct.error, TypeError, ValueError):
        return None
    texts = [cluster, node, netdev, nonce, *(heard if isinstance(heard, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        return None
    return Beacon(cluster, node, netdev, nonce, tuple(heard))


def arp_probe(address: str, mac: bytes) -> bytes:
    """Who has it? Asked in nobody's name, as a host does before it takes an address (RFC 5227)."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + bytes(4) + bytes(6) + socket.inet_aton(address)
    return (BROADCAST + mac + struct.pack("!H", ARP) + body).ljust(MIN_FRAME, b"\0")


def arp_claim(frame: bytes) -> tuple[str, str] | None:
    """Address and MAC of a host that speaks as the owner of an address; None for probes and anything else."""
    if len(frame) < 42 or frame[12:14] != struct.pack("!H", ARP):
        return None
    if struct.unpack("!HHBB", frame[14:20]) != (1, 0x0800, 6, 4) or frame[28:32] == bytes(4):
        return None
    return socket.inet_ntoa(frame[28:32]), frame[22:28].hex(":")


class Wire(Protocol):
    """One function's packet sockets; ``take`` returns what has arrived and never blocks."""

    mac: bytes

    def send(self, frame: bytes) -> None: ...

    def take(self) -> Iterable[bytes]: ...


class PacketWire:
    """Packet sockets for our EtherType and for ARP. Raises OSError where the kernel gives none."""

    def __init__(self, netdev: str) -> None:
        self.sockets: list[socket.socket] = []
        try:
            for kind in (ETHERTYPE, ARP):
                opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
                self.sockets.append(opened)
                opened.bind((netdev, kind))
                opened.setblocking(False)
        except OSError:
            self.close()
            raise
        self.mac = self.sockets[0].getsockname()[4]

    def send(self, frame: bytes) -> None:
        # A full queue or a link that drops meanwhile costs one frame of many.
        with contextlib.suppress(OSError):
            self.sockets[0].send(frame)

    def take(self) -> Iterable[bytes]:
        for opened in self.sockets:
            with contextlib.suppress(OSError):
                while True:
                    yield opened.recv(2048)

    def close(self) -> None:
        for opened in self.sockets:
            opened.close()


class Talk:
    """What was said and heard so far. Knows no clock and no socket."""

    def __init__(self, ask: Ask, nonce: str, own_macs: Iterable[str]) -> None:
        self.ask = ask
        self.nonce = nonce
        self.own_macs = {mac.lower() for mac in own_macs}
        self.heard: set[Heard] = set()
        self.answered: set[Answered] = set()
        self.nonces: dict[str, str] = {}
        self.heard_by: set[str] = set()

    def beacon(self, netdev: str) -> Beacon:
        return Beacon(self.ask.cluster, self.ask.node, netdev, self.nonce, tuple(sorted(self.nonces.values())))

    def hear(self, netdev: str, frame: bytes) -> None:
        beacon = decode(frame)
        if beacon is not None:
            self._meet(netdev, beacon)
            return
        claim = arp_claim(frame)
        if claim is not None and claim[0] in self.ask.addresses and claim[1] not in self.own_macs:
            self.answered.add(Answered(netdev, *claim))

    def _meet(self, netdev: str, beacon: Beacon) -> None:
        """Our own frames count too: a function that hears its twin shares a segment with it."""
        if beacon.cluster != self.ask.cluster:
            return
        self.heard.add(Heard(netdev, beacon.node, beacon.netdev))
        if beacon.node == self.ask.node:
            return
        self.nonces[beacon.node] = beacon.nonce
        if self.nonce in beacon.heard:
            self.heard_by.add(beacon.node)

    @property
    def met(self) -> bool:
        return set(self.ask.peers) <= self.nonces.keys() & self.heard_by


def exchange(
    ask: Ask,
    wires: Mapping[str, Wire],
    own_macs: Iterable[str],
    *,
    nonce: str,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Report:
    """Speak and listen on all functions until everybody has met, or until the limit."""
    talk = Talk(ask, nonce, own_macs)
    report = Report(sorted(wires))
    began = clock()
    next_beacon = next_probe = last_probe = began
    probes = PROBES if ask.addresses else 0
    met_at: float | None = None
    while wires:
        now = clock()
        if now >= next_beacon:
            for netdev, wire in wires.items():
                wire.send(encode(talk.beacon(netdev), wire.mac))
                report.sent += 1
            next_beacon = now + BEACON_EVERY_S
        if probes and now >= next_probe:
            for wire in wires.values():
                for address in ask.addresses:
                    wire.send(arp_probe(address, wire.mac))
                    report.sent += 1
            probes, last_probe, next_probe = probes - 1, now, now + PROBE_EVERY_S
        for netdev, wire in wires.items():
            for frame in wire.take():
                talk.hear(netdev, frame)
        if met_at is None and talk.met:
            met_at = now
        probed = not ask.addresses or (not probes and now >= last_probe + PROBE_WAIT_S)
        if met_at is not None and now >= met_at + LINGER_S and probed:
            break
        if now >= began + ask.limit_s:
            break
        wait(0.02)
    report.heard, report.answered, report.met = talk.heard, talk.answered, talk.met
    report.spent_s = clock() - began
    return report


def run_exchange(ask: Ask, root: Path = Path("/")) -> Report:
    """The exchange over packet sockets; a function that has none is said and left out."""
    wires: dict[str, PacketWire] = {}
    refused: dict[str, str] = {}
    for netdev in ask.netdevs:
        try:
            wires[netdev] = PacketWire(netdev)
        except OSError as wrong:
            refused[netdev] = str(wrong)
    sockets = [opened for wire in wires.values() for opened in wire.sockets]
    try:
        report = exchange(
            ask,
            wires,
            local_macs(root),
            nonce=os.urandom(4).hex(),
            wait=lambda seconds: _listen(sockets, seconds),
        )
    finally:
        for wire in wires.values():
            wire.close()
    report.refused = refused
    return report


def _listen(sockets: Sequence[socket.socket], seconds: float) -> None:
    """Wait for a frame, though not all the time: other people's ARP must not turn this into a busy loop."""
    select.select(sockets, [], [], BEACON_EVERY_S / 2)
    time.sleep(seconds)


def local_macs(root: Path = Path("/")) -> list[str]:
    """Every MAC of this machine: its other functions answer for it where they share a segment."""
    found = []
    for path in (root / "sys/class/net").glob("*/address"):
        with contextlib.suppress(OSError):
            found.append(path.read_text(encoding="ascii", errors="replace").strip())
    return found
