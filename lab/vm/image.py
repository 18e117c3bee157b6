"""The image that both machines boot: root.img, vmlinuz and initrd.img in one folder of the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lab import cache, factory, host, rootfs
from lab.errors import LabError
from lab.machines import Machines
from lab.shell import Progress
from lab.state import PROJECT
from lab.vm import build

# Measured: 0.9 GiB stay, the tree that it is made from comes and goes.
SPACE_GIB = 2.5


def key(machines: Machines) -> str:
    """All that decides what the image holds. What makes a node is unpacked at its first boot and is not in it."""
    guest = sorted(path for path in build.GUEST.rglob("*") if path.is_file())
    files = [part for path in guest for part in (str(path.relative_to(build.GUEST)), path.read_bytes())]
    sources = [Path(module.__file__ or "").read_bytes() for module in (build, rootfs)]
    recipe = [",".join(factory.PACKAGES), factory.root_hook(machines.user)]
    return cache.key(*files, *sources, *recipe, machines.suite, str(machines.vm.disk_gib))


def ensure(machines: Machines, progress: Progress) -> Path:
    """The image's folder, built when the cache does not have it: about a minute, and the one step that needs root."""
    entry = cache.Entry("vm", key(machines))

    def make(folder: Path) -> None:
        host.require_space(folder, SPACE_GIB, "the image of the VM pair")
        with progress.step("build the image"):
            as_root("lab.vm.build", str(folder), machines.suite, str(machines.vm.disk_gib), machines.user)

    return entry.get(make)


def as_root(module: str, *arguments: str) -> None:
    """Run a module of the lab as root: directly, or under sudo."""
    command = [sys.executable, "-m", module, *arguments]
    if os.geteuid():
        names = [name for name in os.environ if name == "PATH" or name.startswith("SPARK_LAB_")]
        kept = [f"{name}={os.environ[name]}" for name in names]
        command = ["sudo", "-n", "env", "-C", str(PROJECT), *kept, *command]
    done = subprocess.run(command, cwd=PROJECT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        remedy = "run it as root, or `sudo -v` first" if said.startswith("sudo:") else ""
        tail = "\n    ".join(said.splitlines()[-12:])
        raise LabError(f"python -m {module}: exit code {done.returncode}\n    {tail}", remedy)
