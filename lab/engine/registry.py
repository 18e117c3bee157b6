"""The engine image from a container registry: vLLM's own CPU image.

Not exercised where the lab was built, as no registry answers there. What is pulled must prove that it has vLLM's
command before it is used; `engine: auto` falls back to wheels otherwise.
"""

from __future__ import annotations

from pathlib import Path

from lab import cache
from lab.containers.podman import Podman
from lab.engine import IMAGE, VERSION
from lab.engine.wheels import reachable
from lab.errors import LabError
from lab.shell import Progress

REGISTRY = "public.ecr.aws"
REFERENCE = f"{REGISTRY}/q9t5s3a7/vllm-cpu-release-repo:v{VERSION}"


class UnusableError(LabError):
    """The registry's image cannot be had, or is not what the lab needs."""


def key() -> str:
    return cache.key(REFERENCE, "registry 1")


def answers() -> bool:
    return reachable(REGISTRY)


def fetch(tar: Path, podman: Podman, progress: Progress) -> str:
    """Pull the image into an archive and return the digest that it was pulled by."""
    try:
        with progress.step(f"engine: pull {REFERENCE}"):
            podman.run("pull", "--quiet", REFERENCE, timeout=1800)
            digest = podman.run("image", "inspect", "--format", "{{.Digest}}", REFERENCE).stdout.strip()
            podman.run("save", "--format=docker-archive", f"--output={tar}", REFERENCE, timeout=900)
    except LabError as error:
        raise UnusableError(error.what) from None
    finally:
        podman.run("rmi", REFERENCE, check=False)
    return digest


def check(podman: Podman, container: str) -> None:
    """Its command must be the one that a recipe calls; the entrypoint that vLLM's images have goes away."""
    changes = "--change 'ENTRYPOINT []' --change 'CMD []'"
    plain = f"docker commit {changes} $(docker create {IMAGE}) {IMAGE} && docker container prune -f"
    probe = f"docker run --rm --network none {IMAGE} vllm --version"
    done = podman.run("exec", container, "sh", "-c", f"{plain} && {probe}", check=False)
    if done.returncode:
        raise UnusableError(f"{REFERENCE}: `vllm --version` fails in it: {done.stderr.strip()[-300:]}")
