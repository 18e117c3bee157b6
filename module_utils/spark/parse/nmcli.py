"""NetworkManager: terse output of nmcli (fields between colons, which are escaped inside a field) and its key files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CONNECTION_FIELDS = ("UUID", "DEVICE", "AUTOCONNECT", "FILENAME", "NAME")


@dataclass(frozen=True)
class Connection:
    """A profile that NetworkManager knows; ``device`` is where it is active, ``file`` empty where it has none."""

    uuid: str
    device: str = ""
    autoconnect: bool = True
    file: str = ""
    name: str = ""


def parse_connections(text: str) -> list[Connection]:
    """``nmcli -t -f`` with CONNECTION_FIELDS; lines that are no connection are passed over."""
    found = []
    for line in text.splitlines():
        fields = split_terse(line.strip())
        if not _UUID.fullmatch(fields[0]):
            continue
        _, device, autoconnect, file, name = [*fields, *[""] * 5][:5]
        # nmcli prints -- for nothing, also in terse mode where a value is unknown.
        device, file = ("" if value == "--" else value for value in (device, file))
        found.append(Connection(fields[0], device, autoconnect != "no", file, name))
    return found


def parse_uuids(text: str) -> list[str]:
    """``nmcli -t -f UUID connection show``: every profile that NetworkManager knows, active or not."""
    return [connection.uuid for connection in parse_connections(text)]


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


def keyfile_netdevs(text: str, macs: Mapping[str, str]) -> list[str]:
    """The interfaces that a profile is bound to by name, pattern or MAC; none where it would take any.

    ``macs`` are the interfaces that exist, for patterns and MACs.
    """
    values = _ini(text)
    name = values.get("connection.interface-name", "")
    if name:
        return [name]
    mac = next((values[key] for key in ("ethernet.mac-address", "802-3-ethernet.mac-address") if key in values), "")
    patterns = [word for word in values.get("match.interface-name", "").split(";") if word]
    if not mac and not patterns:
        return []
    return sorted(
        device
        for device, own in macs.items()
        if (not mac or own.lower() == mac.lower())
        and (not patterns or any(fnmatch.fnmatchcase(device, pattern) for pattern in patterns))
    )


def network_file_netdevs(text: str, macs: Mapping[str, str]) -> list[str]:
    """The interfaces that a ``.network`` file of systemd-networkd matches."""
    values = _ini(text)
    names, mac = values.get("match.name", "").split(), values.get("match.macaddress", "").lower().split()
    if not names and not mac:
        return []
    negated = [name[1:] for name in names if name.startswith("!")]
    wanted = [name for name in names if not name.startswith("!")]
    return sorted(
        device
        for device, own in macs.items()
        if not any(fnmatch.fnmatchcase(device, pattern) for pattern in negated)
        and (not wanted or any(fnmatch.fnmatchcase(device, pattern) for pattern in wanted))
        and (not mac or own.lower() in mac)
    )


def _ini(text: str) -> dict[str, str]:
    """``section.key`` in lower case; the last one of a key counts."""
    section, values = "", {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].lower()
        elif "=" in line and line[:1] not in "#;":
            key, _, value = line.partition("=")
            values[f"{section}.{key.strip().lower()}"] = value.strip()
    return values
