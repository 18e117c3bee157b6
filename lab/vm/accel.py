"""KVM or emulation: found out by booting the very kernel that the pair boots."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
import typing
from collections.abc import Sequence
from pathlib import Path

from lab import cache
from lab.shell import Progress
from lab.state import end_process, write_atomic
from lab.vm import qemu

# A kernel without a root device says this and stops: everything before it (unpacking, paging, timers, PCI) has worked.
REACHED = b"Kernel panic - not syncing: VFS"
BROKEN = (b"KVM internal error", b"failed to initialize kvm", b"Could not access KVM", b"failed to set MSR")
# Under a KVM that works it takes one to three seconds.
DEADLINE_S = 12.0


def choose(wanted: str, image: Path, progress: Progress) -> str:
    """`kvm` or `tcg`. With `auto` a trial decides once per boot of the host and kernel of the image."""
    if wanted != "auto":
        return wanted
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    verdicts = cache.folder() / "kvm.json"
    with contextlib.suppress(OSError, ValueError, LookupError):
        last = json.loads(verdicts.read_text())
        if last["of"] == subject(image):
            return str(last["accel"])
    begin = time.monotonic()
    works, why = trial(probe_argv(image))
    progress.say(f"KVM {'works' if works else 'does not work'} here: {why} ({time.monotonic() - begin:.1f} s)")
    return remember("kvm" if works else "tcg", image)


def subject(image: Path) -> list[str]:
    """What a verdict is about: this boot of the host, this kernel."""
    return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), image.name]


def remember(accel: str, image: Path) -> str:
    verdict = {"of": subject(image), "accel": accel}
    cache.folder().mkdir(parents=True, exist_ok=True)
    write_atomic(cache.folder() / "kvm.json", json.dumps(verdict) + "\n", 0o644)
    return accel


def probe_argv(image: Path) -> list[str]:
    """A machine that has a processor and a console, and nothing to boot from."""
    kernel = ["-kernel", str(image / "vmlinuz"), "-append", "console=ttyS0 panic=-1"]
    plain = ["-machine", "q35", "-m", "256", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]
    return ["qemu-system-x86_64", *qemu.ACCELERATORS["kvm"], *plain, *kernel]


def trial(argv: Sequence[str], deadline_s: float = DEADLINE_S) -> tuple[bool, str]:
    """Whether the machine's output reaches the end of a kernel's own start before the deadline, and what was seen."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = typing.cast("typing.IO[bytes]", process.stdout)
    seen = b""
    end = time.monotonic() + deadline_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                chunk = os.read(output.fileno(), 65536)
                seen += chunk
                if REACHED in seen:
                    return True, "the kernel started"
                if any(text in seen for text in BROKEN) or not chunk:
                    lines = [line for line in seen.decode(errors="replace").splitlines() if line.strip()]
                    reason = next((line for line in lines if any(text.decode() in line for text in BROKEN)), "")
                    return False, reason.strip() or (lines[-1].strip() if lines else "QEMU ended without a word")
        return False, f"the kernel did not start within {deadline_s:.0f} s"
    finally:
        end_process(process.pid, 2)
        output.close()
        process.wait()
