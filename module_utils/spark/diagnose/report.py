"""A diagnosis as a person reads it: on the screen, and as a bundle for a forum post. Pure."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..codes import REGISTRY
from .case import Cause, differences
from .causes import Diagnosis
from .redact import Redactor, dumped

# What of node_info's facts is worth telling; all others are nobody's business.
TOLD_FACTS = ("os", "arch", "kernel", "gpu", "kernel_module_nvidia", "firewall", "perftest")
STATES = {
    "healthy": "The link carries what it should.",
    "sick": "Something is wrong with the link.",
    "unmeasured": "The link was not measured, or not in every direction.",
}


def evidence_of(
    plan: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The one document that causes are ranked from.

    ``nodes`` has, per node, what the phases returned: ``look``, ``run``, ``end``, and ``silent``, the reason where it
    could not be asked.
    """
    found: dict[str, Any] = {}
    runs: list[Any] = []
    for node in plan["nodes"]:
        name = node["node"]
        told = nodes.get(name, {})
        look = told.get("look") or {}
        seen = facts.get(name, {})
        read = look.get("read")
        if read and (seen.get("gpu") or {}).get("driver_version"):
            read = {**read, "versions": {**read["versions"], "GPU driver": seen["gpu"]["driver_version"]}}
        found[name] = {
            "role": node["role"],
            "management_address": node["management_address"],
            "read": read,
            "silent": None if read else look.get("broken") or told.get("silent") or "it was not asked",
            "after": (told.get("end") or {}).get("after"),
            "facts": {key: seen[key] for key in TOLD_FACTS if key in seen},
        }
        runs += look.get("runs") or []
        runs += (told.get("run") or {}).get("runs") or []
    order = {"loopback": 0, "latency": 1, "write": 2, "both": 3, "tcp": 4}
    return {
        "cluster": plan["name"],
        "transport": plan["transport"],
        "min_gbps": plan["link_check"]["min_gbps"],
        "min_both_ways_gbps": plan["link_check"]["min_both_ways_gbps"],
        "rails": plan["rails"],
        "nodes": found,
        "runs": sorted(runs, key=lambda run: order[run["kind"]]),
        "plan_findings": [item for item in plan["findings"] if item["severity"] in ("warn", "fatal")],
    }


def redactor(plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> Redactor:
    """Knows the fabric's networks, and by what names this cluster's machines and people go.

    The inventory's own names are what the report speaks of, unless they are addresses or have a domain.
    """
    names: dict[str, str] = {}
    shown = {}
    for node in plan["nodes"]:
        name = str(node["node"])
        shown[name] = f"node-{node['rank']}" if set(".:") & set(name) else name
        names[str(node["management_address"])] = f"(management address of {shown[name]})"
        # A machine's host name may be another one; where a domain is part of it, it may be told without.
        host = str(facts.get(name, {}).get("hostname") or "")
        for other in (host, host.partition(".")[0]):
            if other not in ("", name, "localhost", "ubuntu"):
                names[other] = f"(host name of {shown[name]})"
    names.pop("127.0.0.1", None)
    for name, label in shown.items():
        names.pop(name, None)
        if name != label:
            names[name] = label
    return Redactor([rail["subnet"] for rail in plan["rails"]], names, shown.values())


# --- the screen ------------------------------------------------------------------------------------------------------


def summary(diagnosis: Diagnosis, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """What the result keeps of a diagnosis: enough for the screen, the rest is in the bundle."""
    return {
        "state": diagnosis.state,
        "causes": [cause.as_dict() for cause in diagnosis.causes],
        "ruled_out": list(diagnosis.ruled_out),
        "not_done": list(diagnosis.not_done),
        "runs": [{**_short(run), "line": _run_line(run)} for run in evidence["runs"]],
    }


def _short(run: Mapping[str, Any]) -> dict[str, Any]:
    rails = [{key: rail[key] for key in ("rail", "netdev", "gbps", "latency_us")} for rail in run["rails"]]
    return {**{key: run.get(key) for key in ("kind", "from", "to", "seconds", "sum_gbps", "skipped")}, "rails": rails}


def _run_line(run: Mapping[str, Any]) -> str:
    way = run["from"] if run["kind"] == "loopback" else f"{run['from']} to {run['to']}"
    if run.get("skipped"):
        return f"{run['kind']} {way}: not run, {run['skipped']}"
    told = []
    for rail in run["rails"]:
        if rail.get("failure"):
            told.append(f"{rail['netdev']} failed ({rail['failure']['kind']})")
        elif rail.get("latency_us") is not None:
            told.append(f"{rail['latency_us']:.2f} us")
        else:
            told.append(_gbps(rail.get("gbps")))
    total = f" = {_gbps(run['sum_gbps'])}" if run.get("sum_gbps") is not None and len(told) > 1 else ""
    unit = "" if run["kind"] == "latency" else " Gb/s"
    return f"{run['kind']} {way}: {' + '.join(told)}{total}{unit if 'failed' not in ''.join(told) else ''}"


def _gbps(value: Any) -> str:
    number = float(value or 0)
    return f"{number:.2f}" if number >= 1 else f"{number:.3f}"


# --- the bundle ------------------------------------------------------------------------------------------------------


def markdown(diagnosis: Diagnosis, evidence: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """The text of a forum post."""
    lines = [
        f"# Link diagnosis of {evidence['cluster']}",
        "",
        f"{STATES[diagnosis.state]} Made by diagnose.yml of dgx-spark-cluster at {about['at']}; read-only; "
        "addresses outside of the fabric, serial numbers, MACs and secrets are taken out.",
        "",
    ]
    lines += ["## Causes, the likeliest first", ""]
    if not diagnosis.causes:
        lines += ["None was found.", ""]
    for number, cause in enumerate(diagnosis.causes, 1):
        lines += [*_cause(number, cause), ""]
    for item in diagnosis.remarks:
        lines += [f"**{REGISTRY[item.code].title}**: {item.found}", ""]
    lines += _section("Ruled out", diagnosis.ruled_out)
    lines += ["## Measured", "", "| run | from | to | Gb/s or us per rail | sum |", "|---|---|---|---|---|"]
    lines += [_run_row(run) for run in evidence["runs"]]
    lines += ["", "## The two ends", "", *_ends(evidence), ""]
    lines += ["## Versions", "", *_versions(evidence), ""]
    for name, node in evidence["nodes"].items():
        read = node.get("read")
        if read and read["hot_plugs"]:
            lines += _section(f"Cables moved since boot on {name}", read["hot_plugs"])
    findings = [f"{item['code']} on {item['node']}: {_flat(item['found'])}" for item in evidence["plan_findings"]]
    lines += _section("What the plan says", findings)
    lines += _section("Not run, not read", diagnosis.not_done)
    return "\n".join(lines).rstrip() + "\n"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cause(number: int, cause: Cause) -> Iterator[str]:
    item = cause.finding
    yield f"{number}. **{REGISTRY[item.code].title}** ({cause.likelihood}, `{item.code}`, {item.node})"
    yield f"   - found: {_flat(item.found)}"
    yield f"   - expected: {item.expected}"
    for line in item.evidence:
        yield f"   - evidence: {line}"
    if cause.test:
        yield f"   - settles it: {cause.test}"
    yield f"   - remedy: {item.remedy}"
    if item.no_help:
        yield f"   - known not to help: {', '.join(item.no_help)}"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    told = [f"- {line}" for line in lines]
    return [f"## {title}", "", *told, ""] if told else []


def _run_row(run: Mapping[str, Any]) -> str:
    start = f"| {run['kind']} | {run['from']} | {run['to']} |"
    if run.get("skipped"):
        return f"{start} not run: {run['skipped']} | |"
    cells = []
    for rail in run["rails"]:
        if rail.get("failure"):
            cells.append(f"{rail['netdev']}: {rail['failure']['meaning']}")
        elif rail.get("latency_us") is not None:
            cells.append(f"{rail['netdev']}: {rail['latency_us']:.2f} us")
        else:
            cells.append(f"{rail['netdev']}: {_gbps(rail.get('gbps'))}")
    total = _gbps(run["sum_gbps"]) if run.get("sum_gbps") is not None else ""
    return f"{start} {', '.join(cells)} | {total} |"


def _ends(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield "| node | function | carrier | speed | MTU | address | GID index | PCIe | cable | firmware |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, node in evidence["nodes"].items():
        read = node.get("read")
        if not read:
            yield f"| {name} | not read: {node['silent']} | | | | | | | | |"
            continue
        indexes = {gid["netdev"]: gid["index"] for gid in read["gids"]}
        for item in read["functions"]:
            pcie, cable = item.get("pcie") or {}, item.get("cable") or {}
            slot = f"{pcie['speed_gts']:g} GT/s x{pcie['width']}" if pcie.get("width") else ""
            state = "yes" if item["carrier"] else "off" if item["exists"] and not item["admin_up"] else "no"
            cells = (
                *(name, item["netdev"], state, item["speed_mbps"] or "", item["mtu"] or ""),
                *(" ".join(item["addresses"]), indexes.get(item["netdev"], ""), slot),
                *(" ".join(filter(None, (cable.get("vendor"), cable.get("part")))), item["firmware"]),
            )
            yield f"| {' | '.join(str(cell) for cell in cells)} |"


def _versions(evidence: Mapping[str, Any]) -> Iterator[str]:
    told = {name: node["read"]["versions"] for name, node in evidence["nodes"].items() if node.get("read")}
    if not told:
        yield "None could be read."
        return
    different = differences(evidence["nodes"])
    yield f"| | {' | '.join(told)} | |"
    yield f"|---|{'---|' * len(told)}---|"
    for what in sorted({name for versions in told.values() for name in versions}):
        row = " | ".join(versions.get(what, "unknown") for versions in told.values())
        yield f"| {what} | {row} | {'different' if what in different else ''} |"


def files(diagnosis: Diagnosis, evidence: Mapping[str, Any], text: str, clean: Redactor) -> dict[str, str]:
    """Every file of the bundle by its name; all of them went through ``clean``."""
    found = {"report.md": clean(text)}
    nodes = {}
    for name, node in evidence["nodes"].items():
        read = node.get("read")
        if read:
            for command, said in sorted(read["raw"].items()):
                found[f"raw/{clean(name)}/{_slug(clean(command))}.txt"] = clean(f"$ {command}\n{said}")
            found[f"raw/{clean(name)}/kernel.txt"] = clean("\n".join(read["kernel_lines"]) + "\n")
            node = {**node, "read": {key: value for key, value in read.items() if key not in ("raw", "kernel_lines")}}
        nodes[name] = {key: value for key, value in node.items() if key != "management_address"}
    runs = []
    for number, run in enumerate(evidence["runs"], 1):
        rails = []
        for rail in run["rails"]:
            way = "-".join(clean(part) for part in (run["from"], run["to"], rail["netdev"]))
            name = f"raw/runs/{number:02}-{run['kind']}-{way}.txt"
            found[name] = clean(f"$ {' '.join(rail['argv'])}\n{rail['stdout']}{rail['stderr']}")
            rails.append({key: value for key, value in rail.items() if key not in ("stdout", "stderr")})
        runs.append({**run, "rails": rails})
    ranked = {**summary(diagnosis, evidence), "evidence": {**evidence, "nodes": nodes, "runs": runs}}
    found["evidence.json"] = dumped(clean.data(ranked))
    return found


def _slug(command: str) -> str:
    return re.sub(r"[^\w.-]+", "_", command).strip("_")


def archive(contents: Mapping[str, str], top: str, at_s: int) -> bytes:
    """One .tar.gz whose files belong to nobody."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as out:
        for name in sorted(contents):
            raw = contents[name].encode()
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mtime, info.mode = len(raw), at_s, 0o644
            out.addfile(info, io.BytesIO(raw))
    return packed.getvalue()
