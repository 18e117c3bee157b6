"""The all-reduce between the ranks: how it is run in the serving environment, and what its numbers mean. Pure.

A ``report`` is what one rank's job returns (``collective_job``): the program's own result, what NCCL said, and the
rails with their counters before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .findings import Finding, finding
from .plan.types import OVERLAY_DIR

CONTAINER = "spark-collective"
LABEL = "spark-cluster.collective"
SCRIPT = "/opt/spark-cluster/allreduce.py"
FOLDER = "/run/spark-cluster/collective/log"
IN_CONTAINER = "/collective"
NCCL_LOG = "nccl.log"

KIB, MIB = 2**10, 2**20
SMALLEST = 8 * KIB
# What the program may take for tensors; it needs the largest size and 4 MiB.
CAP_BYTES = 128 * MIB
# Measured with NCCL 2.28: 1.2 GiB resident and up to 1.6 GiB of device memory, most of both for CUDA itself; with gloo
# on CPU below 1 GiB. On a Spark both come out of one memory.
NEEDED_BYTES = {"nccl": 4 * 2**30, "gloo": 3 * 2**29}
# Below this share of the busiest rail a rail carried nothing but what every interface carries, and below the other one
# the channels were not dealt evenly.
FLAT_SHARE, UNEVEN_SHARE = 0.01, 0.5

Report = Mapping[str, Any]


# --- running ---------------------------------------------------------------------------------------------------------


def sizes(activations: Iterable[int], largest: int) -> list[int]:
    """8 KiB to ``largest`` in doublings, and the activations that are not larger, also below 8 KiB."""
    found = {size for size in activations if 0 < size <= largest}
    size = SMALLEST
    while size <= largest:
        found.add(size)
        size *= 2
    return sorted(found)


def spec_of(plan: Mapping[str, Any], me: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What one rank's job gets: plain data, and the variables as a list, because their names are no field names."""
    serving = plan["serving"]
    planned = me["serving"]["plan_file"]
    kept = "schema cluster model node rank role transport address_range rails resolve image argv".split()
    return {
        "plan": {**{name: planned[name] for name in kept}, "config_sha256": planned["config_sha256"]},
        "environment": [f"{name}={value}" for name, value in planned["environment"].items()],
        "nodes": len(plan["nodes"]),
        "master": planned["ranks"][0]["address"],
        "port": int(settings["port"]),
        "backend": backend(serving),
        "sizes": sizes(
            (item["bytes"] for item in serving["collective"]["activations"]), int(settings["largest_mib"]) * MIB
        ),
        "calls": int(settings["calls"]),
        "seconds": float(settings["seconds"]),
        "join_s": float(settings["join_s"]),
        "silence_s": float(settings["silence_s"]),
        "while_serving": bool(settings["while_serving"]),
    }


def backend(serving: Mapping[str, Any]) -> str:
    return "nccl" if serving["gpu"] else "gloo"


def arguments(spec: Mapping[str, Any], engine: str) -> list[str]:
    """The program's arguments, after its own name."""
    return [
        *("--rank", str(spec["plan"]["rank"]), "--nodes", str(spec["nodes"])),
        *("--master", str(spec["master"]), "--port", str(spec["port"]), "--backend", str(spec["backend"])),
        *("--bytes", ",".join(map(str, spec["sizes"])), "--cap", str(CAP_BYTES)),
        *("--calls", str(spec["calls"]), "--seconds", str(spec["seconds"])),
        *("--join", str(spec["join_s"]), "--silence", str(spec["silence_s"]), "--engine", engine),
    ]


def container_argv(argv: Sequence[str], spec: Mapping[str, Any], *, script: str) -> list[str]:
    """A rank's own command line with the program in the engine's place.

    Everything that decides how NCCL finds its way stays: network, devices, limits, variables, files laid over the
    image. Weights, caches and the key's file are of no use to it, and Docker would make folders for those that are not
    there yet.
    """
    at = argv.index("--entrypoint")
    engine, image = argv[at + 1], argv[at + 2]
    if engine == "bash":  # an author's own script starts the engine
        engine = "vllm"
    kept: list[str] = []
    parts = iter(argv[2:at])
    for part in parts:
        if part in ("--name", "--label"):
            next(parts)
        elif part == "--volume":
            volume = next(parts)
            kept += [part, volume] if volume.startswith(f"{OVERLAY_DIR}/") else []
        else:
            kept.append(part)
    for name in added_variables(spec):
        kept += ["--env", name]
    kept += ["--volume", f"{script}:{SCRIPT}:ro", "--volume", f"{FOLDER}:{IN_CONTAINER}"]
    begin = [*argv[:2], "--rm", "--name", CONTAINER, "--label", f"{LABEL}=1"]
    return [*begin, *kept, "--entrypoint", "python3", image, SCRIPT, *arguments(spec, engine)]


def added_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """NCCL's log is the only proof of what it used. It goes to a file, apart from what the engine's image prints."""
    if spec["backend"] != "nccl":
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": f"{IN_CONTAINER}/{NCCL_LOG}",
    }


# --- what a rail carried ---------------------------------------------------------------------------------------------

# What counts RDMA traffic comes first: it does not show in the interface's own bytes.
_COUNTED = (
    ("RDMA bytes", "tx_vport_rdma_unicast_bytes", "rx_vport_rdma_unicast_bytes", 1),
    ("RDMA data", "port_xmit_data", "port_rcv_data", 4),
    ("RDMA packets", "sent_pkts", "rcvd_pkts", 1),
)
_INTERFACE = ("interface bytes", "tx_bytes", "rx_bytes", 1)


def carried(
    before: Mapping[str, int], after: Mapping[str, int], *, rdma: bool
) -> tuple[str, int | None, int | None, dict[str, int]]:
    """What was counted, how much went out and came in, and every counter that moved. None where nothing counts it."""
    moved = {name: after[name] - before[name] for name in sorted(after) if after[name] != before.get(name, after[name])}
    for what, sent, received, unit in _COUNTED if rdma else (_INTERFACE,):
        if sent in before and sent in after and received in before and received in after:
            return what, unit * (after[sent] - before[sent]), unit * (after[received] - before[received]), moved
    return "", None, None, moved


# --- judging one rank ------------------------------------------------------------------------------------------------


def judge_rank(report: Report, transport: str) -> list[Finding]:
    """What one rank's report shows, apart from the times."""
    node = str(report["node"])
    found = []
    wrong = [size["bytes"] for size in report["result"]["sizes"] if not size["correct"]]
    if wrong:
        found.append(
            finding(
                "COLLECTIVE_SUM_WRONG",
                node=node,
                found=f"wrong sums at {', '.join(map(shown_bytes, wrong))}",
                expected="the sum over all ranks, in every element",
            )
        )
    if report["result"]["nodes"] < 2 or transport != "rdma" or report["result"]["backend"] != "nccl":
        return found
    found += _transport(node, report)
    if not any(item.code == "COLLECTIVE_ON_SOCKETS" for item in found):
        found += _rails(node, report)
    return found


def _transport(node: str, report: Report) -> list[Finding]:
    log = report["log"]
    if log["transport"] is None:
        return [
            finding(
                "COLLECTIVE_TRANSPORT_UNKNOWN",
                node=node,
                found="NCCL's log names no network",
                expected="NET/IB, or a plugin's name for it",
                evidence=log["lines"][:6],
            )
        ]
    if not log["over_sockets"]:
        return []
    ways = ", ".join(f"{count} channels via {way}" for way, count in log["channels"].items())
    chosen = f"over {', '.join(log['interfaces'])}" if log["interfaces"] else ""
    return [
        finding(
            "COLLECTIVE_ON_SOCKETS",
            node=node,
            found=" ".join(part for part in (log["transport"], chosen) if part) + (f": {ways}" if ways else ""),
            expected=f"NET/IB over {', '.join(_devices(report)) or 'the planned devices'}",
            evidence=log["lines"][:8],
        )
    ]


def _devices(report: Report) -> list[str]:
    return [str(rail["rdma_device"]) for rail in report["rails"] if rail["rdma_device"]]


def _rails(node: str, report: Report) -> list[Finding]:
    log = report["log"]
    found = []
    if log["hcas"]:
        for device in _devices(report):
            if device not in log["hcas"]:
                found.append(
                    finding(
                        "COLLECTIVE_HCA_UNUSED",
                        node=node,
                        found=f"NCCL took {', '.join(log['hcas'])}",
                        expected=f"{device} among them",
                        evidence=log["lines"][:8],
                        device=device,
                    )
                )
    if found or len(report["rails"]) < 2:
        return found
    rails = [rail for rail in report["rails"] if rail["sent"] is not None]
    if len(rails) < len(report["rails"]):
        return [
            finding(
                "COLLECTIVE_COUNTERS_UNKNOWN",
                node=node,
                found=f"no counters of {', '.join(_names(report['rails'], counted=False))}",
                expected="the RDMA counters of every rail",
                evidence=[f"NCCL's channels go over {', '.join(log['carried'])}"] if log["carried"] else [],
            )
        ]
    most = max(rail["sent"] for rail in rails)
    evidence = [_rail_line(rail) for rail in rails]
    for rail in rails:
        share = rail["sent"] / most if most > 0 else 0.0
        if share >= UNEVEN_SHARE:
            continue
        found.append(
            finding(
                "COLLECTIVE_RAIL_FLAT" if share < FLAT_SHARE else "COLLECTIVE_RAIL_UNEVEN",
                node=node,
                found=f"rail {rail['rail']} ({rail['netdev']}) sent {share:.1%} of what the busiest rail did",
                expected="about the same on every rail",
                evidence=evidence,
                netdev=rail["netdev"],
            )
        )
    return found


def _names(rails: Iterable[Mapping[str, Any]], *, counted: bool) -> list[str]:
    return [str(rail["rdma_device"] or rail["netdev"]) for rail in rails if (rail["sent"] is not None) == counted]


def _rail_line(rail: Mapping[str, Any]) -> str:
    name = f"{rail['rdma_device']} on {rail['netdev']}" if rail["rdma_device"] else rail["netdev"]
    return f"{name}: {rail['counted']}: {rail['sent']:,} sent, {rail['received']:,} received"


# --- judging the cluster ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """Tokens per second of one request, and who says so."""

    tokens_per_s: float
    source: str


def rates(serving: Mapping[str, Any], completion: Mapping[str, Any] | None) -> list[Rate]:
    """Rates of a single request, the most telling one first.

    What this cluster itself did in the last completion with this very configuration comes before figures; among those,
    the one of the same image, then the one of the source that also counted the calls.
    """
    found = []
    measured = (completion or {}).get("decode_tokens_per_s")
    if measured:
        found.append(Rate(float(measured), "the last completion of this cluster"))
    source = serving["collective"]["calls_source"]
    figures = [figure for figure in serving["expected"] if figure["unit"] == "tok/s" and figure["concurrency"] == 1]
    figures.sort(key=lambda figure: (not figure["same_image"], figure["source"] not in source))
    return found + [Rate(float(figure["value"]), str(figure["source"])) for figure in figures if figure["value"] > 0]


def share(calls_per_token: float, latency_us: float, tokens_per_s: float) -> float:
    """The part of a token's time that is spent in collectives."""
    return calls_per_token * latency_us * 1e-6 * tokens_per_s


def judge(
    plan: Mapping[str, Any],
    reports: Sequence[Report],
    completion: Mapping[str, Any] | None,
    *,
    slow_factor: float,
) -> tuple[dict[str, Any], list[Finding]]:
    """The measurement of the whole cluster, and what its times say. What is not known is ``unknown`` in it."""
    serving, head = plan["serving"], str(plan["head"])
    found: list[Finding] = []
    table = _table(reports)
    activation = next((item for item in serving["collective"]["activations"] if item["tokens"] == 1), None)
    row = next((row for row in table if activation and row["bytes"] == activation["bytes"]), None)
    # Engines replay a step as one graph; where the launch of a call takes longer than the call, only that tells.
    latency_us = (row["graph_us"] or row["median_us"]) if row else None
    latency, said = _latency(head, serving, latency_us, slow_factor)
    latency["measured"] = "in a CUDA graph" if row and row["graph_us"] else "call by call"
    found += said
    budget, said = _budget(head, serving, latency_us, completion)
    found += said
    result = reports[0]["result"]
    measurement = {
        "model": serving["model"],
        "backend": result["backend"],
        "nodes": result["nodes"],
        "dtype": result["dtype"],
        "torch": result["torch"],
        "nccl": result["nccl"],
        "transport": sorted({str(report["transport"]) for report in reports}),
        "activation": _activation(serving, activation),
        "latency": latency,
        "budget": budget,
        "sizes": table,
        "ranks": [_rank(report) for report in reports],
    }
    if not any(item.severity == "fatal" for report in reports for item in judge_rank(report, plan["transport"])):
        found.insert(0, _ok(head, measurement))
    return measurement, found


def _table(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """One row per size. A token waits for the slowest rank, so the times are the largest over the ranks."""
    rows = []
    for place, first in enumerate(reports[0]["result"]["sizes"]):
        of_size = [report["result"]["sizes"][place] for report in reports]
        slowest = max(of_size, key=lambda size: size["median_us"])
        rows.append(
            {
                "bytes": first["bytes"],
                "calls": first["calls"],
                "median_us": slowest["median_us"],
                "p99_us": max(size["p99_us"] for size in of_size),
                "bus_gbps": slowest["bus_gbps"],
                "graph_us": _in_graph(reports, first["bytes"]),
                "correct": all(size["correct"] for size in of_size),
            }
        )
    return rows


def _in_graph(reports: Sequence[Report], size: int) -> float | None:
    times = [report["result"]["graph"].get(str(size)) for report in reports]
    return max(times) if all(times) else None


def _activation(serving: Mapping[str, Any], activation: Mapping[str, Any] | None) -> dict[str, Any]:
    about = serving["collective"]
    if activation is None:
        return {"bytes": "unknown", "computed": "neither the recipe nor the weights' config.json has a hidden_size"}
    return {
        "bytes": activation["bytes"],
        "computed": f"hidden_size {about['hidden_size']} ({about['hidden_source']}) x {about['dtype_bytes']} bytes x "
        f"{activation['tokens']} token",
        "all": [dict(item) for item in about["activations"]],
    }


def _latency(
    node: str, serving: Mapping[str, Any], latency_us: float | None, slow_factor: float
) -> tuple[dict[str, Any], list[Finding]]:
    figures = [item for item in serving["expected"] if item["unit"] == "us" and item["what"].startswith("all-reduce")]
    figures.sort(key=lambda figure: not figure["same_image"])
    if latency_us is None or not figures:
        return {"us": latency_us or "unknown", "expected_us": "unknown", "judged": "unknown"}, []
    figure = figures[0]
    expected = float(figure["value"])
    slow = latency_us > slow_factor * expected
    told = {
        "us": latency_us,
        "expected_us": expected,
        "source": figure["source"],
        "same_image": figure["same_image"],
        "judged": "slow" if slow else "ok",
    }
    if not slow:
        return told, []
    image = "this image" if figure["same_image"] else f"another image: {figure['image']}"
    return told, [
        finding(
            "COLLECTIVE_SLOW",
            node=node,
            # A figure of another image is a hint, no yardstick.
            severity="warn" if figure["same_image"] else "note",
            found=f"{latency_us:.1f} us at the activation's size",
            expected=f"about {expected:g} us, at most {slow_factor:g} times as much",
            evidence=[f"{expected:g} us: {figure['source']}, on {image}"],
        )
    ]


def _budget(
    node: str, serving: Mapping[str, Any], latency_us: float | None, completion: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[Finding]]:
    about = serving["collective"]
    calls = about["calls_per_token"]
    known = rates(serving, completion)
    missing = [
        words
        for lacking, words in (
            (not calls, "the calls per token (architecture.collectives_per_token)"),
            (latency_us is None, "the size of the activation (architecture.hidden_size)"),
            (not known, "a rate of tokens (an expected figure, or a completion by cluster-up.yml)"),
        )
        if lacking
    ]
    budget: dict[str, Any] = {
        "calls_per_token": calls or "unknown",
        "calls_source": about["calls_source"] or "unknown",
        "share": "unknown",
    }
    if missing or latency_us is None:
        cure = f"To have it, add to the recipe {serving['model']}: {'; '.join(missing)}."
        return budget, [
            finding(
                "COLLECTIVE_SHARE_UNKNOWN",
                node=node,
                found=f"unknown: {'; '.join(missing)}",
                expected="calls x latency / time of a token",
                cure=cure,
            )
        ]
    each = [
        {
            "share": round(share(calls, latency_us, rate.tokens_per_s), 4),
            "tokens_per_s": rate.tokens_per_s,
            "token_ms": round(1000 / rate.tokens_per_s, 3),
            "source": rate.source,
        }
        for rate in known
    ]
    return {**budget, "calls_ms": round(calls * latency_us / 1000, 3), **each[0], "others": each[1:]}, []


def _rank(report: Report) -> dict[str, Any]:
    result = report["result"]
    return {
        "node": report["node"],
        "rank": result["rank"],
        "transport": report["transport"],
        "device": result["device"],
        "memory": result["memory"],
        "rails": report["rails"],
        "gids": report["gids"],
        "log": report["log"],
        "sizes": result["sizes"],
        "graph": result["graph"],
        "graph_why": result["graph_why"],
        "script_sha256": report["script_sha256"],
    }


def _ok(node: str, measurement: Mapping[str, Any]) -> Finding:
    rows = measurement["sizes"]
    return finding(
        "COLLECTIVE_OK",
        node=node,
        found=f"{len(rows)} sizes over {' and '.join(measurement['transport'])}, {rows[-1]['median_us']:.0f} us at "
        f"{shown_bytes(rows[-1]['bytes'])}",
        expected="right sums over the planned transport",
        evidence=[*budget_lines(measurement)],
    )


# --- showing ---------------------------------------------------------------------------------------------------------


def shown_bytes(count: int) -> str:
    for unit, size in (("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def budget_lines(measurement: Mapping[str, Any]) -> list[str]:
    """Share of the token budget, in the words of a calculation."""
    budget, latency = measurement["budget"], measurement["latency"]
    if budget["share"] == "unknown":
        return []
    return [
        f"{budget['calls_per_token']:g} calls x {latency['us']:.1f} us = {budget['calls_ms']:.2f} ms of "
        f"{budget['token_ms']:.1f} ms a token at {budget['tokens_per_s']:g} tok/s: {budget['share']:.1%} "
        f"({budget['source']})"
    ]


def summary_lines(measurement: Mapping[str, Any]) -> list[str]:
    """A short table for the screen: the activation's size, both ends, and every third doubling."""
    rows = measurement["sizes"]
    chosen = {rows[0]["bytes"], rows[-1]["bytes"], measurement["activation"]["bytes"]}
    chosen |= {SMALLEST << power for power in range(0, 30, 3)}
    lines = [f"{' and '.join(measurement['transport'])}, {measurement['nodes']} ranks"]
    for row in rows:
        if row["bytes"] in chosen:
            bus = f"{row['bus_gbps']:9.3f} Gb/s" if row["bus_gbps"] is not None else ""
            graph = f"{row['graph_us']:9.1f} us in a graph" if row["graph_us"] else ""
            mark = "  one token" if row["bytes"] == measurement["activation"]["bytes"] else ""
            size = shown_bytes(row["bytes"])
            lines.append(f"{size:>8}{row['median_us']:11.1f} us{row['p99_us']:11.1f} us p99{bus}{graph}{mark}")
    return lines + budget_lines(measurement)
