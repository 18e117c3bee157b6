"""Amounts of bytes in words. GiB is the unit of memory, GB that of disks and downloads; they are 7 % apart."""

from __future__ import annotations

GIB = 2**30


def gib(count: int) -> str:
    """Bytes in GiB; what is smaller than a tenth of one in MiB."""
    return f"{count / GIB:.1f} GiB" if abs(count) >= GIB // 10 else f"{count / 2**20:.1f} MiB"


def gb(count: int) -> str:
    return f"{count / 10**9:.1f} GB"
