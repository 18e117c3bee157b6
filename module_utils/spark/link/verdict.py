"""What measured streams say about a link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..findings import Finding, finding

FULL_SPEED_MBPS = 200_000
# Below this share of common time two streams have not shared the port for long enough to be summed.
MIN_OVERLAP = 0.9
# Sums of the known degraded state, which shows at full negotiated speed only: 8 to 25 Gb/s are reported, with some
# room.
DEGRADED_GBPS = (4.0, 32.0)
# Healthy rails differ by a few per cent.
UNEQUAL = 0.5
# What each rail has to carry of the threshold, so that one that idles is seen also where the other alone passes it.
LEAST_SHARE = 0.25
POWER_LINE = "Detected insufficient power on the PCIe slot"


@dataclass(frozen=True)
class Failure:
    """Why a stream gave no number; ``kind`` is one of perftest's failures."""

    kind: str
    meaning: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stream:
    """One stream from this node to a peer; ``began`` and ``ended`` are seconds of one clock."""

    rail: int
    netdev: str
    peer: str
    port: int
    began: float
    ended: float
    gbps: float | None = None
    failure: Failure | None = None
    speed_mbps: int | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.began)


@dataclass(frozen=True)
class Overlap:
    seconds: float
    share: float


def overlap(streams: Sequence[Stream]) -> Overlap:
    """The time in which all streams ran, and its share of the shortest one."""
    if not streams:
        return Overlap(0.0, 0.0)
    common = max(0.0, min(stream.ended for stream in streams) - max(stream.began for stream in streams))
    shortest = min(stream.seconds for stream in streams)
    return Overlap(common, common / shortest if shortest > 0 else 0.0)


def threshold(min_gbps: float, rails: int) -> float:
    """The inventory's threshold is that of two rails; one alone is held to half of it."""
    return min_gbps / 2 if rails == 1 else min_gbps


def total(streams: Iterable[Stream]) -> float:
    return round(sum(stream.gbps or 0.0 for stream in streams), 6)


def judge(
    node: str,
    streams: Sequence[Stream],
    *,
    min_gbps: float,
    transport: str = "rdma",
    kernel_lines: Iterable[str] = (),
) -> list[Finding]:
    """The verdict about one pair of nodes, from streams that were meant to run at the same time."""
    found = _remarks(node, streams, kernel_lines)
    failures = [failed(node, stream) for stream in streams if stream.failure is not None]
    if failures:
        return found + failures
    common, needed, reached = overlap(streams), threshold(min_gbps, len(streams)), total(streams)
    numbers = tuple(f"rail {s.rail} ({s.netdev}): {_gbps(s.gbps)} over {s.seconds:.1f} s" for s in streams)
    together = f"streams overlapped for {common.seconds:.1f} s, {common.share:.0%} of the shorter one"
    speeds = tuple(f"{s.netdev} negotiated {s.speed_mbps} Mb/s" for s in streams if s.speed_mbps)
    evidence = (*numbers, together, *speeds)
    if len(streams) > 1 and common.share < MIN_OVERLAP:
        late = max(streams, key=lambda stream: stream.began)
        found.append(
            finding(
                "LINK_NO_OVERLAP",
                node=node,
                found=f"{common.share:.0%} of common time; the {_gbps(reached)} that they add up to is no proof",
                expected=f"streams that run together for at least {MIN_OVERLAP:.0%} of the shorter one",
                evidence=evidence,
                rail=late.rail,
            )
        )
        return found
    sums = " + ".join(_number(stream.gbps) for stream in streams)
    told = f"{sums} = {_gbps(reached)}" if len(streams) > 1 else _gbps(reached)
    wanted = f"at least {_gbps(needed)}"
    slowest = min(streams, key=lambda stream: stream.gbps or 0.0)
    fastest = max(stream.gbps or 0.0 for stream in streams)
    least = slowest.gbps or 0.0
    if reached >= needed and (len(streams) == 1 or least >= LEAST_SHARE * needed):
        found.append(finding("LINK_OK", node=node, found=told, expected=wanted, evidence=evidence))
        return found
    if len(streams) > 1 and (least < UNEQUAL * fastest or reached >= needed):
        found.append(
            finding(
                "LINK_RAIL_SLOW",
                node=node,
                found=f"{told}; rail {slowest.rail} is the slow one",
                expected=f"{wanted}, about equal on both rails",
                evidence=evidence,
                netdev=slowest.netdev,
            )
        )
    elif transport == "rdma" and _degraded(streams, reached):
        found.append(finding("LINK_DEGRADED", node=node, found=told, expected=wanted, evidence=evidence))
    else:
        found.append(
            finding("LINK_SLOW", node=node, found=told, expected=wanted, evidence=evidence, sum=_number(reached))
        )
    return found


def _degraded(streams: Sequence[Stream], reached: float) -> bool:
    low, high = (bound * len(streams) / 2 for bound in DEGRADED_GBPS)
    full_speed = all((stream.speed_mbps or 0) >= FULL_SPEED_MBPS for stream in streams)
    return full_speed and low <= reached <= high


def _remarks(node: str, streams: Sequence[Stream], kernel_lines: Iterable[str]) -> list[Finding]:
    """What is worth saying and decides nothing."""
    found = []
    if len(streams) == 1:
        found.append(
            finding("LINK_HALF", node=node, found=f"one rail, {streams[0].netdev}", expected="both functions of a port")
        )
    lines = [line.strip() for line in kernel_lines if POWER_LINE in line]
    if lines:
        found.append(
            finding(
                "LINK_POWER_LINE",
                node=node,
                found=f"{len(lines)} line{'s' if len(lines) > 1 else ''} in the kernel log",
                expected="nothing that decides anything",
                evidence=lines[:2],
            )
        )
    return found


# Each way in which a stream fails, as a finding.
CODE_OF_FAILURE = {
    "no_server": "LINK_NO_LISTENER",
    "device_not_found": "LINK_DEVICE_NOT_FOUND",
    "no_devices": "RDMA_DEVICE_MISSING",
    "port_down": "LINK_PORT_DOWN",
    "gid_unusable": "LINK_GID_UNUSABLE",
    "gid_family_mismatch": "LINK_GID_FAMILY",
    "gid_out_of_range": "LINK_GID_RANGE",
    "wrong_peer": "LINK_WRONG_PEER",
    "completion_error": "LINK_TRANSFER_FAILED",
    "port_in_use": "LINK_PORT_BUSY",
    "peer_lost": "LINK_PEER_LOST",
    "memory_lock": "LINK_MEMLOCK",
    "bad_option": "LINK_OPTION_UNKNOWN",
    "tool_missing": "LINK_TOOL_MISSING",
    "timed_out": "LINK_TIMED_OUT",
}


def failed(node: str, stream: Stream) -> Finding:
    """The finding for a stream that gave no number; an unknown failure stays unknown."""
    failure = stream.failure
    if failure is None:
        raise ValueError("the stream did not fail")
    fields: dict[str, Any] = {
        "peer": stream.peer,
        "port": stream.port,
        "netdev": stream.netdev,
        "process": f"what listens on port {stream.port}",
        "attach": "the result file of this run",
    }
    return finding(
        CODE_OF_FAILURE.get(failure.kind, "UNKNOWN_CAUSE"),
        node=node,
        found=f"rail {stream.rail} ({stream.netdev}) to {stream.peer}, port {stream.port}: {failure.meaning}",
        expected="a stream that runs to its end",
        evidence=failure.evidence or ("it printed nothing",),
        **fields,
    )


def _number(gbps: float | None) -> str:
    """Two decimals, and more where a slow link would vanish in them."""
    value = gbps or 0.0
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _gbps(gbps: float | None) -> str:
    return f"{_number(gbps)} Gb/s"
