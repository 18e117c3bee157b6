"""What a token of context takes of a rank's memory: from a model's shape, or from a run's printed pool. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

# Beside weights and cache an engine keeps activations, CUDA graphs and NCCL's buffers. Public boot records of one model
# on GB10 at widths one, two and four, which name all other parts, leave 3.8 to 5.6 GiB for them.
RESERVE_BYTES = 4 * 2**30
# What a recipe's context is not lowered below: shorter ones serve nobody.
LEAST_CONTEXT = 4096


@dataclass(frozen=True)
class KvShape:
    """The part of a model's attention that decides the size of its cache.

    ``layers`` counts those that keep an entry for every token: linear attention and sliding windows stop growing.
    ``latent`` is the width of one compressed entry, which every rank keeps whole; heads are divided among the ranks.
    """

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent: int | None = None


@dataclass(frozen=True)
class Run:
    """A pool that an engine printed: ``tokens`` on ``nodes`` nodes, and what decided its size.

    ``weights_bytes`` is what of the model was in the memory of one rank; ``pool_bytes`` is what the pool took there,
    where the engine said so too.
    """

    tokens: int
    nodes: int
    memory_bytes: int
    utilization: float
    weights_bytes: int
    source: str
    kv_dtype: str | None = None
    pool_bytes: int | None = None


@dataclass(frozen=True)
class PerToken:
    """``whole`` are the bytes of one token's cache on a single rank; ``splits`` is how many ranks can share them.

    None for ``splits`` means that nobody has said, and then it is taken to be every rank.
    """

    whole: float
    splits: int | None
    source: str

    def on_rank(self, width: int) -> float:
        if self.splits is None:
            return self.whole / width
        return self.whole * math.ceil(self.splits / width) / self.splits


def element_bytes(kv_dtype: str | None, model_dtype: str | None) -> Fraction | None:
    """Bytes of one number in the cache. None where the format packs more than numbers, or is not known."""
    name = model_dtype if kv_dtype in (None, "auto") else kv_dtype
    if name is None or name.endswith("_mla"):
        return None
    if name.startswith("fp8"):
        return Fraction(1)
    # Four bits each, and one byte of scale for sixteen.
    if name == "nvfp4":
        return Fraction(9, 16)
    sizes = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
    return Fraction(sizes[name]) if name in sizes else None


def from_shape(shape: KvShape, element: Fraction, source: str) -> PerToken:
    if shape.latent is not None:
        return PerToken(float(shape.layers * shape.latent * element), 1, source)
    whole = 2 * shape.layers * shape.kv_heads * shape.head_dim * element
    return PerToken(float(whole), shape.kv_heads, source)


def from_run(run: Run, reserve: int = RESERVE_BYTES, splits: int | None = None) -> PerToken | None:
    """What a token took in a run: the pool, or what weights and reserve left of the engine's share, over its tokens."""
    room = run.pool_bytes or run.utilization * run.memory_bytes - run.weights_bytes - reserve
    if room <= 0 or run.tokens <= 0:
        return None
    share = PerToken(1.0, splits, "").on_rank(run.nodes)
    nodes = "one node" if run.nodes == 1 else f"{run.nodes} nodes"
    return PerToken(room / run.tokens / share, splits, f"the {run.tokens:,} tokens of a run on {nodes}")


def nearest(runs: Sequence[Run], width: int, kv_dtype: str | None) -> Run | None:
    """The run to predict from: the same cache format, and of those the nearest width, since not all of it divides."""
    fitting = [run for run in runs if run.kv_dtype in (None, kv_dtype)]
    return min(fitting, key=lambda run: abs(math.log2(run.nodes / width)), default=None)


# What compresses or indexes the cache in ways that these fields do not describe.
_OPAQUE = ("compress", "index_", "indexer", "sparse_attention", "qsa_")
_GROWS = ("full_attention", "attention", "global_attention")
_BOUNDED = ("sliding_attention", "linear_attention", "mamba", "chunked_attention", "recurrent", "local_attention")


def read_config(config: Mapping[str, Any] | None) -> tuple[KvShape | None, str | None]:
    """Shape and number format from a checkpoint's ``config.json``; no shape where it would be a guess."""
    text = (config or {}).get("text_config")
    fields: Mapping[str, Any] = text if isinstance(text, Mapping) else (config or {})
    dtype = fields.get("dtype") or fields.get("torch_dtype") or (config or {}).get("torch_dtype")
    dtype = dtype if isinstance(dtype, str) else None
    if any(key.startswith(_OPAQUE) for key in fields):
        return None, dtype
    layers = _growing_layers(fields)
    if layers is None:
        return None, dtype
    rank = _whole(fields, "kv_lora_rank")
    if rank is not None:
        rope = _whole(fields, "qk_rope_head_dim")
        return (KvShape(layers, latent=rank + rope) if rope is not None else None), dtype
    queries = _whole(fields, "num_attention_heads")
    heads = _whole(fields, "num_key_value_heads") or queries
    hidden = _whole(fields, "hidden_size")
    size = _whole(fields, "head_dim") or (hidden // queries if hidden and queries else None)
    return (KvShape(layers, heads, size) if heads and size else None), dtype


def _growing_layers(fields: Mapping[str, Any]) -> int | None:
    layers = _whole(fields, "num_hidden_layers")
    if layers is None:
        return None
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*") or None
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        known = all(kind in _GROWS + _BOUNDED for kind in kinds)
        return sum(kind in _GROWS for kind in kinds) or None if known else None
    every = _whole(fields, "full_attention_interval") or _whole(fields, "sliding_window_pattern")
    return layers // every if every else layers


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
