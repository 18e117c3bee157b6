"""Command line of the lab."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from lab import machines as machines_file
from lab.cache import locked
from lab.errors import LabError
from lab.machines import Machines
from lab.pair import Pair
from lab.shell import Progress
from lab.state import PROJECT, State

# Kind to module and class, imported only when asked for.
KINDS = {"container": ("lab.containers.pair", "ContainerPair"), "vm": ("lab.vm.pair", "VmPair")}
# The environment of the user that a start under sudo keeps.
KEEP = ("HOME", "PATH", "XDG_CACHE_HOME", "PYTHONPATH", "VIRTUAL_ENV")
KEEP_PREFIXES = ("PIP_", "SPARK_LAB_", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_", "REQUESTS_CA_")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="lab", description="Virtual Sparks: build, boot, reset and remove them.")
    top.add_argument(
        "--machines",
        default="lab",
        metavar="FILE|NAME",
        help=f"one of {', '.join(machines_file.available())}, or a YAML file (default: lab)",
    )
    sub = top.add_subparsers(dest="command", required=True)
    sub.add_parser("up", help="build what is missing, boot the pair, return when ssh answers")
    sub.add_parser("down", help="end and remove everything that up made, except the cache")
    sub.add_parser("status", help="what is there, as JSON; exit code 0 if the pair is up, else 3")
    sub.add_parser("reset", help="back to factory state")
    for name, text in (("reboot", "clean reboot of a node"), ("crash", "power loss of a node, then power on")):
        sub.add_parser(name, help=text).add_argument("node")
    for name, text in (
        ("ssh", "log in to a node, or run a command there, as its user"),
        ("exec", "run a command on a node as root"),
    ):
        one = sub.add_parser(name, help=text)
        one.add_argument("node")
        one.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD")
    return top


def pair_of(machines: Machines, progress: Progress) -> Pair:
    module, name = KINDS[machines.kind]
    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("lab"):
            raise
        raise LabError(f"kind {machines.kind} is not built: no module {module}") from None
    pair: Pair = kind(machines, State(machines), progress)
    return pair


def as_root(argv: Sequence[str]) -> int:
    """Start the same command again under sudo, with the user's paths."""
    if not shutil.which("sudo"):
        raise LabError("root is needed, and there is no sudo here", "run it as root")
    probe = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    if probe.returncode:
        raise LabError(
            f"root is needed, and sudo without a password does not work here: {probe.stderr.decode().strip()}",
            "run it as root, or `sudo -v` first",
        )
    keep = [f"{k}={v}" for k, v in os.environ.items() if k in KEEP or k.startswith(KEEP_PREFIXES)]
    return subprocess.call(["sudo", "-n", "env", "-C", str(PROJECT), *keep, sys.executable, "-m", "lab", *argv])


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    try:
        return _act(options, arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; `lab down` removes what is there", file=sys.stderr)
        return 130


def _act(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    machines = machines_file.load(options.machines)
    progress = Progress()
    pair = pair_of(machines, progress)
    command = options.command
    if command in pair.root_commands and os.geteuid():
        return as_root(arguments)
    if command in ("up", "down", "reset", "reboot", "crash"):
        arguments = [machines.node(options.node).name] if "node" in options else []
        lock = PROJECT / ".lab" / f"{machines.name}.lock"
        lock.parent.mkdir(exist_ok=True)
        with locked(lock, lambda: progress.say("waiting for another lab command on this pair to end")):
            getattr(pair, command)(*arguments)
    elif command == "status":
        status = pair.status()
        print(json.dumps(status, indent=2))
        return 0 if status["up"] else 3
    else:
        build = pair.ssh_argv if command == "ssh" else pair.exec_argv
        line = build(machines.node(options.node).name, options.argv)
        sys.stdout.flush()
        os.execvp(line[0], line)  # noqa: S606 - the terminal belongs to the command from here on
    return 0
