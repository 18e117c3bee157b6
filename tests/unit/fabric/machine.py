"""A machine for tests: a folder as its root, and commands that answer as they were told to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.spark.runner import Completed

Answer = Completed | Callable[[Sequence[str]], Completed]


def said(stdout: str = "", *, rc: int = 0, stderr: str = "") -> Completed:
    return Completed((), rc, stdout, stderr)


class Machine:
    """Commands by the beginning of their argument list; the longest beginning answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: dict[str, dict[str, Any]] = {}
        self.uuids: list[str] | None = []
        self.answers: dict[tuple[str, ...], Answer] = {}
        self.calls: list[tuple[str, ...]] = []
        (root / "etc/netplan").mkdir(parents=True)
        (root / "usr/libexec/netplan").mkdir(parents=True)
        generator = root / "usr/libexec/netplan/generate"
        generator.write_text("#!/bin/sh\n")
        generator.chmod(0o755)

    def link(self, name: str, *addresses: str, mtu: int = 1500, up: bool = True, carrier: bool = True) -> None:
        flags = (["UP"] if up else []) + (["LOWER_UP"] if up and carrier else [])
        cut = [address.split("/") for address in addresses]
        entries = [{"local": local, "prefixlen": int(prefix), "family": "inet"} for local, prefix in cut]
        mac = f"52:54:00:00:00:{len(self.links):02x}"
        self.links[name] = {"ifname": name, "flags": flags, "mtu": mtu, "address": mac, "addr_info": entries}

    def answer(self, *argv: str, to: Answer | None = None, stdout: str = "", rc: int = 0, stderr: str = "") -> None:
        self.answers[argv] = to or said(stdout, rc=rc, stderr=stderr)

    def ran(self, *argv: str) -> list[tuple[str, ...]]:
        """Every call that began like this."""
        return [call for call in self.calls if call[: len(argv)] == argv]

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30,
        check: bool = False,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        remedy: str = "",
    ) -> Completed:
        call = tuple(argv)
        self.calls.append(call)
        known = [begin for begin in self.answers if call[: len(begin)] == begin]
        if known:
            answer = self.answers[max(known, key=len)]
            return answer if isinstance(answer, Completed) else answer(call)
        if call[:3] == ("ip", "-j", "address"):
            return said(json.dumps(list(self.links.values())))
        if call[:4] == ("nmcli", "-t", "-f", "UUID"):
            return said(rc=8) if self.uuids is None else said("".join(f"{uuid}\n" for uuid in self.uuids))
        return said()
