"""The node image: a Debian root in podman's store, known by a hash of what makes it."""

from __future__ import annotations

from pathlib import Path

from lab import cache, factory, host, rootfs
from lab.containers.podman import Podman
from lab.errors import LabError
from lab.machines import Machines
from lab.shell import Progress

HERE = Path(__file__).resolve().parent
REPOSITORY = "localhost/spark-lab/node"
OWN_FILES = {
    "boot": "/usr/local/lib/spark-lab/boot",
    "spark-lab-boot.service": "/etc/systemd/system/spark-lab-boot.service",
}
# A device node that `docker run --device /dev/infiniband` finds; there is nothing behind it.
DEVICES = (
    "d /dev/infiniband 0755 root root -\n"
    "c /dev/infiniband/uverbs0 0666 root root - 1:3\n"
    "c /dev/infiniband/rdma_cm 0666 root root - 1:3\n"
)
SPACE_GIB = 2.5


def hook(user: str) -> str:
    copies = "".join(
        f'install -D -m {0o755 if name == "boot" else 0o644:o} {HERE / name} "$R{path}"\n'
        for name, path in OWN_FILES.items()
    )
    return (
        f"{factory.root_hook(user)}{copies}"
        f"printf '{DEVICES.encode('unicode_escape').decode()}' > \"$R/etc/tmpfiles.d/spark-lab.conf\"\n"
        'chroot "$R" systemctl -q enable spark-lab-boot\n'
        # The node sees the host's kernel log and devices, which are not its own.
        'chroot "$R" systemctl -q mask systemd-modules-load console-getty getty.target'
        " rdma-load-modules@rdma rdma-load-modules@infiniband rdma-load-modules@roce\n"
    )


def key(machines: Machines) -> str:
    # HERE must not count: every clone that builds the same shares one image.
    made_by = hook(machines.user).replace(str(HERE), "")
    return cache.key_of_files(
        [HERE / name for name in OWN_FILES], made_by, ",".join(factory.PACKAGES), machines.suite, *rootfs.LEFT_OUT
    )


def ensure(machines: Machines, podman: Podman, progress: Progress) -> str:
    """The reference of the node image, built where it is missing."""
    tag = f"{REPOSITORY}:{key(machines)}"
    if podman.run("image", "exists", tag, check=False).returncode == 0:
        return tag
    host.ensure_packages(rootfs.COMMANDS, progress)

    def build(folder: Path) -> None:
        host.require_space(folder, SPACE_GIB, "the node image")
        with progress.step(f"node image: Debian {machines.suite} with systemd, NetworkManager, netplan and Docker"):
            rootfs.build(machines.suite, factory.PACKAGES, folder / "root.tar.zst", [hook(machines.user)])

    entry = cache.Entry("node", key(machines))
    if not entry.present():
        progress.say(f"no node image in {cache.folder()}")
    folder = entry.get(build)
    host.require_space(Path("/var/lib"), SPACE_GIB / 2, "podman's image store")
    with progress.step("node image: import"):
        podman.run("import", "--quiet", str(folder / "root.tar.zst"), tag)
    old = podman.run(
        "images", "--noheading", "--filter", f"reference={REPOSITORY}", "--format", "{{.Repository}}:{{.Tag}}"
    ).stdout.split()
    for reference in old:
        if reference != tag:
            # In use by another pair: it stays.
            podman.run("rmi", reference, check=False)
    if podman.run("image", "exists", tag, check=False).returncode:
        raise LabError(f"podman imported {tag} but does not have it")
    return tag
