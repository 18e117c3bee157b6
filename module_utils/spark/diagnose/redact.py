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
# Twelve digits with a letter among them, since counters have none; and any that are said to be one. Containers, images
# and commits are told by as many, and stay.
_MAC_BARE = re.compile(
    r"(?P<other>\b(?:sha256|image|container|commit|layer|digest|br)s?(?: id)?[\"']?[\s:=@/-]{1,3}[\"']?)?"
    r"(?<![0-9a-z])(?=\d*[a-f])[0-9a-f]{12}(?![0-9a-z])",
    re.I,
)
_MAC_NAMED = re.compile(
    r"(?i)(\b(?:[\w.-]{0,64}[_.-])?(?:mac|hw|ll|perm|ether)[ _]?(?:addr(?:ess)?)?[\"']?\s*[:=]?\s*[\"']?)"
    r"(?:0x)?[0-9a-f]{12}(?![0-9a-z])"
)
_MAC_DOTTED = re.compile(r"(?<![\w.])(?=[\d.]*[a-f])(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?![\w]|\.\d)", re.I)
# Eight bytes that a MAC was stretched to, alone or behind fe80: with fffe or, as mlx5 does it, with 0300 in the middle.
_EUI64 = re.compile(
    r"(?<![0-9a-z:])(?:0x)?(?:(?:fe80[0-9a-f]{12})?(?:[0-9a-f]{6}fffe[0-9a-f]{6}|(?=\d*[a-f])[0-9a-f]{6}0300[0-9a-f]{6})"
    r"|(?:[0-9a-f]{4}:){3}[0-9a-f]{4}|[0-9a-f]{1,4}:[0-9a-f]{0,2}ff:fe[0-9a-f]{2}:[0-9a-f]{1,4})(?![0-9a-z:])",
    re.I,
)
# Hardware addresses longer than a MAC: EUI-64, InfiniBand's, client identifiers.
_LONG_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-f]{2}[:-]){6,31}[0-9a-f]{2}(?![\w:-])", re.I)
# A cable's memory byte by byte, when ethtool does not know its layout; its serial number is in there.
_DUMP = re.compile(r"(?i)\b(0x[0-9a-f]{2,8}:[ \t]+)[0-9a-f]{2}(?:[ \t]+[0-9a-f]{2}){3,}(?!\w)")
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I)
# Words that name a number which only one machine has; its value ends with the line.
_SERIAL = re.compile(
    r"(?im)(?P<name>\b(?:serial ?(?:number|num|nr|no|\#)\.?|vendor sn|(?:node|port|system(?: image)?|hca)[ _]?guid"
    r"|board[ _](?:id|serial)|vendor specific|(?:asset|service)[ _]tag)(?!\w)|\[SN\])"
    r"(?P<between>[\"']?[ \t]*[:=]?[ \t]*)(?=\S*\w)\S[^\n]*"
)
# The same as a field, whose value ends at a blank: serial=, ID_SERIAL_SHORT=, "serial": 7, SN: 7.
_SERIAL_FIELD = re.compile(
    r"(?i)((?<!\w)(?:[\w.-]{0,64}serial[\w.-]{0,64}|(?:[\w.-]{0,64}[_.-])?sn|s/n)"
    r"[\"']?[ \t]*[:=][ \t]*[\"']?)[^\s,;\"'}\]]+"
)
# Without a sign between, only what has digits is a number: "serial console" is none.
_SERIAL_WORD = re.compile(r"(?i)(\b(?:serial|s/n)[ \t]+)(?=[A-Z-]*\d)[\w-]{4,}")
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
_FIELD = re.compile(r"(?i)secret|token|passw|api_?key")
# Or whose value is hidden as a number too.
_IDENTITY = re.compile(
    r"(?i)serial|guid|(?<![a-z])sn$|^mac$|(?:mac|hw|ll|perm)_?addr|^board_id$|(?:asset|service)_?tag|^host_?name$"
)
# A mapped GID ends in its IPv4 address, which is shown where it is one of the fabric.
_MAPPED = re.compile(r"\b0000:0000:0000:0000:0000:ffff:([0-9a-f]{4}):([0-9a-f]{4})\b", re.I)
_DOTTED_GID = re.compile(r"(?<![\w:])(?:\d{2,3}:){15}\d{2,3}(?![\w:])")
_MARK = "\x00"


class Redactor:
    """``names`` maps what is known to identify somebody (addresses, host names) to what stands for it.

    A host name goes with the domain behind it. ``nodes`` are names that stay; the user in front of one goes.
    """

    def __init__(
        self, networks: Iterable[str], names: Mapping[str, str] | None = None, nodes: Iterable[str] = ()
    ) -> None:
        self.networks = [ipaddress.ip_network(network, strict=False) for network in networks]
        known = sorted((name for name in names or {} if len(name) > 2), key=len, reverse=True)
        self.names = {name.lower(): (names or {})[name] for name in known}
        self.known = (
            re.compile(r"(?<![\w.-])(" + "|".join(map(re.escape, known)) + r")(?![\w-])(?:\.[a-z][\w-]*)*", re.I)
            if known
            else None
        )
        # What stands for a name is in brackets.
        hosts = "|".join([r"\(", *(rf"{re.escape(node)}(?![\w-])" for node in nodes)])
        self.login = re.compile(rf"(?<![\w.+-])[\w.+-]{{1,64}}@(?={hosts})", re.I)

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
        text = _SERIAL_WORD.sub(rf"\1{HIDDEN}", text)
        text = _DUMP.sub(rf"\1{HIDDEN}", text)
        text = _UUID.sub("(uuid)", text)
        if self.known:
            text = self.known.sub(lambda found: self.names[found[1].lower()], text)
        text = self.login.sub("user@", text)
        text = _MAIL.sub("(mail address)", text)
        text = _HOME.sub("user", text)
        kept: list[str] = []

        def keep(shown: str) -> str:
            kept.append(shown)
            return f"{_MARK}{len(kept) - 1}{_MARK}"

        text = _DOTTED_GID.sub(lambda found: keep(self._dotted(found[0])), text)
        text = _MAPPED.sub(lambda found: keep(self._mapped(found)), text)
        text = _MAC.sub(lambda found: keep(f"{found[1]}:..."), text)
        text = _LONG_MAC.sub("(hardware address)", text)
        text = _MAC_NAME.sub(r"\1x(MAC)", text)
        text = _MAC_NAMED.sub(r"\1(MAC)", text)
        text = _MAC_BARE.sub(lambda found: found[0] if found["other"] else "(MAC)", text)
        text = _MAC_DOTTED.sub("(MAC)", text)
        text = _EUI64.sub("(GUID)", text)
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
        """The same for every text in a document, and for the names of its fields, which can be commands and hosts."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(name)): self._field(str(name), item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        told = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if told and (_IDENTITY.search(name) or (isinstance(value, str) and _FIELD.search(name))):
            return HIDDEN
        return self.data(value)


def dumped(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
