"""Legs that were run, as findings and as the measurement that is recorded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..findings import Finding, fatal, finding
from . import verdict
from .legs import Leg
from .path import Path, bit_error_rate, path_of
from .run import LegRun
from .samples import together


@dataclass(frozen=True)
class Limits:
    """What the inventory asks of two rails, one way and both ways at once."""

    min_gbps: float
    min_both_ways_gbps: float
    transport: str = "rdma"

    def of(self, leg: Leg) -> float:
        return self.min_both_ways_gbps if leg.kind == "both" else self.min_gbps


def judge(run: LegRun, limits: Limits, seen: Sequence[str] = ()) -> list[Finding]:
    """The verdict about one leg. A round trip is not judged: at 2 us a link may carry all or a tenth of its rate."""
    node = run.leg.source
    if run.leg.kind == "latency":
        failures = [verdict.failed(node, stream, run.told) for stream in run.streams if stream.failure]
        return [_unmeasured(item) for item in failures]
    netdevs = [lane.netdev for lane in run.lanes]
    found = verdict.one_rail(node, netdevs) if run.leg.kind != "both" else []
    failures = [verdict.failed(node, stream, run.told) for stream in run.streams if stream.failure]
    if failures:
        return found + failures
    flow = together(run.samples)
    if flow is None and len(run.lanes) > 1:
        found.append(
            finding(
                "LINK_COUNTERS_SILENT",
                node=node,
                found=f"no counter of {', '.join(netdevs)} moved while the streams ran",
                expected="counters of all functions that rise together",
            )
        )
    judged = verdict.judge(
        node,
        run.streams,
        min_gbps=limits.of(run.leg),
        transport=limits.transport,
        flow=flow,
        path=_path(run, limits),
        both=run.leg.kind == "both",
        one_way_gbps=limits.min_gbps,
        seen=seen,
    )
    if run.first is not None:
        judged[-1] = replace(judged[-1], evidence=(*judged[-1].evidence, _first_try(run.first, limits)))
    return found + judged


def proved_nothing(run: LegRun, limits: Limits) -> bool:
    """Whether a leg failed by what a busy host does to a measurement, so that a second try may prove something.

    Its streams did not share the wire, or a figure is contradicted by the counters. A slow link is slow in both.
    """
    if run.leg.kind == "latency" or any(stream.failure for stream in run.streams):
        return False
    found = fatal(judge(run, limits))
    apart = any(item.code == "LINK_NO_OVERLAP" for item in found)
    return apart or (bool(found) and verdict.contradicted(run.streams, _path(run, limits)) is not None)


def _path(run: LegRun, limits: Limits) -> Path:
    netdevs = [lane.netdev for lane in run.lanes]
    return path_of(run.leg.source, run.leg.target, netdevs, run.own, run.peer, counts_loss=limits.transport == "rdma")


def _unmeasured(item: Finding) -> Finding:
    """Without a round trip the rate can still be proven; what really is wrong fails that as well."""
    return finding(
        "LINK_LATENCY_UNKNOWN",
        node=item.node,
        found=item.found,
        expected="a round trip of about 2 us",
        evidence=item.evidence,
    )


def _first_try(run: LegRun, limits: Limits) -> str:
    odd = verdict.contradicted(run.streams, _path(run, limits))
    if odd is not None:
        return f"second try: in the first one rail {odd.rail} reported {odd.gbps or 0.0:.3f} Gb/s, and sent more"
    flow = together(run.samples)
    by_stamps = f"{verdict.overlap(run.streams).share:.0%} by their stamps"
    by_counters = f", {flow.share:.0%} by their counters" if flow else ""
    return f"second try: in the first one the streams had {by_stamps}{by_counters} of common time"


def leg_measurement(run: LegRun, limits: Limits, found: Sequence[Finding] = ()) -> dict[str, Any]:
    """One leg with everything it was judged by."""
    common, flow = verdict.overlap(run.streams), together(run.samples)
    complete = bool(run.streams) and all(stream.gbps is not None for stream in run.streams)
    far = run.peer or ({},) * len(run.lanes)
    own = run.own or ({},) * len(run.lanes)
    sampled_by_lane = run.samples or ((),) * len(run.lanes)
    rails = [
        {
            "rail": lane.rail,
            "netdev": lane.netdev,
            "rdma_device": lane.gid.rdma_device if lane.gid else None,
            "gid_index": lane.gid.index if lane.gid else None,
            "peer": lane.peer,
            "peer_address": lane.peer_address,
            "port": lane.port,
            "gbps": stream.gbps,
            "began": round(stream.began, 3),
            "ended": round(stream.ended, 3),
            "seconds": round(stream.seconds, 3),
            "speed_mbps": stream.speed_mbps,
            "counters": counted,
            "peer_counters": counted_there,
            "samples": [[round(taken.at - stream.began, 2), taken.sent, taken.received] for taken in sampled],
            "corrected_bit_error_rate": bit_error_rate(counted_there) if run.peer else None,
            "argv": list(done.argv),
            "rc": done.rc,
            "stdout": done.stdout,
            "stderr": done.stderr,
        }
        for lane, stream, done, counted, counted_there, sampled in zip(
            run.lanes, run.streams, run.done, own, far, sampled_by_lane, strict=True
        )
    ]
    return {
        "kind": run.leg.kind,
        "transport": limits.transport,
        "from": run.leg.source,
        "to": run.leg.target,
        "rails": rails,
        "sum_gbps": verdict.total(run.streams) if complete else None,
        "min_gbps": verdict.threshold(limits.of(run.leg), len(run.lanes)),
        "overlap_s": round(common.seconds, 3),
        "overlap_share": round(common.share, 4),
        "counters_together_share": round(flow.share, 4) if flow else None,
        "counters_together_s": round(flow.seconds, 3) if flow else None,
        "seconds": run.leg.seconds,
        "verdict": next((item.code for item in reversed(found) if item.severity != "note"), None),
        "tries": 1 if run.first is None else 2,
        "first_try": leg_measurement(run.first, limits) if run.first else None,
    }


def measurement(runs: Sequence[LegRun], judged: Mapping[Leg, Sequence[Finding]], limits: Limits) -> dict[str, Any]:
    """All that a node measured: its weakest one-way leg in front, every leg in ``directions``; empty without a stream.

    With several peers the weakest pair speaks for the cluster.
    """
    loaded = [leg_measurement(run, limits, judged.get(run.leg, ())) for run in runs if run.leg.kind != "latency"]
    if not loaded:
        return {}
    one_way = [item for item in loaded if item["kind"] != "both"] or loaded
    weakest = min(one_way, key=lambda item: item["sum_gbps"] or 0.0)
    worst = [item["verdict"] for item in loaded if item["verdict"] not in (None, "LINK_OK")]
    latency = [
        {"rail": lane.rail, "to": run.leg.target, "typical_us": typical}
        for run in runs
        for lane, typical in zip(run.lanes, run.latency_us, strict=False)
    ]
    return {**weakest, "verdict": worst[0] if worst else weakest["verdict"], "directions": loaded, "latency": latency}
