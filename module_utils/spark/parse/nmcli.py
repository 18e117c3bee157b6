"""Terse output of nmcli: fields separated by colons, which are escaped inside a field."""

from __future__ import annotations

import re

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def parse_uuids(text: str) -> list[str]:
    """``nmcli -t -f UUID connection show``: every profile that NetworkManager knows, active or not."""
    return [line.strip() for line in text.splitlines() if _UUID.fullmatch(line.strip())]


def split_terse(line: str) -> list[str]:
    r"""``a\:b:c`` is the two fields ``a:b`` and ``c``."""
    fields, current, escaped = [], "", False
    for character in line:
        if escaped or character not in "\\:":
            current, escaped = current + character, False
        elif character == "\\":
            escaped = True
        else:
            fields.append(current)
            current = ""
    return [*fields, current]
