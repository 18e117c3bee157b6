"""From what two nodes said and measured to causes, the likeliest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..findings import Finding, finding
from ..link.verdict import FULL_SPEED_MBPS
from . import rates, seen
from .case import LIKELY, PCIE_GTS, PCIE_WIDTH, Case, Cause, full_speed, number, rate_line, suspect


@dataclass(frozen=True)
class Diagnosis:
    """``state`` is healthy, sick, or unmeasured: not every direction was run, and none was bad."""

    state: str
    causes: tuple[Cause, ...]
    ruled_out: tuple[str, ...]
    not_done: tuple[str, ...]
    remarks: tuple[Finding, ...] = ()

    def findings(self) -> list[Finding]:
        return [*(cause.finding for cause in self.causes), *self.remarks]


def diagnose(evidence: Mapping[str, Any]) -> Diagnosis:
    """Rank what can explain the evidence; nothing is named that nothing points to."""
    case = Case(evidence)
    causes = [found for rule in (*seen.RULES, *rates.RULES) for found in rule(case)]
    causes = [_weighed(found, causes) for found in causes]
    if case.bad and not any(cause.score >= LIKELY for cause in causes):
        causes.append(_unknown(case))
    causes.sort(key=lambda cause: -cause.score)
    sick = case.bad or any(cause.score >= LIKELY for cause in causes)
    state = "sick" if sick else "healthy" if case.between and not case.missed else "unmeasured"
    remarks = list(_not_loaded(case))
    if state == "healthy":
        remarks.append(_healthy(case))
    return Diagnosis(state, tuple(causes), tuple(ruled_out(case, state)), tuple(not_done(case)), tuple(remarks))


def _weighed(cause: Cause, causes: Sequence[Cause]) -> Cause:
    """A fault that is seen explains what is only inferred from a rate, and leaves it a possibility."""
    inferred = ("CAUSE_DEGRADED", "CAUSE_HOST_SLOW", "CAUSE_NOT_SENDING", "CAUSE_RAIL_SLOW", "CAUSE_HALF_BOTH_WAYS")
    plain = ("CAUSE_PCIE_WIDTH", "CAUSE_PCIE_SPEED", "CAUSE_SHAPED", "CAUSE_CABLE", "CAUSE_LINK_FLAPS")
    if cause.finding.code in inferred and any(other.finding.code in plain for other in causes):
        return replace(cause, score=min(cause.score, LIKELY - 10), finding=replace(cause.finding, severity="warn"))
    return cause


def _unknown(case: Case) -> Cause:
    told = [rate_line(run) for run in case.slow_runs]
    told += [
        f"{run['kind']} {run['from']} to {run['to']}, {rail['netdev']}: {rail['failure']['meaning']}"
        for run, rail in case.failures
    ]
    lines = [line for _, rail in case.failures for line in rail["failure"].get("evidence", ())]
    return suspect(
        LIKELY,
        "UNKNOWN_CAUSE",
        node=case.cluster,
        found=told[0] if told else "a run failed",
        expected=f"at least {case.min_gbps:g} Gb/s",
        because=[*told[1:], *lines][:10],
        attach="the bundle of this diagnosis",
    )


def _healthy(case: Case) -> Finding:
    runs = [*case.between, *case.done("both"), *case.done("loopback")]
    worst = min(case.between, key=lambda run: float(run["sum_gbps"]))
    return finding(
        "DIAGNOSIS_HEALTHY",
        node=case.cluster,
        found=rate_line(worst),
        expected=f"at least {number(case.needed(worst))} Gb/s",
        evidence=[rate_line(run) for run in runs],
    )


def _not_loaded(case: Case) -> Iterator[Finding]:
    serving = {name: read["serving"] for name, read in case.reads.items() if read["serving"]}
    if serving:
        yield finding(
            "DIAGNOSIS_NOT_LOADED",
            node=case.cluster,
            found="; ".join(f"{name}: {reason}" for name, reason in serving.items()),
            expected="runs while nothing is served",
        )


def ruled_out(case: Case, state: str) -> Iterator[str]:
    """What looks like a cause and is none, with the reason; and what is in order."""
    for name in case.reads:
        for item in case.functions(name):
            symbols = item["counters"].get("rx_pcs_symbol_err_phy")
            errors = case.moved(name, item["netdev"], "rx_pcs_symbol_err_phy", "rx_symbol_err_phy", "rx_crc_errors_phy")
            if symbols is not None and not errors and case.between:
                bits = case.moved(name, item["netdev"], "rx_corrected_bits_phy").get("rx_corrected_bits_phy", 0)
                normal = f"; {bits} corrected bits are normal" if bits else ""
                yield f"{name} {item['netdev']}: the cable. No uncorrected symbol{normal}."
            cable = item.get("cable")
            if cable and cable.get("part") and not cable.get("listed"):
                yield f"{name} {item['netdev']}: cable {cable['part']}, not a listed one. Such a one reached 185 Gb/s."
            link = item.get("pcie") or {}
            if (link.get("width") or 0) >= PCIE_WIDTH and (link.get("speed_gts") or 0) >= PCIE_GTS:
                yield f"{name} {item['netdev']}: PCIe. {link['speed_gts']:g} GT/s x{link['width']} is all it has."
        if case.reads[name]["power_lines"]:
            yield f"{name}: the kernel's line about slot power (27W). Healthy Sparks print it too."
    if state == "sick":
        for run in case.runs:
            slowest = max((rail["latency_us"] for rail in run["rails"] if rail.get("latency_us")), default=None)
            if run["kind"] == "latency" and slowest is not None:
                yield f"Latency of {slowest:.2f} us: one small message says nothing about throughput."
        if any(full_speed(run) for run in case.slow_runs):
            yield f"{FULL_SPEED_MBPS} Mb/s negotiated: what the ends agreed on, not what they carry."
        if case.slow_runs and not any(case.lost(run) for run in case.slow_runs) and case.hardware:
            yield "Loss on the path: no counter of discards moved."
    for node in case.good_loopback:
        yield f"{node} by itself: its loopback runs at the rate that a rail needs."


def not_done(case: Case) -> Iterator[str]:
    for run in case.runs:
        if run.get("skipped"):
            yield f"{run['kind']} {run['from']} to {run['to']}: {run['skipped']}"
    for name, read in case.reads.items():
        for what, why in sorted(read["unread"].items()):
            yield f"{name}: `{what}`: {why}"
