"""What the command line asks of a pair, whichever kind it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lab.machines import Machines
from lab.shell import Progress
from lab.state import State


class Pair(Protocol):
    """Two (or N) virtual Sparks. Every method raises LabError with a remedy."""

    # Commands for which the tool starts itself again under sudo when the user is not root.
    root_commands: frozenset[str]

    def __init__(self, machines: Machines, state: State, progress: Progress) -> None: ...

    def up(self) -> None:
        """From whatever is there to a running pair reachable by ssh; does nothing to a pair that is up."""

    def down(self) -> None:
        """Nothing running, nothing mounted; safe when nothing is there."""

    def reset(self) -> None:
        """Factory state, without building anything that is already built."""

    def status(self) -> dict[str, Any]:
        """JSON-able: {"name", "kind", "up": bool, "nodes": {NAME: {"state", "ssh": "127.0.0.1:PORT", ...}}, ...}."""

    def reboot(self, node: str) -> None:
        """A clean reboot; returns when ssh answers again."""

    def crash(self, node: str) -> None:
        """Power loss and power on; returns when ssh answers again."""

    def ssh_argv(self, node: str, command: Sequence[str]) -> list[str]:
        """The ssh command line of the node's user."""

    def exec_argv(self, node: str, command: Sequence[str]) -> list[str]:
        """A command line that runs `command` on the node as root, past ssh and sudo where the kind can do that."""
