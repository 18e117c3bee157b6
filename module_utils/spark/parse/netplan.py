"""Files of netplan, judged by their bytes.

netplan's own messages vary from run to run and ``netplan get`` exits 0 on most errors, so neither text nor exit status
says what a file is. Whether a readable file is also valid is for netplan's generator on a copy; this needs no tool.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..plan.types import NETPLAN_PATH

_NM_FILE = re.compile(r"90-NM-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[^/]*\.yaml")
_PAIR = re.compile(r"""(?P<key>"[^"]*"|'[^']*'|[^\s"'\[\]{},#][^"'\[\]{},#]*?)\s*:(?:\s+(?P<value>.*))?""")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What netplan keeps definitions of interfaces under.
_KINDS = frozenset(
    (
        "bonds",
        "bridges",
        "dummy-devices",
        "ethernets",
        "modems",
        "nm-devices",
        "tunnels",
        "virtual-ethernets",
        "vlans",
        "vrfs",
        "wifis",
    )
)


@dataclass(frozen=True)
class Verdict:
    """``kind`` as in ``facts.NetplanFile``; ``error`` is the reason where the file is not plain YAML."""

    kind: str
    error: str | None = None


@dataclass(frozen=True)
class Claim:
    """One definition: the interface it names, or the patterns by which it chooses some, and those it enslaves."""

    kind: str
    name: str
    match_names: tuple[str, ...] = ()
    match_macs: tuple[str, ...] = ()
    matches: bool = False
    members: tuple[str, ...] = ()
    renderer: str = ""

    def netdevs(self, macs: dict[str, str]) -> list[str]:
        """The interfaces claimed; ``macs`` are those that exist, for a definition that matches."""
        if not self.matches:
            return [self.name, *self.members]
        by_mac = {mac.lower() for mac in self.match_macs}
        return sorted(
            name
            for name, mac in macs.items()
            if (not self.match_names or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.match_names))
            and (not by_mac or mac.lower() in by_mac)
            and (self.match_names or by_mac)
        )


@dataclass(frozen=True)
class Document:
    renderer: str
    claims: tuple[Claim, ...]


def nm_uuid(path: str) -> str | None:
    """The profile that a file of NetworkManager's belongs to, None for any other name."""
    found = _NM_FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None


def classify(path: str, content: bytes, live_uuids: Collection[str] | None) -> Verdict:
    """What a file is. ``live_uuids`` are the profiles that NetworkManager knows, None when it is silent.

    An all-NUL file is an orphan only if its name is NetworkManager's and that profile is known not to exist. Every
    other unreadable file is somebody's configuration. An empty file is harmless.
    """
    damage = _damage(content)
    if path == NETPLAN_PATH:
        return Verdict("ours", damage)
    if damage is None:
        return Verdict("yaml")
    if content.strip(b"\0"):
        return Verdict("unreadable", damage)
    uuid = nm_uuid(path)
    if uuid is None:
        return Verdict("unreadable", damage)
    if live_uuids is None:
        return Verdict("live_nul", f"{damage}; NetworkManager does not say whether {uuid} is live")
    if uuid in live_uuids:
        return Verdict("live_nul", f"{damage}; NetworkManager has the profile {uuid}")
    return Verdict("orphan_nul", f"{damage}; NetworkManager has no profile {uuid}")


def parse(text: str) -> Document:
    """The interfaces that a readable file defines and the renderer that it names globally.

    Block and flow style are understood as far as these names need it. Anything else is passed over: this answers who
    claims an interface, not whether netplan would accept the file.
    """
    renderer = ""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for keys, value in _leaves(text):
        if keys[:1] != ("network",):
            continue
        if keys == ("network", "renderer"):
            renderer = value
        elif len(keys) >= 3 and keys[1] in _KINDS:
            fields = found.setdefault((keys[1], keys[2]), {})
            fields.setdefault("/".join(keys[3:]), []).append(value)
    claims = tuple(
        Claim(
            kind=kind,
            name=name,
            match_names=tuple(fields.get("match/name", ())),
            match_macs=tuple(fields.get("match/macaddress", ())),
            matches=any(field.split("/")[0] == "match" for field in fields),
            members=tuple(name for name in fields.get("interfaces", ()) if name),
            renderer=(fields.get("renderer") or [""])[-1],
        )
        for (kind, name), fields in found.items()
    )
    return Document(renderer, claims)


def _damage(content: bytes) -> str | None:
    """Why the bytes cannot be YAML, with the line; None if nothing speaks against it."""
    if content and not content.strip(b"\0"):
        return f"all of its {len(content)} bytes are NUL"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = content[: wrong.start].count(b"\n") + 1
        return f"line {line}: byte 0x{content[wrong.start]:02x} is not UTF-8"
    control = _CONTROL.search(text)
    if control:
        number = text.count("\n", 0, control.start()) + 1
        return f"line {number}: control character 0x{ord(control[0]):02x}"
    try:
        return _keyless(text)
    except _NotYamlError as wrong:
        return str(wrong)


class _NotYamlError(Exception):
    """What no YAML file can contain, with its line."""


def _keyless(text: str) -> str | None:
    """A line among the keys of a mapping that has no colon: the mark of a file that was cut off."""
    levels: list[int] = []
    for number, indent, body in _lines(text):
        while levels and levels[-1] > indent:
            levels.pop()
        sibling = bool(levels) and levels[-1] == indent
        if sibling and ":" not in body and body[0] not in "-?{[&*!":
            return f"line {number}: {body[:40]!r} is no key"
        if not sibling and _PAIR.fullmatch(body):
            levels.append(indent)
    return None


def _lines(text: str) -> Iterable[tuple[int, int, str]]:
    """The logical lines, with number and indentation: no comments, no literal blocks; brackets and quotes joined."""
    number, indent, body, scan = 0, 0, "", _Scan()
    literal: int | None = None
    for position, raw in enumerate(text.splitlines(), 1):
        depth = len(raw) - len(raw.lstrip())
        if literal is not None:
            if not raw.strip() or depth > literal:
                continue
            literal = None
        fresh = not scan.open
        part = scan.read(raw).strip()
        if fresh:
            number, indent, body = position, depth, part
        else:
            body = f"{body} {part}"
        if fresh and part and "\t" in raw[:depth]:
            raise _NotYamlError(f"line {position}: indented with a tab")
        if scan.open or not body or body in ("---", "..."):
            continue
        if re.search(r"(?:^|[:-]\s+)[|>][-+0-9]*$", body):
            literal = indent
        yield number, indent, body
    if scan.open:
        raise _NotYamlError(f"line {number}: {scan.quote or scan.brackets[-1]} is not closed")


class _Scan:
    """Follows quotes and flow brackets from line to line."""

    def __init__(self) -> None:
        self.quote = ""
        self.brackets: list[str] = []

    @property
    def open(self) -> bool:
        return bool(self.quote or self.brackets)

    def read(self, line: str) -> str:
        """The line without its comment."""
        skip = False
        before = ""
        for position, character in enumerate(line):
            if skip:
                skip = False
            elif self.quote:
                # A quote inside single quotes is doubled, inside double quotes it is escaped.
                doubled = character == "'" == self.quote and line[position + 1 : position + 2] == "'"
                if doubled or (character == "\\" and self.quote == '"'):
                    skip = True
                elif character == self.quote:
                    self.quote = ""
            elif character == "#" and line[position - 1 : position] in ("", " ", "\t"):
                return line[:position]
            elif character in "\"'" and before in ("", "[", "{", ",", ":", "-"):
                self.quote = character
            elif character in "[{" and (self.brackets or before in ("", ":", ",", "-")):
                self.brackets.append(character)
            elif character in "]}" and self.brackets:
                self.brackets.pop()
            if not character.isspace():
                before = character
        return line


def _leaves(text: str) -> Iterable[tuple[tuple[str, ...], str]]:
    """Every scalar of the document with the keys that lead to it; items of a list share the list's keys."""
    stack: list[tuple[int, str]] = []
    for _, depth, line in _lines(text):
        indent, body = depth, line
        while body.startswith("- "):
            indent, body = indent + 2, body[2:].lstrip()
        while stack and stack[-1][0] >= indent:
            stack.pop()
        pair = _PAIR.fullmatch(body) if body[0] not in "{[" else None
        if pair:
            stack.append((indent, _scalar(pair["key"])))
            body = (pair["value"] or "").strip()
        yield from _flow(body, tuple(key for _, key in stack))


def _flow(text: str, keys: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], str]]:
    """``{a: 1, b: [x, y]}`` in the terms of ``_leaves``."""
    text = text.strip()
    if text[:1] not in ("{", "["):
        yield keys, _scalar(text)
        return
    part, depth, quote = "", 0, ""
    parts: list[str] = []
    for character in text[1:-1]:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append(part)
            part = ""
        else:
            part += character
    parts.append(part)
    if not any(part.strip() for part in parts):
        yield keys, ""
    for entry in (part.strip() for part in parts):
        key, colon, value = entry.partition(":")
        if text[0] == "{" and colon:
            yield from _flow(value, (*keys, _scalar(key)))
        elif entry:
            yield from _flow(entry, keys)


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
