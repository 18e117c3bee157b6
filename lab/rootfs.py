"""Root file systems of Debian, made by mmdebstrap from the mirror that the host itself uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import host
from lab.shell import run

# Files that no lab node reads; a third of the size of a root file system.
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
COMMANDS = {"mmdebstrap": "mmdebstrap", "zstd": "zstd"}


def build(
    suite: str, packages: Sequence[str], target: Path, hooks: Sequence[str] = (), *, early_hooks: Sequence[str] = ()
) -> None:
    """Make a root: a folder, or a tar where `target` ends in .tar or .tar.zst. Hooks are shell, with the root as $1.

    Early hooks run before the packages are installed, for settings that their installation reads.
    """
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
    options = ['APT::Install-Recommends "false"', 'Acquire::Languages "none"', *host.apt_proxies()]
    command += [f"--aptopt={option}" for option in options]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    command += [f"--essential-hook={hook}" for hook in early_hooks]
    command += [f"--customize-hook={hook}" for hook in hooks]
    command += [suite, str(target)]
    mirror = host.debian_mirror(host.apt_sources(), host.os_release())
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if keyring.exists():
        command.insert(1, f"--keyring={keyring}")
    run(command + ([mirror] if mirror else []), timeout=1200)
