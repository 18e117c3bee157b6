"""What Docker's daemon says: ``docker info``, ``docker image inspect`` and ``docker inspect`` as decoded JSON.

The same objects come from the command line with ``--format '{{json .}}'`` and from the daemon's socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..plan.types import CONFIG_LABEL
from .secrets import hide

if TYPE_CHECKING:
    from ..facts import DockerFacts, ImageFacts, RankContainer


def parse_info(info: Mapping[str, Any]) -> DockerFacts:
    """``docker info``. The command line reports an unreachable daemon inside an otherwise empty object."""
    errors = [str(error) for error in info.get("ServerErrors") or ()]
    version = info.get("ServerVersion") or None
    return {
        "version": version,
        "storage_driver": info.get("Driver") or None,
        "root": info.get("DockerRootDir") or None,
        "error": "; ".join(errors) or (None if version else "the daemon told no version"),
    }


def parse_image(reference: str, image: Mapping[str, Any] | None, error: str | None = None) -> ImageFacts:
    """One object of ``docker image inspect``; None for an image that is not there."""
    found = image or {}
    config = found.get("Config") or {}
    return {
        "reference": reference,
        "present": bool(found),
        "id": str(found.get("Id", "")),
        "repo_digests": sorted(found.get("RepoDigests") or ()),
        "layers": list((found.get("RootFS") or {}).get("Layers") or ()),
        "architecture": str(found.get("Architecture", "")),
        "env": [hide(entry) for entry in config.get("Env") or ()],
        "size_bytes": int(found.get("Size", 0)),
        "error": error,
    }


def parse_container(container: Mapping[str, Any]) -> RankContainer:
    """One object of ``docker inspect``: what tells whether it is the rank that was asked for."""
    state = container.get("State") or {}
    labels = (container.get("Config") or {}).get("Labels") or {}
    return {
        "id": str(container.get("Id", "")),
        "running": bool(state.get("Running")),
        "started_at": str(state.get("StartedAt", "")),
        "config_sha256": str(labels.get(CONFIG_LABEL, "")),
        "memory_share": _memory_share((container.get("Config") or {}).get("Cmd") or []),
    }


def _memory_share(argv: Sequence[str]) -> float | None:
    try:
        return float(argv[argv.index("--gpu-memory-utilization") + 1])
    except (ValueError, IndexError):
        return None
