"""What Docker's daemon says: ``docker info``, ``docker image inspect`` and ``docker inspect`` as decoded JSON.

The same objects come from the command line with ``--format '{{json .}}'`` and from the daemon's socket.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..plan.types import CONFIG_LABEL
from .secrets import hide

if TYPE_CHECKING:
    from ..facts import DockerFacts, ImageFacts, RankContainer


def parse_info(info: Mapping[str, Any]) -> DockerFacts:
    """``docker info``. The command line reports an unreachable daemon inside an otherwise empty object."""
    errors = _texts(info.get("ServerErrors"))
    version = _text(info.get("ServerVersion"))
    return {
        "version": version,
        "storage_driver": _text(info.get("Driver")),
        "root": _text(info.get("DockerRootDir")),
        "error": "; ".join(errors) or (None if version else "the daemon told no version"),
    }


def parse_image(reference: str, image: Mapping[str, Any] | None, error: str | None = None) -> ImageFacts:
    """One object of ``docker image inspect``; None for an image that is not there."""
    found = image or {}
    size = found.get("Size")
    return {
        "reference": reference,
        "present": bool(found),
        "id": _text(found.get("Id")) or "",
        "repo_digests": sorted(_texts(found.get("RepoDigests"))),
        "layers": _texts(_object(found.get("RootFS")).get("Layers")),
        "architecture": _text(found.get("Architecture")) or "",
        "env": [hide(entry) for entry in _texts(_object(found.get("Config")).get("Env"))],
        "size_bytes": size if isinstance(size, int) else 0,
        "error": error,
    }


def parse_container(container: Mapping[str, Any]) -> RankContainer:
    """One object of ``docker inspect``: what tells whether it is the rank that was asked for."""
    state, config = _object(container.get("State")), _object(container.get("Config"))
    return {
        "id": _text(container.get("Id")) or "",
        "running": state.get("Running") is True,
        "started_at": _text(state.get("StartedAt")) or "",
        "config_sha256": _text(_object(config.get("Labels")).get(CONFIG_LABEL)) or "",
        "memory_share": _memory_share(_texts(config.get("Cmd"))),
    }


def _memory_share(argv: Sequence[str]) -> float | None:
    try:
        share = float(argv[argv.index("--gpu-memory-utilization") + 1])
    except (ValueError, IndexError):
        return None
    return share if math.isfinite(share) else None


# Of a field that has another kind than the daemon's, nothing is known.


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, (list, tuple)) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
