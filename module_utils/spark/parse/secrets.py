"""Takes secrets out of command lines and environments of others before they become facts."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"

# Not "tokens", which are counted, nor a tokenizer.
_WORD = r"token(?![a-z])|secret|passw(?:or)?d|passphrase|credential|(?:api|private|access)[_-]?key"
# Bounded, so that a long run of letters is not tried from each of them to its end.
SECRET_NAME = rf"[\w.-]{{0,64}}(?:{_WORD})[\w.-]{{0,64}}"
# A quoted value ends at its quote, any other at a blank.
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"']+)"""
_ASSIGNED = re.compile(rf"(?i)(?<![\w-])({SECRET_NAME}=){_VALUE}")
_OPTION = re.compile(rf"(?i)(?<!\S)(--?{SECRET_NAME}(?:=|\s+)){_VALUE}")
# Known by their own form, wherever they stand.
_KNOWN = re.compile(
    r"\b(?:(?:hf_|sk-|nvapi-|gh[pousr]_)[A-Za-z0-9_-]{16,}|(?:github_pat_|glpat-|xox[abposr]-|AKIA)[A-Za-z0-9_-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}[\w.-]*)"
)


def hide(text: str) -> str:
    """The text with the values of what is named like a secret, or looks like one, replaced."""
    return _KNOWN.sub(HIDDEN, _OPTION.sub(rf"\1{HIDDEN}", _ASSIGNED.sub(rf"\1{HIDDEN}", text)))
