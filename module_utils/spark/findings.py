"""Findings: the unit in which the toolkit speaks.

A finding says what was found on which node, what was expected, on what evidence, and the one remedy. Its code comes
from the registry in ``codes/``; severities are, from mild to severe, ``ok``, ``note``, ``warn`` and ``fatal``. A fatal
finding stops its cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .codes import REGISTRY

SEVERITIES = ("ok", "note", "warn", "fatal")


@dataclass(frozen=True)
class Finding:
    """One statement about one node; ``node`` is a host name, or the cluster's name when it concerns all of them."""

    code: str
    severity: str
    node: str
    found: str
    expected: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    no_help: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "node": self.node,
            "found": self.found,
            "expected": self.expected,
            "evidence": list(self.evidence),
            "remedy": self.remedy,
            "no_help": list(self.no_help),
        }


def finding(
    code: str,
    *,
    node: str,
    found: str,
    expected: str,
    evidence: Iterable[str] = (),
    severity: str | None = None,
    remedy: str | None = None,
    **fields: object,
) -> Finding:
    """Build a finding of a registered code.

    ``fields`` fill the code's remedy; ``node`` is always among them. Raises KeyError for an unregistered code or a
    remedy field that was not given, ValueError for an unknown severity: both are mistakes of ours, never of the
    machine.
    """
    kind = REGISTRY[code]
    chosen = severity or kind.severity
    if chosen not in SEVERITIES:
        raise ValueError(f"severity {chosen!r} is not one of {', '.join(SEVERITIES)}")
    text = remedy if remedy is not None else kind.remedy.format(node=node, **fields)
    return Finding(code, chosen, node, found, expected, tuple(evidence), text, kind.no_help)


def from_dict(data: Mapping[str, Any]) -> Finding:
    """The inverse of ``Finding.as_dict``."""
    return Finding(
        code=str(data["code"]),
        severity=str(data["severity"]),
        node=str(data["node"]),
        found=str(data["found"]),
        expected=str(data["expected"]),
        evidence=tuple(str(line) for line in data.get("evidence", ())),
        remedy=str(data.get("remedy", "")),
        no_help=tuple(str(line) for line in data.get("no_help", ())),
    )


def worst(findings: Iterable[Finding]) -> str:
    """The most severe severity among the findings, ``ok`` if there are none."""
    return max((f.severity for f in findings), key=SEVERITIES.index, default="ok")


def fatal(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity == "fatal"]


def render(item: Finding) -> str:
    """A finding as a person reads it on a terminal."""
    title = REGISTRY[item.code].title if item.code in REGISTRY else item.code
    lines = [
        f"{item.severity.upper()} {item.code} on {item.node}: {title}",
        f"  found:    {item.found}",
        f"  expected: {item.expected}",
    ]
    lines += [f"  evidence: {line}" for line in item.evidence]
    if item.remedy:
        lines.append(f"  remedy:   {item.remedy}")
    if item.no_help:
        lines.append(f"  known not to help: {', '.join(item.no_help)}")
    return "\n".join(lines)
