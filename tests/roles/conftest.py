"""What verifies a role: both nodes, each seen by testinfra through the lab's root console."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from testinfra.backend import base
from testinfra.host import Host

from lab import machines
from lab.cli import pair_of
from lab.shell import Progress

MACHINES = machines.load("molecule")
NODES = [node.name for node in MACHINES.nodes]
PAIR = pair_of(MACHINES, Progress())


class ConsoleBackend(base.BaseBackend):
    """One process per command: a verification makes dozens."""

    NAME = "lab"

    def run(self, command: str, *args: str, **_: Any) -> base.CommandResult:
        argv = PAIR.exec_argv(self.hostname, ["sh", "-c", self.get_command(command, *args)])
        as_root = ["sudo", "-n"] if os.geteuid() else []
        done = subprocess.run([*as_root, *argv], capture_output=True, check=False, stdin=subprocess.DEVNULL)
        return self.result(done.returncode, self.encode(command), done.stdout, done.stderr)


HOSTS = {name: Host(ConsoleBackend(name)) for name in NODES}


@pytest.fixture(params=NODES)
def host(request: pytest.FixtureRequest) -> Host:
    """Each node in turn."""
    return HOSTS[request.param]


@pytest.fixture
def head() -> Host:
    return HOSTS[MACHINES.head.name]


@pytest.fixture
def hosts() -> list[Host]:
    """All nodes at once."""
    return list(HOSTS.values())
