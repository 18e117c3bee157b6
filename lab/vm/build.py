"""What the VM pair needs root for: its packages, and with arguments its image.

python -m lab.vm.build [OUT SUITE GIB USER]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from lab import factory, host, rootfs
from lab.errors import LabError
from lab.shell import Progress, run

GUEST = Path(__file__).resolve().parent / "guest"
COMMANDS = rootfs.COMMANDS | {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
}
PACKAGES = (*factory.PACKAGES, "linux-image-amd64", "initramfs-tools", "busybox")

# Drivers of hardware that QEMU does not have: a third of what is left of the image.
DRIVERS = "sound drivers/gpu drivers/media drivers/staging drivers/iio drivers/net/wireless drivers/net/ethernet"

# Each of these costs an emulated boot up to a second and gives a lab machine nothing.
MASKED = """
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount
    systemd-binfmt.service ldconfig.service systemd-hwdb-update.service systemd-journal-catalog-update.service
    systemd-update-done.service systemd-firstboot.service systemd-machine-id-commit.service
    systemd-hibernate-clear.service systemd-pcrmachine.service systemd-pcrphase.service
    systemd-pcrphase-sysinit.service systemd-pstore.service systemd-tpm2-setup.service
    systemd-tpm2-setup-early.service systemd-random-seed.service systemd-ask-password-console.path
    systemd-ask-password-wall.path getty@tty1.service getty-static.service serial-getty@ttyS0.service
    sshd-keygen.service NetworkManager-dispatcher.service rdma-load-modules@infiniband.service
    rdma-load-modules@roce.service rdma-load-modules@rdma.service rdma-ndd.service iwpmd.service
"""
MASKED_GENERATORS = """
    systemd-tpm2-generator systemd-gpt-auto-generator systemd-hibernate-resume-generator systemd-ssh-generator
    systemd-cryptsetup-generator systemd-veritysetup-generator systemd-integritysetup-generator
"""


def tuning(user: str) -> str:
    """Shell that makes the root ($1) boot and answer quickly under emulation."""
    units, generators = " ".join(MASKED.split()), " ".join(MASKED_GENERATORS.split())
    return f"""set -eu
R=$1
mkdir -p "$R/etc/systemd/system-generators"
for unit in {units}; do ln -sf /dev/null "$R/etc/systemd/system/$unit"; done
for generator in {generators}; do ln -sf /dev/null "$R/etc/systemd/system-generators/$generator"; done
for family in {DRIVERS}; do rm -rf "$R"/usr/lib/modules/*/kernel/"$family"; done
for kernel in "$R"/usr/lib/modules/*; do chroot "$R" depmod "${{kernel##*/}}"; done
: > "$R/etc/fstab"
# Every sudo checks the password again: a hash that is dear on purpose takes half a second here.
echo '{user}:{factory.LAB_PASSWORD}' | chroot "$R" chpasswd -c SHA256 -s 1000
# A logind session starts a systemd of the user's own at each login.
chroot "$R" pam-auth-update --package --remove systemd
sed -i '/pam_motd\\|pam_mail/d' "$R/etc/pam.d/sshd"
chroot "$R" systemctl -q enable lab-rdma.service
chroot "$R" python3 -m compileall -q /usr/lib/python3.13 >/dev/null || true
"""


def missing() -> list[str]:
    """Commands that are not there; a user's PATH may have no sbin."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return [command for command in COMMANDS if not shutil.which(command, path=path)]


def image(out: Path, suite: str, gib: str, user: str) -> None:
    with tempfile.TemporaryDirectory(prefix="root-", dir=out) as scratch:
        root = Path(scratch) / "root"
        # The initial ram disk is made while the kernel is installed: what shapes it must lie there before.
        early = f'cp -rT --preserve=mode "{GUEST}" "$1"'
        rootfs.build(suite, PACKAGES, root, [factory.root_hook(user), tuning(user)], early_hooks=[early])
        for name in ("vmlinuz", "initrd.img"):
            (boot,) = (root / "boot").glob(f"{name}-*")
            shutil.copyfile(boot, out / name)
        # From the tree, without a mount, so that it works where loop devices do not.
        options = ["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", "-d", str(root)]
        run(["mkfs.ext4", *options, str(out / "root.img"), f"{gib}G"])
    owner = out.stat()
    for path in out.iterdir():
        os.chown(path, owner.st_uid, owner.st_gid)


def main(arguments: list[str]) -> str | None:
    try:
        host.require_root()
        host.ensure_packages(COMMANDS, Progress())
        if arguments:
            out, suite, gib, user = arguments
            image(Path(out), suite, gib, user)
    except LabError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
