"""Where an engine keeps what it compiles: on the node, apart for each image and recipe, kept over restarts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .recipe import Recipe
from .types import STATE_DIR

IN_CONTAINER = "/jit"
# Without these every start compiles again, some of it in the middle of serving, while the other rank waits.
_FOLDERS = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
}


def jit_folder(recipe: Recipe) -> str:
    """The node's folder: never on a shared file system, never used by another image or another set of overlays."""
    content = [recipe.image_reference, [[item.file, item.target, item.sha256] for item in recipe.overlays]]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    return f"{STATE_DIR}/jit/{recipe.name}-{key}"


def jit_variables() -> Mapping[str, str]:
    return {name: f"{IN_CONTAINER}/{folder}" for name, folder in _FOLDERS.items()}
