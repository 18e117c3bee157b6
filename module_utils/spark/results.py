"""The record of a play: one JSON file per run and cluster, and the screen that sums it up.

results/<UTC time>-<play>-<cluster>/result.json  everything that was planned, found, measured and changed
results/latest/<cluster>/<play>.json             the newest: {"result": <path in the project>, "verdict": ...}
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .collective import summary_lines
from .diagnose.screen import screen_lines, told

SCHEMA = 1
# How a remedy begins after which nobody has to act; it stays in the result file.
NOTHING_TO_DO = ("None needed", "Nothing has to be done", "Nothing to do")
VERDICTS = ("ok", "failed", "predicted")


def verdict(*, failed: bool, check_mode: bool) -> str:
    """``failed`` wins over everything; a run in check mode is never more than ``predicted``."""
    if failed:
        return "failed"
    return "predicted" if check_mode else "ok"


def folder_name(ended: datetime, play: str, cluster: str) -> str:
    """``20261130T214500Z-site-pair_a``; ``ended`` must be in UTC."""
    return f"{ended:%Y%m%dT%H%M%SZ}-{play}-{cluster}"


def write(root: Path, result: Mapping[str, Any], ended: datetime) -> Path:
    """Write ``result`` below ``root``/results and let the ``latest`` file name it; returns the path of result.json.

    Both files appear complete or not at all. Two runs that end in the same second get folders of their own.
    """
    play, cluster = str(result["play"]), str(result["cluster"])
    base = root / "results" / folder_name(ended, play, cluster)
    folder, attempt = base, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            attempt += 1
            folder = base.with_name(f"{base.name}.{attempt}")
    target = folder / "result.json"
    _write_json(target, result)
    latest = root / "results" / "latest" / cluster / f"{play}.json"
    latest.parent.mkdir(parents=True, exist_ok=True)
    _write_json(
        latest,
        {"result": str(target.relative_to(root)), "verdict": result["verdict"], "ended_utc": result["ended_utc"]},
    )
    return target


def attach(folder: Path, files: Iterable[str]) -> list[str]:
    """Move files beside a result; returns their names. One that is gone is no reason to lose the result."""
    names = []
    for file in map(Path, files):
        with contextlib.suppress(OSError):
            shutil.move(file, folder / file.name)
            names.append(file.name)
    return names


def _write_json(target: Path, data: Mapping[str, Any]) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)


def unique(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The findings without repetitions, in the order in which they were first said."""
    seen: set[str] = set()
    kept = []
    for item in findings:
        key = json.dumps(item, sort_keys=True)
        if key not in seen:
            seen.add(key)
            kept.append(dict(item))
    return kept


def _row(label: str, text: str) -> str:
    return f"  {label:<13}{text}"


def _nodes_row(plan: Mapping[str, Any]) -> str:
    return "   ".join(f"{node['node']} ({node['role']}, rank {node['rank']})" for node in plan.get("nodes", ()))


def _link_row(link: Mapping[str, Any]) -> str:
    """The weakest direction in numbers, and what was measured besides; a stream that failed has none."""
    gbps = [rail.get("gbps") for rail in link.get("rails", ())]
    rails = " + ".join("none" if value is None else f"{value:.2f}" for value in gbps)
    total = link.get("sum_gbps")
    overlap = link.get("overlap_share")
    shared = f", {overlap:.0%} of the time together" if isinstance(overlap, (int, float)) else ""
    ends = f"{link['from']} to {link['to']} " if link.get("from") and link.get("to") else ""
    told = "no sum" if total is None else f"{total:.2f} Gb/s"
    both = [leg["sum_gbps"] for leg in link.get("directions", ()) if leg["kind"] == "both" and leg["sum_gbps"]]
    ways = f"; both ways {min(both):.2f}" if both else ""
    round_trips = [item["typical_us"] for item in link.get("latency", ()) if item["typical_us"] is not None]
    latency = f"; {max(round_trips):.1f} us" if round_trips else ""
    return f"{ends}{rails} = {told} (needs {link.get('min_gbps')}{shared}){ways}{latency}"


def _completion_row(completion: Mapping[str, Any]) -> str:
    answer = str(completion.get("answer") or "").strip().replace("\n", " ")
    shown = answer if len(answer) <= 60 else answer[:57] + "..."
    return f"{completion.get('completion_tokens')} tokens in {completion.get('latency_s', 0.0):.2f} s: {shown!r}"


def summary(result: Mapping[str, Any], shown_path: str) -> str:
    """What a person sees at the end of a play: it fits a screen, the worst findings first."""
    lines = [
        f"{result['play']} on {result['cluster']}: {str(result['verdict']).upper()} in {result['duration_s']:.0f} s"
    ]
    plan: Mapping[str, Any] = result.get("plan") or {}
    if plan:
        lines.append(_row("nodes", _nodes_row(plan)))
        subnets = ", ".join(rail["subnet"] for rail in plan.get("rails", ()))
        lines.append(
            _row(
                "fabric", f"{plan.get('transport')}, {subnets}, MTU {plan.get('mtu')}" if subnets else "none: one node"
            )
        )
    measured: Mapping[str, Mapping[str, Any]] = result.get("measurements") or {}
    for node, values in measured.items():
        for rail in values.get("gids", ()):
            lines.append(_row("GID", f"{node} {rail['rdma_device']}: index {rail['index']}, {rail['gid']}"))
        if "link" in values:
            lines.append(_row("link", _link_row(values["link"])))
        if "completion" in values:
            lines.append(_row("answer", _completion_row(values["completion"])))
        if "collective" in values:
            first, *rest = summary_lines(values["collective"])
            lines += [_row("all-reduce", first), *(_row("", line) for line in rest)]
    for key in ("base_url", "model", "served_names", "image"):
        value = (result.get("configuration") or {}).get(key)
        if value:
            lines.append(_row(key.replace("_", " "), ", ".join(value) if isinstance(value, list) else _flat(value)))
    findings = result.get("findings", ())
    for diagnosis in (values["diagnosis"] for values in measured.values() if "diagnosis" in values):
        lines += [_row(label, text) for label, text in screen_lines(diagnosis)]
        findings = [item for item in findings if item["code"] not in told(diagnosis)]
    lines += _finding_rows(findings)
    for failure in result.get("failures", ()):
        lines.append(_row("failed", f'{failure["node"]} in "{failure["task"]}"'))
    executions: Mapping[str, Mapping[str, int]] = result.get("module_executions") or {}
    counted = ", ".join(f"{node} {n['modules']} (+{n['polls']} polls)" for node, n in sorted(executions.items()))
    if counted:
        lines.append(_row("modules", counted))
    lines += [_row("attach", str(Path(shown_path).with_name(name))) for name in result.get("attachments", ())]
    lines.append(_row("result", shown_path))
    return "\n".join(lines)


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items() if isinstance(item, (str, int, float)))
    return str(value)


def _finding_rows(findings: Iterable[Mapping[str, Any]], limit: int = 8) -> list[str]:
    order = {"fatal": 0, "warn": 1, "note": 2, "ok": 3}
    said = sorted((f for f in findings if f["severity"] != "ok"), key=lambda f: order[f["severity"]])
    rows = []
    for item in said[:limit]:
        rows.append(_row(item["severity"], f"{item['code']} on {item['node']}: {item['found']}"))
        if item["remedy"] and not item["remedy"].startswith(NOTHING_TO_DO):
            rows.append(_row("", f"remedy: {item['remedy']}"))
    if len(said) > limit:
        rows.append(_row("", f"and {len(said) - limit} more in the result file"))
    return rows
