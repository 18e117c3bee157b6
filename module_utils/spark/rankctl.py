"""The node's own command, ``rankctl.pyz VERB``: what must work there without a controller."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# A verb's module is imported only when the verb is used: a forced command must answer quickly, and a fault in one
# part must not take the
# others with it. Each is called with the arguments that follow the verb and returns the exit status.
VERBS: dict[str, tuple[str, str, str]] = {
    "prestart": ("rank", "main_prestart", "check that this node's rank can start, and say why not"),
    "run": ("rank", "main_run", "check, write down what was found, and become this node's rank"),
    "stop": ("rank", "main_stop", "stop this node's rank and remove its container"),
    "status": ("rank", "main_status", "say what this node's rank does (--json for all of it)"),
    "peer": ("peer", "main", "answer a request of the other node (forced command of its ssh key)"),
    "job": ("jobs", "main", "run one long job with a status file: job NAME SPEC.json"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, (_module, _function, text) in VERBS.items()]
    return "\n".join(["usage: rankctl.pyz VERB [ARGUMENT...]", "", *lines])


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    verb, *rest = argv
    if verb not in VERBS:
        print(f"rankctl: no verb {verb!r}\n\n{usage()}", file=sys.stderr)
        return 2
    module, function, _text = VERBS[verb]
    found = getattr(import_module(f".{module}", __package__), function)
    return int(found(rest))
