"""Packet filters that can drop what arrives on a rail: ufw, firewalld, and plain nftables rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .system import parse_assignments

_TABLE = re.compile(r"^table (\S+ \S+) \{")
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


def lets_in(kind: str, evidence: Sequence[str], *, netdev: str = "", subnet: str = "") -> bool:
    """Whether a rule among ``evidence`` lets in everything from an interface, or everything from a subnet."""
    return any(_lets_in(kind, line, netdev, subnet) for line in evidence)


def _lets_in(kind: str, line: str, netdev: str, subnet: str) -> bool:
    words = line.split()
    if kind == "ufw" and len(words) == 7:
        action, protocol, port, _, _, source, direction = words
        if (action, protocol, port) != ("allow", "any", "any"):
            return False
        return (bool(netdev) and direction == f"in_{netdev}") or (direction == "in" and _covers(source, subnet))
    if kind == "firewalld" and words[:1] == ["trusted:"]:
        return (bool(netdev) and words[1] == netdev) or _covers(words[1], subnet)
    if kind == "nftables" and words[-1:] == ["accept"]:
        # Anything more in the rule narrows it.
        rule = " ".join(_IDLE.sub("", line).split())
        found = re.fullmatch(r"(iifname|iif|ip saddr) (\{.*\}|\S+) accept", rule)
        named = [word.strip('"') for word in found[2].strip("{}").replace(",", " ").split()] if found else []
        if found and found[1] == "ip saddr":
            return any(_covers(source, subnet) for source in named)
        return bool(netdev) and netdev in named
    return False


def _covers(source: str, subnet: str) -> bool:
    # Only the controller judges rules, and this import would cost every reading of a node.
    import ipaddress

    try:
        outer, inner = ipaddress.IPv4Network(source), ipaddress.IPv4Network(subnet)
    except ValueError:
        return False
    return inner.subnet_of(outer)


def _chains(ruleset: str) -> Iterable[tuple[str, list[str]]]:
    table, name = "", ""
    body: list[str] = []
    for line in ruleset.splitlines():
        opening = _TABLE.match(line)
        start = _CHAIN.match(line)
        if opening:
            table = opening[1]
        elif start:
            name, body = f"{table} {start[1]}", []
        elif line.strip() == "}" and name:
            yield name, body
            name = ""
        elif name:
            body.append(line.strip())
