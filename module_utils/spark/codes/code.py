"""What a finding code is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One kind of finding.

    ``remedy`` is a format string: ``finding()`` fills it from its keyword fields, so that what is printed works
    as it stands.
    ``no_help`` lists settings on which the field has wasted afternoons without effect.
    """

    code: str
    severity: str
    title: str
    explanation: str
    remedy: str
    no_help: tuple[str, ...] = ()
