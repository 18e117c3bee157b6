"""What measured streams say about a link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..findings import Finding, fatal, finding
from .path import Path
from .samples import Together

FULL_SPEED_MBPS = 200_000
# Below this share of common time streams have not shared the port for long enough to be summed.
MIN_OVERLAP = 0.9
# Sums of the known degraded state, which shows at full negotiated speed only: 8 to 25 Gb/s are reported, with some
# room.
DEGRADED_GBPS = (4.0, 32.0)
# Healthy rails differ by a few per cent.
UNEQUAL = 0.5
# A figure below this share of what the function sent in the same time contradicts it. Twins that count one wire show up
# to twice their own.
CONTRADICTED = 0.25
# What each rail has to carry of the threshold, so that one that idles is seen also where the other alone passes it.
LEAST_SHARE = 0.25


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
    flow: Together | None = None,
    path: Path | None = None,
    both: bool = False,
    one_way_gbps: float = 0.0,
    seen: Iterable[str] = (),
) -> list[Finding]:
    """The verdict about one leg, from streams that were meant to run at the same time.

    ``flow`` is what the counters say about that, ``path`` where bytes were lost, ``both`` whether the streams ran both
    ways, ``one_way_gbps`` what one way alone has to carry, and ``seen`` what else was noticed about the machines, as
    evidence for a slow link.
    """
    failures = [failed(node, stream) for stream in streams if stream.failure is not None]
    if failures:
        return failures
    needed, reached = threshold(min_gbps, len(streams)), total(streams)
    evidence = _evidence(streams, flow, path)
    unproven = _not_together(node, streams, flow, evidence)
    if unproven:
        return [unproven]
    sums = " + ".join(_number(stream.gbps) for stream in streams)
    ways = " both ways" if both else ""
    told = (f"{sums} = {_gbps(reached)}" if len(streams) > 1 else _gbps(reached)) + ways
    told += f" to {streams[0].peer}"
    wanted = f"at least {_gbps(needed)}{ways}"
    slowest = min(streams, key=lambda stream: stream.gbps or 0.0)
    least = slowest.gbps or 0.0
    passed = reached >= needed and (len(streams) == 1 or least >= LEAST_SHARE * needed)
    found = _lost(node, path, slow=not passed, told=told, wanted=wanted, evidence=evidence)
    if passed:
        return [*found, finding("LINK_OK", node=node, found=told, expected=wanted, evidence=evidence)]
    if fatal(found):
        return found
    if both:
        found.append(finding("LINK_BOTH_WAYS_SLOW", node=node, found=told, expected=wanted, evidence=evidence))
        if reached < threshold(one_way_gbps, len(streams)):
            # Half a rate rests on few reports. That both ways carry less than one has to rests on this measurement.
            found[-1] = replace(found[-1], severity="fatal")
        return found
    return [*found, _slow(node, streams, slowest, told, wanted, (*evidence, *seen), needed, transport, path)]


def contradicted(streams: Sequence[Stream], path: Path | None) -> Stream | None:
    """The first stream whose figure is a small part of what its function put on the wire meanwhile.

    perftest counts completions inside margins of its own; on a host that stalls there may be none of them in a run that
    carried all the time.
    """
    for stream in streams:
        for item in path.sent if path is not None else ():
            sent_gbps = item.count * 8 / stream.seconds / 1e9 if stream.seconds else 0.0
            if item.netdev == stream.netdev and (stream.gbps or 0.0) < CONTRADICTED * sent_gbps:
                return stream
    return None


def _evidence(streams: Sequence[Stream], flow: Together | None, path: Path | None) -> tuple[str, ...]:
    common = overlap(streams)
    lines = [f"rail {s.rail} ({s.netdev}): {_gbps(s.gbps)} over {s.seconds:.1f} s" for s in streams]
    if len(streams) > 1:
        lines.append(f"streams overlapped for {common.seconds:.1f} s, {common.share:.0%} of the shorter one")
        if flow is not None:
            lines.append(f"counters of all rails rose together for {flow.seconds:.1f} s of {flow.longest_s:.1f} s")
    lines += [f"{s.netdev} negotiated {s.speed_mbps} Mb/s" for s in streams if s.speed_mbps]
    if path is not None:
        for item in path.sent:
            seconds = next((s.seconds for s in streams if s.netdev == item.netdev), 0.0)
            rate = f", {_gbps(item.count * 8 / seconds / 1e9)}" if seconds else ""
            lines.append(f"{item}{rate}")
        lines += [str(item) for item in (*path.drops, *path.uncorrected, *path.told)]
        if path.known and not path.drops:
            lines.append("neither end discarded anything")
    return tuple(lines)


def _not_together(
    node: str, streams: Sequence[Stream], flow: Together | None, evidence: Sequence[str]
) -> Finding | None:
    """Streams that did not share the wire prove nothing, however well their rates add up."""
    if len(streams) < 2:
        return None
    by_stamp = overlap(streams).share
    by_counter = flow.share if flow is not None else 1.0
    if min(by_stamp, by_counter) >= MIN_OVERLAP:
        return None
    late = max(streams, key=lambda stream: stream.began)
    by = "by their stamps" if by_stamp < MIN_OVERLAP else "by their counters"
    return finding(
        "LINK_NO_OVERLAP",
        node=node,
        found=f"{min(by_stamp, by_counter):.0%} of common time {by}; the {_gbps(total(streams))} that they add up to "
        "is no proof",
        expected=f"streams that run together for at least {MIN_OVERLAP:.0%} of the time",
        evidence=evidence,
        rail=late.rail,
    )


def _lost(
    node: str, path: Path | None, *, slow: bool, told: str, wanted: str, evidence: Sequence[str]
) -> list[Finding]:
    """Errors and drops: the cause where the link is slow, a warning where it carries enough all the same."""
    if path is None:
        return []
    found = []
    severity = "fatal" if slow else "warn"
    if path.uncorrected:
        first = path.uncorrected[0]
        found.append(
            finding(
                "LINK_CABLE_ERRORS",
                node=first.node,
                found=f"{', '.join(str(item) for item in path.uncorrected)}; {told}",
                expected="no error that forward error correction leaves",
                evidence=evidence,
                severity=severity,
                netdev=first.netdev,
            )
        )
    for side, drops in (("sending", path.sender_drops), ("receiving", path.receiver_drops)):
        if drops:
            found.append(
                finding(
                    "LINK_DROPPING",
                    node=drops[0].node,
                    found=f"the {side} side drops: {', '.join(str(item) for item in drops)}; {told}",
                    expected=f"no drops, {wanted}",
                    evidence=evidence,
                    severity=severity,
                    netdev=drops[0].netdev,
                )
            )
    return found


def _slow(
    node: str,
    streams: Sequence[Stream],
    slowest: Stream,
    told: str,
    wanted: str,
    evidence: Sequence[str],
    needed: float,
    transport: str,
    path: Path | None,
) -> Finding:
    reached = total(streams)
    fastest = max(stream.gbps or 0.0 for stream in streams)
    if len(streams) > 1 and ((slowest.gbps or 0.0) < UNEQUAL * fastest or reached >= needed):
        return finding(
            "LINK_RAIL_SLOW",
            node=node,
            found=f"{told}; rail {slowest.rail} is the slow one",
            expected=f"{wanted}, about equal on both rails",
            evidence=evidence,
            netdev=slowest.netdev,
        )
    if transport == "rdma" and _degraded(streams, reached):
        return finding("LINK_DEGRADED", node=node, found=told, expected=wanted, evidence=evidence)
    if path is not None and path.known:
        return finding(
            "LINK_NOT_SENDING",
            node=node,
            found=f"{told}; nothing was dropped, {node} sent no more than that",
            expected=wanted,
            evidence=evidence,
            sum=_number(reached),
        )
    return finding("LINK_SLOW", node=node, found=told, expected=wanted, evidence=evidence, sum=_number(reached))


def _degraded(streams: Sequence[Stream], reached: float) -> bool:
    low, high = (bound * len(streams) / 2 for bound in DEGRADED_GBPS)
    full_speed = all((stream.speed_mbps or 0) >= FULL_SPEED_MBPS for stream in streams)
    return full_speed and low <= reached <= high


def one_rail(node: str, netdevs: Sequence[str]) -> list[Finding]:
    """What half a fabric can prove."""
    if len(netdevs) != 1:
        return []
    return [finding("LINK_HALF", node=node, found=f"one rail, {netdevs[0]}", expected="both functions of a port")]


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


def failed(node: str, stream: Stream, told: Sequence[str] = ()) -> Finding:
    """The finding for a stream that gave no number; an unknown failure stays unknown.

    ``told`` is what the other end printed about it.
    """
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
        evidence=(*(failure.evidence or ("it printed nothing",)), *told),
        **fields,
    )


def _number(gbps: float | None) -> str:
    """Two decimals, and more where a slow link would vanish in them."""
    value = gbps or 0.0
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _gbps(gbps: float | None) -> str:
    return f"{_number(gbps)} Gb/s"
