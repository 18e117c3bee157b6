"""Packet filters that can drop what arrives on a rail: ufw, firewalld, and plain nftables rules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .system import parse_assignments

_CHAIN = re.compile(r"^\s*chain (\S+) \{")
_HOOK = re.compile(r"type filter hook input priority [^;]+; policy (\w+);")
# Counters, comments and log statements do not narrow a rule.
_IDLE = re.compile(r'counter packets \d+ bytes \d+|counter|comment "[^"]*"|log( prefix "[^"]*"| level \S+| flags \S+)*')


def ufw_enabled(conf: str) -> bool:
    """/etc/ufw/ufw.conf; the service is active whether or not the filter is."""
    return parse_assignments(conf).get("ENABLED", "").lower() == "yes"


def ufw_rules(user_rules: str) -> list[str]:
    """The user's rules of /etc/ufw/user.rules in one line each: ``allow any any 0.0.0.0/0 any 10.0.0.0/8 in_eth1``."""
    return [
        line.removeprefix("### tuple ###").strip()
        for line in user_rules.splitlines()
        if line.startswith("### tuple ###")
    ]


def firewalld_trusted(zone_xml: str) -> list[str]:
    """Interfaces and sources that a zone names."""
    return re.findall(r"<(?:interface name|source address)=\"([^\"]+)\"", zone_xml)


def nft_input(ruleset: str) -> tuple[bool, list[str]]:
    """``nft list ruleset``: whether this host drops what no rule lets in, and the lines that say so.

    A chain on the input hook refuses when its policy is drop or when it has an unconditional drop or reject; rules that
    refuse only what they match, like those of fail2ban, do not count. The accepting rules of such a chain follow it.
    """
    lines: list[str] = []
    refusing = False
    for name, body in _chains(ruleset):
        hook = next((found for line in body if (found := _HOOK.search(line))), None)
        if hook is None:
            continue
        final = [line for line in body if _IDLE.sub("", line).split() in (["drop"], ["reject"])]
        if hook[1] != "drop" and not final:
            continue
        refusing = True
        lines.append(f"chain {name}: {hook[0]}")
        lines += [line for line in body if line in final or line.endswith("accept")]
    return refusing, lines


def _chains(ruleset: str) -> Iterable[tuple[str, list[str]]]:
    name = ""
    body: list[str] = []
    for line in ruleset.splitlines():
        start = _CHAIN.match(line)
        if start:
            name, body = start[1], []
        elif line.strip() == "}" and name:
            yield name, body
            name = ""
        elif name:
            body.append(line.strip())
