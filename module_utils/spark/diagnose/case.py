"""The evidence of a diagnosis with what follows from it at once, and what a cause is. Pure.

The evidence is one document: ``nodes`` (by name: ``read`` as diagnose.read returns it or None, ``silent`` why not,
``after`` counters once more, ``facts`` in part), ``runs`` (see diagnose.runs), ``min_gbps``,
``min_both_ways_gbps``, ``transport``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..findings import Finding, finding
from ..link.verdict import FULL_SPEED_MBPS, threshold
from ..plan.functions import CONNECTX_DRIVER

CERTAIN, LIKELY = 90, 60
# A loopback run below this share of what a rail must carry means the host.
LOOPBACK_SHARE = 0.5
LOST_SENDING = ("tx_discards_phy",)
LOST_RECEIVING = ("rx_discards_phy", "rx_out_of_buffer", "out_of_buffer")
PCIE_GTS, PCIE_WIDTH = 32.0, 4

TESTS = {
    "CAUSE_NODE_SILENT": "ssh from a machine beside the node, not over the VPN: if it answers, the path was the fault.",
    "CAUSE_NO_FUNCTION": "`lspci -d 15b3:` lists four functions once a cable was seen; none means the chip is hidden.",
    "CAUSE_NO_CARRIER": "A cable that lights the same port between two other machines rules the cable out.",
    "CAUSE_SWITCHED_OFF": "`ip link set DEV up`: a carrier within seconds rules it in.",
    "CAUSE_NO_ADDRESS": "Set the address by hand: the GID appears at once, and so does the connection.",
    "CAUSE_NO_RDMA_DEVICE": "`rdma link` after modprobe mlx5_ib shows the device.",
    "CAUSE_NO_GID": "The table in the bundle: exactly one RoCE v2 line may carry the rail's address.",
    "CAUSE_PCIE_WIDTH": "`sudo lspci -vv -s SLOT`: LnkSta must say Width x4 as LnkCap does.",
    "CAUSE_PCIE_SPEED": "`sudo lspci -vv -s SLOT`: LnkSta must say Speed 32GT/s; after a power drain it does.",
    "CAUSE_DEGRADED": "Loopback on each node: as slow as the link rules it in, at full rate rules that node out. A "
    "reboot that restores the rate proves it.",
    "CAUSE_HALF_BOTH_WAYS": "A bidirectional run after a power drain: twice one direction proves it was this.",
    "CAUSE_HOST_SLOW": "Loopback after a power drain with nothing else running.",
    "CAUSE_NOT_SENDING": "tx_bytes_phy of the sender against what the receiver counted: equal rules it in, more sent "
    "than received rules it out.",
    "CAUSE_DROPPING": "The counters named once more around a run: if they stand still, it is ruled out.",
    "CAUSE_CABLE": "rx_pcs_symbol_err_phy around a run with another cable.",
    "CAUSE_LINK_FLAPS": "`cat /sys/class/net/DEV/carrier_changes` before and after an hour.",
    "CAUSE_SPEED_LOW": "A cable that negotiates 200 Gb/s on the same ports.",
    "CAUSE_MTU_DIFFERS": "ping -M do -s (MTU - 28) on each rail in each direction.",
    "CAUSE_ONE_RAIL": "The same runs over both functions: twice the sum.",
    "CAUSE_SHAPED": "`tc -s qdisc show dev DEV`: its counters of dropped or delayed packets rise during a run.",
    "CAUSE_RAIL_SLOW": "A loopback run on each function: is the slow one slow alone as well?",
    "CAUSE_RDMA_ONLY": "The same run with the other kernel, or after a reboot of both.",
    "CAUSE_FILTER": "The same run with the filter off for a minute.",
    "CAUSE_TOOL_MISSING": "`ib_write_bw --version` prints a version (and exits 1).",
    "CAUSE_VERSIONS_DIFFER": "The same runs after both ends have the same version.",
    "UNKNOWN_CAUSE": "A reboot of both, then a power drain of both, then another cable: the first that helps tells.",
}


@dataclass(frozen=True)
class Cause:
    """A finding with how sure it is (0 to 100), and what would settle it."""

    finding: Finding
    score: int

    @property
    def likelihood(self) -> str:
        return "certain" if self.score >= CERTAIN else "likely" if self.score >= LIKELY else "possible"

    @property
    def test(self) -> str:
        return TESTS.get(self.finding.code, "")

    def as_dict(self) -> dict[str, Any]:
        return {**self.finding.as_dict(), "likelihood": self.likelihood, "score": self.score, "test": self.test}


class Case:
    """The evidence with what follows from it at once."""

    def __init__(self, evidence: Mapping[str, Any]) -> None:
        self.cluster = str(evidence["cluster"])
        self.nodes: Mapping[str, Mapping[str, Any]] = evidence["nodes"]
        self.runs: Sequence[Mapping[str, Any]] = evidence.get("runs") or ()
        self.min_gbps = float(evidence["min_gbps"])
        self.min_both_ways_gbps = float(evidence["min_both_ways_gbps"])
        self.transport = str(evidence.get("transport", "rdma"))
        self.reads = {name: node["read"] for name, node in self.nodes.items() if node.get("read")}

    def functions(self, node: str) -> list[Mapping[str, Any]]:
        """The functions that carry a rail."""
        return [item for item in self.reads.get(node, {}).get("functions", ()) if item["rail"] is not None]

    @cached_property
    def hardware(self) -> bool:
        return any(item["driver"] == CONNECTX_DRIVER for node in self.reads for item in self.functions(node))

    def done(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [run for run in self.runs if run["kind"] in kinds and run.get("sum_gbps") is not None]

    @property
    def between(self) -> list[Mapping[str, Any]]:
        """Runs over the link in one direction by the transport that serves."""
        return self.done("tcp" if self.transport == "tcp" else "write")

    @property
    def missed(self) -> bool:
        """Whether a direction was left out: then the others do not make a healthy link."""
        kind = "tcp" if self.transport == "tcp" else "write"
        return any(run.get("skipped") for run in self.runs if run["kind"] == kind)

    def needed(self, run: Mapping[str, Any]) -> float:
        least = self.min_both_ways_gbps if run["kind"] == "both" else self.min_gbps
        return threshold(least, len(run["rails"]))

    def slow(self, run: Mapping[str, Any]) -> bool:
        return float(run["sum_gbps"]) < self.needed(run)

    @property
    def failures(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        return [(run, rail) for run in self.runs for rail in run["rails"] if rail.get("failure")]

    @cached_property
    def slow_runs(self) -> list[Mapping[str, Any]]:
        return [run for run in self.between if self.slow(run)]

    @cached_property
    def slow_loopback(self) -> dict[str, float]:
        """Nodes that are slow within themselves, with their slowest rail's rate."""
        found: dict[str, float] = {}
        for run in self.done("loopback"):
            rates = [float(rail["gbps"]) for rail in run["rails"] if rail.get("gbps") is not None]
            if rates and min(rates) < LOOPBACK_SHARE * self.min_gbps / 2:
                found[str(run["from"])] = min(min(rates), found.get(str(run["from"]), min(rates)))
        return found

    @cached_property
    def good_loopback(self) -> list[str]:
        return [str(run["from"]) for run in self.done("loopback") if str(run["from"]) not in self.slow_loopback]

    @cached_property
    def bad(self) -> bool:
        # A round trip that failed alone is a busy machine's; a link that is bad fails more than that.
        failed = any(run["kind"] != "latency" for run, _ in self.failures)
        return bool(self.slow_runs or self.slow_loopback or failed)

    def moved(self, node: str, netdev: str, *names: str) -> dict[str, int]:
        """How far counters of a function rose between the first and the last look."""
        before: Mapping[str, int] = next((f["counters"] for f in self.functions(node) if f["netdev"] == netdev), {})
        after = (self.nodes[node].get("after") or {}).get("counters", {}).get(netdev, {})
        told = {name: after[name] - before[name] for name in names if name in before and name in after}
        return {name: value for name, value in told.items() if value > 0}

    def lost(self, run: Mapping[str, Any]) -> list[tuple[str, str, dict[str, int]]]:
        """Which end of a run lost frames, on which function, by which counters."""
        found = []
        for rail in run["rails"]:
            for node, side, names in (
                (run["from"], rail.get("here") or {}, LOST_SENDING),
                (run["to"], rail.get("there") or {}, LOST_RECEIVING),
            ):
                counted = {name: side[name] for name in names if side.get(name, 0) > 0}
                if counted:
                    found.append((str(node), str(rail["netdev"]), counted))
        return found

    def sent_gbps(self, run: Mapping[str, Any]) -> float | None:
        """What left the sender's port. Both functions sit on one port: equal totals may be one total, counted twice."""
        deltas = [rail["here"].get("tx_bytes_phy") for rail in run["rails"] if rail.get("here")]
        known = [int(delta) for delta in deltas if delta is not None]
        if not known or not run.get("seconds"):
            return None
        once = len(known) > 1 and max(known) - min(known) < 0.01 * max(known)
        return (max(known) if once else sum(known)) * 8 / float(run["seconds"]) / 1e9


def suspect(
    score: int, code: str, *, node: str, found: str, expected: str, because: Iterable[str] = (), **fields: Any
) -> Cause:
    made = finding(code, node=node, found=found, expected=expected, evidence=because, **fields)
    return Cause(made if score >= LIKELY or made.severity != "fatal" else replace(made, severity="warn"), score)


def rate_line(run: Mapping[str, Any]) -> str:
    rates = " + ".join(number(rail.get("gbps")) for rail in run["rails"])
    total = f" = {number(run['sum_gbps'])}" if len(run["rails"]) > 1 else ""
    return f"{run['kind']} {run['from']} to {run['to']}: {rates}{total} Gb/s"


def number(gbps: Any) -> str:
    value = float(gbps or 0)
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def full_speed(run: Mapping[str, Any]) -> bool:
    return all((rail.get("speed_mbps") or 0) >= FULL_SPEED_MBPS for rail in run["rails"])


def differences(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Versions that are not the same on all nodes that were read."""
    told = {name: node["read"]["versions"] for name, node in nodes.items() if node.get("read")}
    names = sorted({name for versions in told.values() for name in versions})
    table = {name: {node: versions.get(name, "unknown") for node, versions in told.items()} for name in names}
    return {name: row for name, row in table.items() if len(set(row.values())) > 1}
