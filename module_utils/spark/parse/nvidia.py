"""The GPU's driver, from ``nvidia-smi`` and ``modinfo``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..facts import GpuFacts


QUERY = ("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def parse_gpu(rc: int, stdout: str, stderr: str) -> GpuFacts:
    """The first GPU of QUERY. What went wrong is printed to stdout or stderr depending on the fault."""
    first = next((line for line in stdout.splitlines() if line.strip()), "")
    driver, _, name = (part.strip() for part in first.partition(","))
    if rc == 0 and _VERSION.fullmatch(driver):
        return {"driver_version": driver, "name": name or None, "error": None}
    said = " ".join(f"{stdout} {stderr}".split())
    return {"driver_version": None, "name": None, "error": said[:300] or f"nvidia-smi exited {rc} and said nothing"}


def parse_modinfo_version(rc: int, stdout: str) -> str | None:
    """``modinfo -F version nvidia``: the module built for the running kernel, None when that kernel has none."""
    version = stdout.strip()
    return version if rc == 0 and _VERSION.fullmatch(version) else None
