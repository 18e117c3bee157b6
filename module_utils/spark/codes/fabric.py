"""Finding codes: fabric."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = ()
