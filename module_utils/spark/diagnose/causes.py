"""From what two nodes said and measured to causes, the likeliest first. Pure.

The evidence is one document: ``nodes`` (by name: ``read`` as diagnose.read returns it or None, ``silent`` why not,
``after`` counters once more, ``facts`` in part), ``runs`` (see diagnose.runs), ``min_gbps``, ``transport``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..findings import Finding, finding
from ..link.verdict import DEGRADED_GBPS, FULL_SPEED_MBPS, threshold
from ..plan.functions import CONNECTX_DRIVER

CERTAIN, LIKELY = 90, 60
# A rail below this share of the other one is a rail of its own kind.
UNEQUAL = 0.5
# A loopback run below this share of what a rail must carry means the host.
LOOPBACK_SHARE = 0.5
# Both directions together carry about twice what one does; the known fault stays below this.
BOTH_WAYS = 1.4
# What left the port may exceed the payload by headers and what else runs.
SENT_MARGIN = 1.5
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


@dataclass(frozen=True)
class Diagnosis:
    """``state`` is healthy, sick, or unmeasured: no run says that the link is good or bad."""

    state: str
    causes: tuple[Cause, ...]
    ruled_out: tuple[str, ...]
    not_done: tuple[str, ...]
    remarks: tuple[Finding, ...] = ()

    def findings(self) -> list[Finding]:
        return [*(cause.finding for cause in self.causes), *self.remarks]


class Case:
    """The evidence with what follows from it at once."""

    def __init__(self, evidence: Mapping[str, Any]) -> None:
        self.cluster = str(evidence["cluster"])
        self.nodes: Mapping[str, Mapping[str, Any]] = evidence["nodes"]
        self.runs: Sequence[Mapping[str, Any]] = evidence.get("runs") or ()
        self.min_gbps = float(evidence["min_gbps"])
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

    def needed(self, run: Mapping[str, Any]) -> float:
        return threshold(self.min_gbps, len(run["rails"]))

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
        return bool(self.slow_runs or self.slow_loopback or self.failures)

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


def diagnose(evidence: Mapping[str, Any]) -> Diagnosis:
    """Rank what can explain the evidence; nothing is named that nothing points to."""
    case = Case(evidence)
    causes = [cause for rule in RULES for cause in rule(case)]
    causes = [_weighed(cause, causes) for cause in causes]
    if case.bad and not any(cause.score >= LIKELY for cause in causes):
        causes.append(_unknown(case))
    causes.sort(key=lambda cause: -cause.score)
    sick = case.bad or any(cause.score >= LIKELY for cause in causes)
    state = "sick" if sick else "healthy" if case.between else "unmeasured"
    remarks = list(_not_loaded(case))
    if state == "healthy":
        remarks.append(_healthy(case))
    return Diagnosis(state, tuple(causes), tuple(ruled_out(case, state)), tuple(not_done(case)), tuple(remarks))


def _weighed(cause: Cause, causes: Sequence[Cause]) -> Cause:
    """A fault that is seen explains what is only inferred from a rate, and leaves it a possibility."""
    inferred = ("CAUSE_DEGRADED", "CAUSE_HOST_SLOW", "CAUSE_NOT_SENDING", "CAUSE_RAIL_SLOW", "CAUSE_HALF_BOTH_WAYS")
    seen = ("CAUSE_PCIE_WIDTH", "CAUSE_PCIE_SPEED", "CAUSE_SHAPED", "CAUSE_CABLE", "CAUSE_LINK_FLAPS")
    if cause.finding.code in inferred and any(other.finding.code in seen for other in causes):
        return replace(cause, score=min(cause.score, LIKELY - 10), finding=replace(cause.finding, severity="warn"))
    return cause


def _cause(
    score: int, code: str, *, node: str, found: str, expected: str, because: Iterable[str] = (), **fields: Any
) -> Cause:
    made = finding(code, node=node, found=found, expected=expected, evidence=because, **fields)
    return Cause(made if score >= LIKELY or made.severity != "fatal" else replace(made, severity="warn"), score)


# --- what is simply seen ---------------------------------------------------------------------------------------------


def _silent(case: Case) -> Iterator[Cause]:
    for name, node in case.nodes.items():
        if node.get("read"):
            continue
        reached = [
            (other, answer)
            for other, read in case.reads.items()
            for answer in read["answers"]
            if answer["peer"] == name and answer["reached"]
        ]
        told = [f"{other} reaches it at {answer['address']} on {answer['netdev']}" for other, answer in reached]
        address = node.get("management_address") or name
        yield _cause(
            99,
            "CAUSE_NODE_SILENT",
            node=name,
            found=str(node.get("silent") or "it did not answer"),
            expected="a login over ssh",
            because=told or ["no other node reaches it on a rail either"],
            address=address,
            way=f" Or through its peer: ssh -J {reached[0][0]} {reached[0][1]['address']}" if reached else "",
        )


def _functions(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        if not case.functions(name):
            yield _cause(
                97,
                "CAUSE_NO_FUNCTION",
                node=name,
                found="no function that could carry a rail",
                expected="two functions of the cabled port",
                because=[f"ConnectX functions: {', '.join(_names(case.reads[name])) or 'none'}"],
            )
        for item in case.functions(name):
            yield from _function(case, name, item)


def _names(read: Mapping[str, Any]) -> list[str]:
    return [str(item["netdev"]) for item in read["functions"]]


def _function(case: Case, name: str, item: Mapping[str, Any]) -> Iterator[Cause]:
    netdev, rail = item["netdev"], item["rail"]
    if not item["exists"]:
        yield _cause(
            98,
            "CAUSE_NO_FUNCTION",
            node=name,
            found=f"there is no interface {netdev}",
            expected=f"the function of rail {rail}",
            because=[f"ConnectX functions: {', '.join(_names(case.reads[name]))}"],
        )
        return
    if not item["admin_up"]:
        found, expected = f"{netdev} is administratively down", "UP"
        yield _cause(98, "CAUSE_SWITCHED_OFF", node=name, found=found, expected=expected, netdev=netdev)
        return
    if not item["carrier"]:
        off = [
            f"{other} has {peer['netdev']} switched off"
            for other in case.reads
            if other != name
            for peer in case.functions(other)
            if peer["rail"] == rail and peer["exists"] and not peer["admin_up"]
        ]
        yield _cause(
            40 if off else 97,
            "CAUSE_NO_CARRIER",
            node=name,
            found=f"{netdev} has no carrier",
            expected="a carrier on every rail",
            because=off or [f"{item['carrier_changes']} changes of the carrier since boot", *_ends(case, name, rail)],
            netdev=netdev,
        )
        return
    if item["address"] not in item["addresses"]:
        yield _cause(
            96,
            "CAUSE_NO_ADDRESS",
            node=name,
            found=f"{netdev} has {', '.join(item['addresses']) or 'no IPv4 address'}",
            expected=item["address"],
            netdev=netdev,
            address=item["address"],
        )
    elif case.transport == "rdma" and not item["rdma_device"]:
        found, expected = f"{netdev} has no RDMA device", "one for each rail"
        yield _cause(96, "CAUSE_NO_RDMA_DEVICE", node=name, found=found, expected=expected)
    elif case.transport == "rdma" and item["rail"] not in {gid["rail"] for gid in case.reads[name]["gids"]}:
        told = next((x for x in case.reads[name]["gids_wrong"] if str(item["rdma_device"]) in x["found"]), None)
        yield _cause(
            95,
            "CAUSE_NO_GID",
            node=name,
            found=told["found"] if told else f"no entry of {item['rdma_device']} for {item['address']}",
            expected="exactly one RoCE v2 entry",
            because=told["table"] if told else (),
            netdev=netdev,
        )


def _ends(case: Case, name: str, rail: int) -> list[str]:
    return [
        f"{other}: {item['netdev']} carrier {int(item['carrier'])}"
        for other in case.reads
        if other != name
        for item in case.functions(other)
        if item["rail"] == rail
    ]


def _pcie(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            link = item.get("pcie") or {}
            width, speed = link.get("width"), link.get("speed_gts")
            shown = f"{item['netdev']} ({item['pci']}): {speed} GT/s x{width}"
            expected = f"{link.get('capable_gts') or PCIE_GTS} GT/s x{link.get('capable_width') or PCIE_WIDTH}"
            told = [f"LnkCap {expected}, LnkSta {speed} GT/s x{width}"]
            if width is not None and width < (link.get("capable_width") or PCIE_WIDTH):
                yield _cause(96, "CAUSE_PCIE_WIDTH", node=name, found=shown, expected=expected, because=told)
            if speed is not None and speed < (link.get("capable_gts") or PCIE_GTS):
                yield _cause(96, "CAUSE_PCIE_SPEED", node=name, found=shown, expected=expected, because=told)


def _speed(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            speed = item["speed_mbps"]
            if item["driver"] == CONNECTX_DRIVER and item["carrier"] and speed and speed < FULL_SPEED_MBPS:
                yield _cause(
                    88 if case.bad else LIKELY,
                    "CAUSE_SPEED_LOW",
                    node=name,
                    found=f"{item['netdev']} negotiated {speed} Mb/s",
                    expected=f"{FULL_SPEED_MBPS} Mb/s",
                    because=[f"cable: {_cable(item)}"],
                    netdev=item["netdev"],
                )


def _cable(item: Mapping[str, Any]) -> str:
    cable = item.get("cable") or {}
    return " ".join(str(cable[key]) for key in ("vendor", "part", "kind", "length") if cable.get(key)) or "unreadable"


def _mtu(case: Case) -> Iterator[Cause]:
    sizes: dict[int, dict[str, int]] = {}
    for name in case.reads:
        for item in case.functions(name):
            if item["exists"] and item["mtu"]:
                sizes.setdefault(item["rail"], {})[name] = item["mtu"]
    for rail, found in sizes.items():
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{node} {mtu}" for node, mtu in found.items())
            yield _cause(92, "CAUSE_MTU_DIFFERS", node=case.cluster, found=f"rail {rail}: {shown}", expected="one MTU")
            return
    for name, read in case.reads.items():
        for answer in read["answers"]:
            if answer["reached"] and answer["full_size"] is False:
                yield _cause(
                    91,
                    "CAUSE_MTU_DIFFERS",
                    node=name,
                    found=f"{answer['netdev']} to {answer['address']}: small frames pass, full ones do not",
                    expected="frames of full size",
                )


def _one_rail(case: Case) -> Iterator[Cause]:
    counts = {name: len(case.functions(name)) for name in case.reads}
    if counts and max(counts.values()) == 1:
        yield _cause(
            LIKELY - 5,
            "CAUSE_ONE_RAIL",
            node=case.cluster,
            found="one function on each node carries a rail",
            expected="both functions of the cabled port",
        )


def _shaped(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            if item["qdisc"]:
                yield _cause(
                    95 if case.bad else LIKELY,
                    "CAUSE_SHAPED",
                    node=name,
                    found=f"{item['netdev']}: {item['qdisc'][0]}",
                    expected="the default queue",
                    because=item["qdisc"],
                    netdev=item["netdev"],
                )


def _errors(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            wrong = case.moved(name, item["netdev"], "rx_pcs_symbol_err_phy", "rx_symbol_err_phy", "rx_crc_errors_phy")
            if wrong:
                yield _cause(
                    93,
                    "CAUSE_CABLE",
                    node=name,
                    found=", ".join(f"{item['netdev']} {key} +{value}" for key, value in wrong.items()),
                    expected="counters that stand still",
                    because=[f"cable: {_cable(item)}", *_corrected(case, name, item)],
                )
            after = (case.nodes[name].get("after") or {}).get("carrier_changes", {}).get(item["netdev"])
            if after is not None and after > item["carrier_changes"]:
                yield _cause(
                    94,
                    "CAUSE_LINK_FLAPS",
                    node=name,
                    found=f"{item['netdev']}: {after - item['carrier_changes']} changes of the carrier during the runs",
                    expected="a carrier that stays",
                )


def _corrected(case: Case, name: str, item: Mapping[str, Any]) -> list[str]:
    bits = case.moved(name, item["netdev"], "rx_corrected_bits_phy")
    return [f"{key} +{value}: corrected, and normal" for key, value in bits.items()]


def _tool(case: Case) -> Iterator[Cause]:
    for name, read in case.reads.items():
        if case.transport == "rdma" and read["versions"].get("perftest") == "not installed":
            found, expected = "no program ib_write_bw", "perftest"
            yield _cause(90, "CAUSE_TOOL_MISSING", node=name, found=found, expected=expected)


# --- what follows from rates -----------------------------------------------------------------------------------------


def _rate(run: Mapping[str, Any]) -> str:
    rates = " + ".join(_number(rail.get("gbps")) for rail in run["rails"])
    total = f" = {_number(run['sum_gbps'])}" if len(run["rails"]) > 1 else ""
    return f"{run['kind']} {run['from']} to {run['to']}: {rates}{total} Gb/s"


def _number(gbps: Any) -> str:
    value = float(gbps or 0)
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _full_speed(case: Case, run: Mapping[str, Any]) -> bool:
    return all((rail.get("speed_mbps") or 0) >= FULL_SPEED_MBPS for rail in run["rails"])


def _class(case: Case, run: Mapping[str, Any]) -> bool:
    """The known degraded band, at full negotiated speed, both rails alike."""
    low, high = (bound * len(run["rails"]) / 2 for bound in DEGRADED_GBPS)
    rates = [float(rail["gbps"]) for rail in run["rails"]]
    alike = min(rates) >= UNEQUAL * max(rates)
    return alike and low <= float(run["sum_gbps"]) <= high and _full_speed(case, run)


def _degraded(case: Case) -> Iterator[Cause]:
    runs = [run for run in case.done("write") if _class(case, run)]
    alone = {node: rate for node, rate in case.slow_loopback.items() if rate * 2 <= DEGRADED_GBPS[1]}
    if not runs:
        return
    score = 70
    because = [_rate(run) for run in runs]
    if alone:
        score += 15
        because += [
            f"loopback on {node}: {_number(rate)} Gb/s with the cable out of the path" for node, rate in alone.items()
        ]
    elif case.good_loopback:
        # One report only ties the state to a slow loopback, so a fast one weakens the suspicion and does not end it.
        score -= 10
        because += [f"loopback on {node} is at full rate, which speaks against it" for node in case.good_loopback]
    clean = [run for run in runs if case.sent_gbps(run) is not None and not case.lost(run)]
    for run in clean[:1]:
        score += 5
        because.append(f"{run['from']} sent {_number(case.sent_gbps(run))} Gb/s on the wire and lost nothing")
    because += [f"{_rate(run)}: over TCP as slow" for run in case.done("tcp") if run["sum_gbps"] < DEGRADED_GBPS[1]]
    plugged = {name: read["hot_plugs"] for name, read in case.reads.items() if read["hot_plugs"]}
    if plugged:
        score += 5
        because += [f"{name}: {lines[-1]}" for name, lines in plugged.items()]
    node = next(iter(alone)) if len(alone) == 1 else case.cluster
    yield _cause(
        min(score, 97),
        "CAUSE_DEGRADED",
        node=node,
        found=_rate(runs[0]),
        expected=f"at least {_number(case.needed(runs[0]))} Gb/s at {FULL_SPEED_MBPS} Mb/s",
        because=because,
    )


def _half_both_ways(case: Case) -> Iterator[Cause]:
    if not case.hardware:
        return
    for run in case.done("both"):
        alone = [
            float(other["sum_gbps"])
            for other in case.done("write")
            if {other["from"], other["to"]} == {run["from"], run["to"]}
        ]
        if (
            alone
            and not any(case.slow(other) for other in case.done("write"))
            and run["sum_gbps"] < BOTH_WAYS * max(alone)
        ):
            yield _cause(
                91,
                "CAUSE_HALF_BOTH_WAYS",
                node=case.cluster,
                found=_rate(run),
                expected=f"about twice {_number(max(alone))} Gb/s, what one direction carries",
                because=[_rate(other) for other in case.done("write")],
            )


def _host_slow(case: Case) -> Iterator[Cause]:
    degraded = any(_class(case, run) for run in case.done("write"))
    for node, rate in case.slow_loopback.items():
        yield _cause(
            50 if degraded else 82,
            "CAUSE_HOST_SLOW",
            node=node,
            found=f"loopback {_number(rate)} Gb/s",
            expected=f"at least {_number(LOOPBACK_SHARE * case.min_gbps / 2)} Gb/s",
            because=[_rate(run) for run in [*case.done("loopback"), *case.between] if node in (run["from"], run["to"])],
        )


def _not_sending(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs:
        sent = case.sent_gbps(run)
        if sent is None or case.lost(run) or sent > SENT_MARGIN * float(run["sum_gbps"]):
            continue
        yield _cause(
            55 if any(_class(case, other) for other in case.done("write")) else 65,
            "CAUSE_NOT_SENDING",
            node=str(run["from"]),
            found=f"{_number(sent)} Gb/s left the port for {_number(run['sum_gbps'])} Gb/s of data, no discards",
            expected=f"at least {_number(case.needed(run))} Gb/s",
            because=[_rate(run)],
        )


def _dropping(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs:
        for node, netdev, counted in case.lost(run):
            side = "sender" if node == run["from"] else "receiver"
            yield _cause(
                78,
                "CAUSE_DROPPING",
                node=node,
                found=f"{netdev}, the {side}: " + ", ".join(f"{key} +{value}" for key, value in counted.items()),
                expected="counters that stand still",
                because=[_rate(run)],
                netdev=netdev,
            )


def _rail_slow(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs[:1]:
        rates = {rail["netdev"]: float(rail["gbps"]) for rail in run["rails"]}
        if len(rates) > 1 and min(rates.values()) < UNEQUAL * max(rates.values()):
            slowest = min(rates, key=lambda name: rates[name])
            alone = [f"loopback on {node}: {_number(rate)} Gb/s" for node, rate in case.slow_loopback.items()]
            yield _cause(
                80,
                "CAUSE_RAIL_SLOW",
                node=str(run["from"]),
                found=f"{slowest}: {_number(rates[slowest])} of {_number(run['sum_gbps'])} Gb/s",
                expected="about equal rates on both rails",
                because=[_rate(run), *alone],
            )


def _rdma_only(case: Case) -> Iterator[Cause]:
    good = [run for run in case.done("tcp") if run["sum_gbps"] >= LOOPBACK_SHARE * case.needed(run)]
    memory = [(run, rail) for run, rail in case.failures if rail["failure"]["kind"] == "memory_lock"]
    refused = [
        (run, rail)
        for run, rail in case.failures
        if run["kind"] != "tcp" and rail["failure"]["kind"] in ("completion_error", "memory_lock", "gid_unusable")
    ]
    slow = (
        [run for run in case.done("write") if case.slow(run) and run["sum_gbps"] < 0.5 * good[0]["sum_gbps"]]
        if good
        else []
    )
    if case.transport != "rdma" or not (memory or (good and (refused or slow))):
        return
    failed = [*memory, *refused]
    run = failed[0][0] if failed else slow[0]
    said = failed[0][1]["failure"] if failed else None
    yield _cause(
        92 if memory else 72,
        "CAUSE_RDMA_ONLY",
        node=str(run["from"]),
        found=f"{run['kind']} to {run['to']}: {said['meaning']}" if said else _rate(run),
        expected="RDMA as fast as TCP, or faster",
        because=[*(said["evidence"] if said else ()), *map(_rate, good)],
    )


def _filter(case: Case) -> Iterator[Cause]:
    for run, rail in case.failures:
        if rail["failure"]["kind"] not in ("no_server", "timed_out"):
            continue
        reached = any(
            answer["reached"] and answer["peer"] == run["to"] and answer["rail"] == rail["rail"]
            for answer in case.reads.get(str(run["from"]), {}).get("answers", ())
        )
        wall = (case.nodes.get(str(run["to"]), {}).get("facts") or {}).get("firewall") or {}
        if reached and wall.get("active"):
            yield _cause(
                86,
                "CAUSE_FILTER",
                node=str(run["to"]),
                found=f"ping answers on {rail['netdev']} and the connection does not: {rail['failure']['meaning']}",
                expected="connections between the rails' addresses",
                because=wall.get("evidence") or (),
                netdev=rail["netdev"],
            )
            return


def _versions(case: Case) -> Iterator[Cause]:
    different = differences(case.nodes)
    if case.bad and different:
        yield _cause(
            35,
            "CAUSE_VERSIONS_DIFFER",
            node=case.cluster,
            found=", ".join(different),
            expected="the same on every node",
            because=[f"{what}: " + ", ".join(f"{n} {v}" for n, v in told.items()) for what, told in different.items()],
        )


def differences(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Versions that are not the same on all nodes that were read."""
    told = {name: node["read"]["versions"] for name, node in nodes.items() if node.get("read")}
    names = sorted({name for versions in told.values() for name in versions})
    table = {name: {node: versions.get(name, "unknown") for node, versions in told.items()} for name in names}
    return {name: row for name, row in table.items() if len(set(row.values())) > 1}


Rule = Callable[[Case], Iterator[Cause]]
RULES: tuple[Rule, ...] = (
    *(_silent, _functions, _pcie, _speed, _mtu, _one_rail, _shaped, _errors, _tool),
    *(_degraded, _half_both_ways, _host_slow, _not_sending, _dropping, _rail_slow, _rdma_only, _filter, _versions),
)


# --- what is left ----------------------------------------------------------------------------------------------------


def _unknown(case: Case) -> Cause:
    told = [_rate(run) for run in case.slow_runs]
    told += [
        f"{run['kind']} {run['from']} to {run['to']}, {rail['netdev']}: {rail['failure']['meaning']}"
        for run, rail in case.failures
    ]
    lines = [line for _, rail in case.failures for line in rail["failure"].get("evidence", ())]
    return _cause(
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
        found=_rate(worst),
        expected=f"at least {_number(case.needed(worst))} Gb/s",
        evidence=[_rate(run) for run in runs],
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
            if link.get("width") and (link["width"], link["speed_gts"]) >= (PCIE_WIDTH, PCIE_GTS):
                yield f"{name} {item['netdev']}: PCIe. {link['speed_gts']:g} GT/s x{link['width']} is all it has."
        if case.reads[name]["power_lines"]:
            yield f"{name}: the kernel's line about slot power (27W). Healthy Sparks print it too."
    if state == "sick":
        for run in case.runs:
            slowest = max((rail["latency_us"] for rail in run["rails"] if rail.get("latency_us")), default=None)
            if run["kind"] == "latency" and slowest is not None:
                yield f"Latency of {slowest:.2f} us: one small message says nothing about throughput."
        if any(_full_speed(case, run) for run in case.slow_runs):
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
