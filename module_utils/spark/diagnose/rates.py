"""Causes that follow from rates, counters and failures of the runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..link.verdict import DEGRADED_GBPS, FULL_SPEED_MBPS
from .case import LOOPBACK_SHARE, Case, Cause, differences, full_speed, number, rate_line, suspect

# A rail below this share of the other one is a rail of its own kind.
UNEQUAL = 0.5
# Both directions together carry about twice what one does; the known fault stays below this.
BOTH_WAYS = 1.4
# What left the port may exceed the payload by headers and what else runs.
SENT_MARGIN = 1.5


def _class(case: Case, run: Mapping[str, Any]) -> bool:
    """The known degraded band, at full negotiated speed, both rails alike."""
    low, high = (bound * len(run["rails"]) / 2 for bound in DEGRADED_GBPS)
    rates = [float(rail["gbps"]) for rail in run["rails"]]
    alike = min(rates) >= UNEQUAL * max(rates)
    return alike and low <= float(run["sum_gbps"]) <= high and full_speed(run)


def _degraded(case: Case) -> Iterator[Cause]:
    runs = [run for run in case.done("write") if _class(case, run)]
    alone = {node: rate for node, rate in case.slow_loopback.items() if rate * 2 <= DEGRADED_GBPS[1]}
    if not runs:
        return
    score = 70
    because = [rate_line(run) for run in runs]
    if alone:
        score += 15
        because += [
            f"loopback on {node}: {number(rate)} Gb/s with the cable out of the path" for node, rate in alone.items()
        ]
    elif case.good_loopback:
        # One report only ties the state to a slow loopback, so a fast one weakens the suspicion and does not end it.
        score -= 10
        because += [f"loopback on {node} is at full rate, which speaks against it" for node in case.good_loopback]
    clean = [run for run in runs if case.sent_gbps(run) is not None and not case.lost(run)]
    for run in clean[:1]:
        score += 5
        because.append(f"{run['from']} sent {number(case.sent_gbps(run))} Gb/s on the wire and lost nothing")
    because += [f"{rate_line(run)}: over TCP as slow" for run in case.done("tcp") if run["sum_gbps"] < DEGRADED_GBPS[1]]
    plugged = {name: read["hot_plugs"] for name, read in case.reads.items() if read["hot_plugs"]}
    if plugged:
        score += 5
        because += [f"{name}: {lines[-1]}" for name, lines in plugged.items()]
    node = next(iter(alone)) if len(alone) == 1 else case.cluster
    yield suspect(
        min(score, 97),
        "CAUSE_DEGRADED",
        node=node,
        found=rate_line(runs[0]),
        expected=f"at least {number(case.needed(runs[0]))} Gb/s at {FULL_SPEED_MBPS} Mb/s",
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
            and case.slow(run)
            and run["sum_gbps"] < BOTH_WAYS * max(alone)
        ):
            yield suspect(
                91,
                "CAUSE_HALF_BOTH_WAYS",
                node=case.cluster,
                found=rate_line(run),
                expected=f"at least {number(case.needed(run))} Gb/s; one direction carries {number(max(alone))}",
                because=[rate_line(other) for other in case.done("write")],
            )


def _ends(run: Mapping[str, Any]) -> tuple[str, str]:
    return str(run["from"]), str(run["to"])


def _host_slow(case: Case) -> Iterator[Cause]:
    degraded = any(_class(case, run) for run in case.done("write"))
    for node, rate in case.slow_loopback.items():
        yield suspect(
            50 if degraded else 82,
            "CAUSE_HOST_SLOW",
            node=node,
            found=f"loopback {number(rate)} Gb/s",
            expected=f"at least {number(LOOPBACK_SHARE * case.min_gbps / 2)} Gb/s",
            because=[
                rate_line(run) for run in [*case.done("loopback"), *case.between] if node in (run["from"], run["to"])
            ],
        )


def _not_sending(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs:
        sent = case.sent_gbps(run)
        if sent is None or case.lost(run) or sent > SENT_MARGIN * float(run["sum_gbps"]):
            continue
        yield suspect(
            55 if any(_class(case, other) for other in case.done("write")) else 65,
            "CAUSE_NOT_SENDING",
            node=str(run["from"]),
            found=f"{number(sent)} Gb/s left the port for {number(run['sum_gbps'])} Gb/s of data, no discards",
            expected=f"at least {number(case.needed(run))} Gb/s",
            because=[rate_line(run)],
        )


def _dropping(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs:
        for node, netdev, counted in case.lost(run):
            side = "sender" if node == run["from"] else "receiver"
            yield suspect(
                78,
                "CAUSE_DROPPING",
                node=node,
                found=f"{netdev}, the {side}: " + ", ".join(f"{key} +{value}" for key, value in counted.items()),
                expected="counters that stand still",
                because=[rate_line(run)],
                netdev=netdev,
            )


def _rail_slow(case: Case) -> Iterator[Cause]:
    for run in case.slow_runs[:1]:
        rates = {rail["netdev"]: float(rail["gbps"]) for rail in run["rails"]}
        if len(rates) > 1 and min(rates.values()) < UNEQUAL * max(rates.values()):
            slowest = min(rates, key=lambda name: rates[name])
            alone = [f"loopback on {node}: {number(rate)} Gb/s" for node, rate in case.slow_loopback.items()]
            yield suspect(
                80,
                "CAUSE_RAIL_SLOW",
                node=str(run["from"]),
                found=f"{slowest}: {number(rates[slowest])} of {number(run['sum_gbps'])} Gb/s",
                expected="about equal rates on both rails",
                because=[rate_line(run), *alone],
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
    yield suspect(
        92 if memory else 72,
        "CAUSE_RDMA_ONLY",
        node=str(run["from"]),
        found=f"{run['kind']} to {run['to']}: {said['meaning']}" if said else rate_line(run),
        expected="RDMA as fast as TCP, or faster",
        because=[*(said["evidence"] if said else ()), *map(rate_line, good)],
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
            yield suspect(
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
        yield suspect(
            35,
            "CAUSE_VERSIONS_DIFFER",
            node=case.cluster,
            found=", ".join(different),
            expected="the same on every node",
            because=[f"{what}: " + ", ".join(f"{n} {v}" for n, v in told.items()) for what, told in different.items()],
        )


RULES = (
    *(_degraded, _half_both_ways, _host_slow, _not_sending, _dropping, _rail_slow, _rdma_only, _filter, _versions),
)
