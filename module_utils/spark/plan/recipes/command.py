"""A command template of somebody else's recipe as an argument list. Nothing is executed, and no shell reads it.

What only a shell could do (a pipe, a second command, an expansion, a redirection) is refused, because leaving it out
would serve something else than the recipe means.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
DOUBLED = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
MOST_ROUNDS = 10
_OPERATORS = {"|": "a pipe", ";": "a second command", "&": "a second command", "<": "a redirection"}
_OPERATORS |= {">": "a redirection", "(": "a subshell", ")": "a subshell"}


class ShellError(ValueError):
    """The command needs a shell; the message says what for."""


def fill(template: str, values: Mapping[str, str], *, doubled: bool) -> str:
    """``template`` with its placeholders filled in.

    With ``doubled`` braces of the text itself stand twice, as in Python's format; otherwise whatever is no known
    placeholder stays as it is, and values may hold placeholders.
    """
    if doubled:
        return DOUBLED.sub(lambda found: _one(found, values), template)
    text = template
    for _ in range(MOST_ROUNDS):
        filled = PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
        if filled == text:
            break
        text = filled
    return text


def _one(found: re.Match[str], values: Mapping[str, str]) -> str:
    if found[1] is None:
        return found[0][0]
    if found[1] not in values:
        raise ShellError(f"the placeholder {found[0]} has no default")
    return values[found[1]]


def used(template: str) -> set[str]:
    return set(PLACEHOLDER.findall(template))


def words(command: str) -> list[str]:
    """The words of one simple command. Raises ShellError for anything that only a shell could do."""
    text = _one_line(_without_comments(command).strip())
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ShellError(f"its quotes do not match ({error})") from error


def _without_comments(command: str) -> str:
    """Without lines that are comments; after a line that goes on, # would be part of the command."""
    kept: list[str] = []
    for line in command.splitlines():
        goes_on = bool(kept) and kept[-1].endswith("\\")
        if goes_on or not line.lstrip().startswith("#"):
            kept.append(line)
    return "\n".join(kept)


def _one_line(text: str) -> str:
    """The lines of ``text`` joined where they go on, which shlex does not do. Refuses what is a shell's work."""
    kept: list[str] = []
    quote, index, start = "", 0, True
    while index < len(text):
        char = text[index]
        here = text[index : index + 24].splitlines()[0] if char != "\n" else text[index + 1 : index + 25].strip()
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            if text[index + 1 : index + 2] != "\n":
                kept.append(text[index : index + 2])
            index += 2
            continue
        elif char in "$`" and not (char == "$" and text[index + 1 : index + 2] in ("", " ", '"', "'")):
            raise ShellError(f"an expansion at {here!r}")
        elif quote == '"':
            quote = "" if char == '"' else quote
        elif char in "'\"":
            quote = char
        elif char in _OPERATORS:
            raise ShellError(f"{_OPERATORS[char]} at {here!r}")
        elif char == "\n":
            raise ShellError(f"a second command at {here!r}")
        elif start and char in "~#":
            raise ShellError(f"{'a home folder' if char == '~' else 'a comment'} at {here!r}")
        elif char == "{" and re.match(r"\{[^\s{}]*(,|\.\.)[^\s{}]*\}", text[index:]):
            raise ShellError(f"an expansion at {here!r}")
        kept.append(char)
        start = char in " \t"
        index += 1
    return "".join(kept)
