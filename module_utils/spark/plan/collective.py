"""What the all-reduce of a model is about: how many bytes a token's activation has, and how many calls a token takes.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .recipe import Recipe, flag_value
from .types import Activation, Collective

Facts = Mapping[str, Any]

# Activations are reduced in 16 bits, whatever the format of the weights is.
DTYPE_BYTES = 2


def plan_collective(recipe: Recipe, facts_by_node: Mapping[str, Facts]) -> Collective:
    """Null where nobody says: neither the recipe nor the configuration that lies beside the weights."""
    hidden, source = _hidden_size(recipe, facts_by_node)
    return {
        "hidden_size": hidden,
        "hidden_source": source,
        "dtype_bytes": DTYPE_BYTES,
        "activations": _activations(recipe, hidden) if hidden else [],
        "calls_per_token": recipe.architecture.collectives_per_token,
        "calls_source": recipe.architecture.collectives_source,
    }


def _hidden_size(recipe: Recipe, facts_by_node: Mapping[str, Facts]) -> tuple[int | None, str]:
    if recipe.architecture.hidden_size:
        return recipe.architecture.hidden_size, f"the recipe {recipe.name}"
    for node, facts in facts_by_node.items():
        config = (facts.get("weights") or {}).get("config") or {}
        for part in (config, config.get("text_config") or {}):
            size = part.get("hidden_size") if isinstance(part, Mapping) else None
            if isinstance(size, int) and size > 0:
                return size, f"config.json of the weights on {node}"
    return None, ""


def _activations(recipe: Recipe, hidden: int) -> list[Activation]:
    """One call reduces hidden_size values for every token of the step."""
    chunk = flag_value(recipe.flags, "--max-num-batched-tokens") or ""
    steps = [
        ("one token", 1),
        ("a full batch, one token each", recipe.max_num_seqs or 1),
        ("a chunk of a prompt", int(chunk) if chunk.isdecimal() else 1),
    ]
    found: list[Activation] = []
    for about, tokens in steps:
        if tokens > 0 and tokens not in (item["tokens"] for item in found):
            found.append({"about": about, "tokens": tokens, "bytes": hidden * DTYPE_BYTES * tokens})
    return found
