"""Commands in remedies, with the inventory, the limit and the login of this run: they work as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants, context

PROJECT = Path(__file__).resolve().parents[1]
PLAYBOOKS = "|".join(sorted(re.escape(path.name) for path in (PROJECT / "playbooks").glob("*.yml")))
# Which machines, and how to log in and become root there; what else was given is about this run only.
WITH_VALUE = {
    "subset": "-l",
    "remote_user": "-u",
    "private_key_file": "--private-key",
    "become_password_file": "--become-password-file",
    "connection_password_file": "--connection-password-file",
}
ALONE = {"become_ask_pass": "-K", "ask_pass": "-k"}
CONFIGURED = {
    "inventory": "DEFAULT_HOST_LIST",
    "remote_user": "DEFAULT_REMOTE_USER",
    "private_key_file": "DEFAULT_PRIVATE_KEY_FILE",
    "become_password_file": "BECOME_PASSWORD_FILE",
    "connection_password_file": "CONNECTION_PASSWORD_FILE",
    "become_ask_pass": "DEFAULT_BECOME_ASK_PASS",
    "ask_pass": "DEFAULT_ASK_PASS",
}


def options_of(cli: Mapping[str, Any], configured: Mapping[str, Any], here: Path) -> list[str]:
    """The options of a run that another play on the same machines needs too, less what is ``configured`` anyway.

    Paths below ``here`` are shown as they would be typed there.
    """
    found: list[str] = []
    sources = list(cli.get("inventory") or ())
    if sources != list(configured.get("inventory") or ()):
        for source in sources:
            found += ["-i", str(source) if "," in str(source) else _typed(str(source), here)]
    for key, option in WITH_VALUE.items():
        value = cli.get(key)
        if value and value != configured.get(key):
            found += [option, _typed(str(value), here) if key.endswith("_file") else str(value)]
    return found + [option for key, option in ALONE.items() if cli.get(key) and not configured.get(key)]


def with_options(text: str, options: list[str]) -> str:
    """Every playbook of ours that ``text`` names, as the whole command; doing it twice changes nothing more."""
    given = "".join(f"{shlex.quote(option)} " for option in options)
    named = rf"(?<![\w/.-])(?:ansible-playbook (?:{re.escape(given)})?)?(?P<playbook>{PLAYBOOKS})(?![\w/-])"
    return re.sub(named, lambda match: f"ansible-playbook {given}{match['playbook']}", text)


def as_run(data: Any) -> Any:
    """``data`` with the commands in all of its texts as they work for this run."""
    return _mapped(data, _options())


def remedied(found: Mapping[str, Any]) -> dict[str, Any]:
    """A finding whose remedy works as printed; what was found stays as it was said."""
    return {**found, "remedy": as_run(found.get("remedy", ""))}


def _options() -> list[str]:
    configured = {key: getattr(constants, name, None) for key, name in CONFIGURED.items()}
    return options_of(context.CLIARGS, configured, Path.cwd())


def _mapped(data: Any, options: list[str]) -> Any:
    if isinstance(data, str):
        return with_options(data, options)
    if isinstance(data, Mapping):
        return {key: _mapped(value, options) for key, value in data.items()}
    return [_mapped(item, options) for item in data] if isinstance(data, (list, tuple)) else data


def _typed(path: str, here: Path) -> str:
    resolved = Path(path)
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else path
