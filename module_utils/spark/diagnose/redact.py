"""Takes out of text what does not belong into a public post. Pure.

Fabric addresses stay, they are private and the subject. Everything else that names a machine, a person or a place goes.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..parse.secrets import HIDDEN, SECRET_NAME, hide

# A full stop may follow; a fifth number may not.
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
# What may be one; whether it is, the address parser says: times and PCI slots look alike.
_IPV6 = re.compile(r"(?<![\w.])(?<!::)(?:[0-9a-f]{0,4}:){2,8}[0-9a-f]{0,4}(?![\w:]|\.\d)", re.I)
_MAC = re.compile(r"(?<![\w:-])((?:[0-9a-f]{2}[:-]){2}[0-9a-f]{2})(?:[:-][0-9a-f]{2}){3}(?![\w:-])", re.I)
# An interface that is named by its MAC, as USB adapters are.
_MAC_NAME = re.compile(r"\b(en|wl|eth|ww)x[0-9a-f]{12}\b", re.I)
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I)
_SERIAL = re.compile(
    r"(?im)\b(?P<name>serial (?:number|no\.?)|vendor sn|(?:node|port|system(?: image)?)[ _]?guid|board[ _]id"
    r"|vendor specific)\b(?P<between>\s*[:=]?\s*)\S[^\n]*"
)
_SERIAL_FIELD = re.compile(r"(?i)\b([\w.-]{0,64}serial[\w.-]{0,64}\s*[:=]\s*)[^\s,;]+")
# Written as a document has it: a name, a colon, a value.
_NAMED = re.compile(rf"""(?i)(["']?{SECRET_NAME}["']?\s*:\s*)(?:"[^"\n]*"|'[^'\n]*'|[^\s"',}}]+)""")
_OPTION = re.compile(
    r"(?i)(\b[\w.-]{0,64}(?:_token|_secret|password|passwd|api_key|access_key)\s+)(?=\S*\d)[^\s\"':=]{6,}"
)
# A log that was cut may lack the end: then all that looks like the key's text goes.
_KEY = re.compile(
    r"-----BEGIN [A-Z ]*-----(?:(?:(?!-----BEGIN ).)*?-----END [A-Z ]*-----|(?:\s+[A-Za-z0-9+/=]{16,})*)", re.S
)
_SSH_KEY = re.compile(r"\b(?:sk-)?(?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-[\w-]+)(?:@openssh\.com)? [A-Za-z0-9+/=]{40,}")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?i)\b(bearer|basic|authorization:)\s+[A-Za-z0-9._~+/=-]{8,}")
_MAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]+\b")
_HOME = re.compile(r"(?<=/home/)[^/\s\"':]+")
# A field of a document whose text is hidden whatever it says.
_FIELD = re.compile(r"(?i)serial|secret|token|passw|api_?key|\bmac\b|guid")
# A mapped GID ends in its IPv4 address, which is shown where it is one of the fabric.
_MAPPED = re.compile(r"\b0000:0000:0000:0000:0000:ffff:([0-9a-f]{4}):([0-9a-f]{4})\b", re.I)
_DOTTED_GID = re.compile(r"(?:\d{2,3}:){15}\d{2,3}")
_MARK = "\x00"


class Redactor:
    """``names`` maps what is known to identify somebody (addresses, host names, users) to what stands for it."""

    def __init__(self, networks: Iterable[str], names: Mapping[str, str] | None = None) -> None:
        self.networks = [ipaddress.ip_network(network, strict=False) for network in networks]
        known = sorted((name for name in names or {} if len(name) > 2), key=len, reverse=True)
        self.names = {name.lower(): (names or {})[name] for name in known}
        self.known = (
            re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, known)) + r")(?![\w-])", re.I) if known else None
        )

    def __call__(self, text: str) -> str:
        text = _KEY.sub(HIDDEN, text.replace(_MARK, ""))
        text = _SSH_KEY.sub(HIDDEN, text)
        text = _URL_LOGIN.sub(HIDDEN, text)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        text = hide(text)
        text = _NAMED.sub(rf"\1{HIDDEN}", text)
        text = _OPTION.sub(rf"\1{HIDDEN}", text)
        text = _SERIAL.sub(rf"\g<name>\g<between>{HIDDEN}", text)
        text = _SERIAL_FIELD.sub(rf"\1{HIDDEN}", text)
        text = _UUID.sub("(uuid)", text)
        text = _MAIL.sub("(mail address)", text)
        text = _HOME.sub("user", text)
        if self.known:
            text = self.known.sub(lambda found: self.names[found[0].lower()], text)
        kept: list[str] = []

        def keep(shown: str) -> str:
            kept.append(shown)
            return f"{_MARK}{len(kept) - 1}{_MARK}"

        text = _DOTTED_GID.sub(lambda found: keep(self._dotted(found[0])), text)
        text = _MAPPED.sub(lambda found: keep(self._mapped(found)), text)
        text = _MAC.sub(lambda found: keep(f"{found[1]}:..."), text)
        text = _MAC_NAME.sub(r"\1x(MAC)", text)
        text = _IPV6.sub(lambda found: self._six(found[0]), text)
        text = _IPV4.sub(lambda found: self._four(found[0]), text)
        return re.sub(rf"{_MARK}(\d+){_MARK}", lambda found: kept[int(found[1])], text)

    def _four(self, text: str) -> str:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return text  # a version such as 28.45.4028.1 has parts above 255
        ours = any(address in network for network in self.networks if network.version == 4)
        nobodys = address.is_loopback or address.is_unspecified or int(address) == 0xFFFFFFFF
        return text if ours or nobodys else "(address)"

    def _six(self, text: str) -> str:
        bare = text.rstrip(":") if not text.endswith("::") else text
        try:
            address = ipaddress.IPv6Address(bare)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else f"(IPv6 address){text[len(bare) :]}"

    def _mapped(self, found: re.Match[str]) -> str:
        four = str(ipaddress.IPv4Address(int(found[1] + found[2], 16)))
        return found[0] if self._four(four) == four else "(GID)"

    def _dotted(self, text: str) -> str:
        """perftest prints a GID as sixteen numbers."""
        parts = text.split(":")
        four = ".".join(str(int(part)) for part in parts[12:])
        return text if parts[10:12] == ["255", "255"] and self._four(four) == four else "(GID)"

    def data(self, value: Any) -> Any:
        """The same for every text in a document, names of fields left alone."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if isinstance(item, str) and _FIELD.search(name) else self.data(item)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value


def dumped(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
