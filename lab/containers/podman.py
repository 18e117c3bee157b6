"""podman as this host needs it to be called."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import host
from lab.errors import LabError
from lab.shell import run

COMMANDS = {
    "podman": "podman",
    "crun": "crun",
    "conmon": "conmon",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "ssh-keygen": "openssh-client",
    "tar": "tar",
    "rsync": "rsync",
}
CGROUP = "/sys/fs/cgroup"


class Podman:
    """Where cgroup2 is not the host's one layout, every call runs in a mount namespace that shows cgroup2 only.

    The namespace is pinned to a file and outlives each call, so that the overlay and shm mounts of one call stay
    visible to the next: stop, start and restart depend on it.
    """

    def __init__(self, pin: Path) -> None:
        self.pin = pin
        layout = host.cgroups()
        # podman's own groups, where no systemd manages them; as the host sees them.
        self.groups = Path(layout.mount) / "libpod_parent"
        self.pinned = not layout.unified
        if self.pinned and "cgroup2" not in Path("/proc/filesystems").read_text():
            raise LabError("the kernel has no cgroup2", "systemd in containers needs it")
        self.pids_limit = "-1" if "pids" in layout.controllers else "0"

    def prepare(self) -> None:
        """Make and pin the mount namespace where one is needed."""
        if not self.pinned or self._is_pinned():
            return
        folder = self.pin.parent
        folder.mkdir(parents=True, exist_ok=True)
        # A namespace can be pinned only in a mount that is private.
        run(["mount", "--bind", str(folder), str(folder)])
        run(["mount", "--make-private", str(folder)])
        self.pin.touch()
        only_cgroup2 = f"umount -l -R {CGROUP} && mount -t cgroup2 cgroup2 {CGROUP}"
        run(["unshare", f"--mount={self.pin}", "--propagation", "slave", "sh", "-c", only_cgroup2])

    def release(self) -> None:
        """Unpin: with the last process gone, the namespace and every mount in it vanish."""
        remove_groups(self.groups / "conmon", self.groups)
        for path in (self.pin, self.pin.parent):
            while host.is_mounted(path):
                run(["umount", str(path)])
        self.pin.unlink(missing_ok=True)
        if self.pin.parent.is_dir():
            self.pin.parent.rmdir()

    def _is_pinned(self) -> bool:
        return host.is_mounted(self.pin)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """A command line in the namespace in which podman's mounts are visible."""
        return ["nsenter", f"--mount={self.pin}", "--", *argv] if self.pinned else list(argv)

    def argv(self, *arguments: str) -> list[str]:
        options = ["--runtime=crun"]
        if not host.systemd_runs():
            options += ["--cgroup-manager=cgroupfs", "--events-backend=file"]
        return self.inside(["podman", *options, *arguments])

    def run(
        self, *arguments: str, check: bool = True, stdin: bytes | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        return run(self.argv(*arguments), check=check, stdin=stdin, timeout=timeout)

    def running(self, container: str) -> bool:
        return self.run("inspect", "--format", "{{.State.Running}}", container, check=False).stdout.strip() == "true"

    def exists(self, container: str) -> bool:
        return self.run("container", "exists", container, check=False).returncode == 0

    def remove(self, container: str) -> None:
        """Off and gone; no error where there is none."""
        number = self.run("inspect", "--format", "{{.Id}}", container, check=False).stdout.strip()
        self.run("rm", "--force", "--ignore", "--time", "0", "--volumes", container)
        if number and not host.systemd_runs():
            # A killed init leaves its groups behind.
            group = self.groups / f"libpod-{number}"
            remove_groups(*(Path(folder) for folder, _, _ in os.walk(group, topdown=False)))


def remove_groups(*groups: Path) -> None:
    """Remove control groups; those in use stay."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
