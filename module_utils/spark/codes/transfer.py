"""Finding codes: transfer."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = ()
