"""What one model needs of each node, in memory and on disk, and whether it is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..findings import Finding, finding
from .build import rank_runs
from .inventory import Cluster
from .kv import KvShape, PerToken, Run, element_bytes, from_run, from_shape, nearest, read_config
from .memory import Fit, Load, Room, fit, second_node
from .recipe import Measured, Recipe
from .types import Image, NodeNeeds, Plan, Weights
from .units import GIB, gb, gib

Facts = Mapping[str, Any]


# Memory


def load_of(recipe: Recipe, width: int, total: int = 0, config: Mapping[str, Any] | None = None) -> Load:
    """What ``recipe`` puts into the memory of ``width`` ranks; ``total`` is the folder's size where it is known."""
    resident = max(0, max(total, recipe.weights_bytes) - recipe.on_disk_bytes)
    return Load(
        weights=resident,
        width=width,
        per_token=per_token(recipe, width, config),
        utilization=recipe.gpu_memory_utilization,
        context=recipe.max_model_len,
        sequences=recipe.max_num_seqs,
    )


def per_token(recipe: Recipe, width: int, config: Mapping[str, Any] | None = None) -> PerToken | None:
    """The best that is known of the cache's size per token: a run, a figure, the checkpoint, the recipe's numbers."""
    known = recipe.architecture
    shape, dtype = read_config(config)
    heads = known.kv_heads or (shape.kv_heads if shape else None) or None
    splits = 1 if known.kv_latent or (shape and shape.latent) else heads
    # Another profile keeps other things per token, a draft head's cache among them.
    own = [item for item in recipe.measured if item.profile == (recipe.profile or None)]
    runs = [run for run in (run_of(recipe, item) for item in own or recipe.measured) if run]
    run = nearest(runs, width, recipe.kv_dtype)
    measured = from_run(run, splits=splits) if run else None
    if measured:
        return measured
    if known.kv_bytes_per_token:
        return PerToken(known.kv_bytes_per_token, splits, "the recipe's figure")
    # All checkpoints of the catalogue compute in 16 bits, which is what the engine then keeps.
    element = element_bytes(recipe.kv_dtype, dtype or "bfloat16")
    if element is None:
        return None
    if shape:
        return from_shape(shape, element, "the checkpoint's config.json")
    layers = known.kv_layers or known.layers
    if layers and (known.kv_latent or (known.kv_heads and known.head_dim)):
        numbers = KvShape(layers, known.kv_heads or 0, known.head_dim or 0, known.kv_latent)
        return from_shape(numbers, element, "the recipe's numbers of its attention")
    return None


def run_of(recipe: Recipe, item: Measured) -> Run | None:
    """A measured pool with what decided its size, None where part of that was not recorded."""
    whole = item.memory_bytes and item.gpu_memory_utilization
    if not item.kv_pool_tokens or not (whole or item.kv_pool_bytes):
        return None
    weights = item.weights_bytes
    if weights is None:
        weights = (recipe.weights_bytes - item.on_disk_bytes) // item.nodes
    return Run(
        tokens=item.kv_pool_tokens,
        nodes=item.nodes,
        memory_bytes=item.memory_bytes or 0,
        utilization=item.gpu_memory_utilization or 0.0,
        weights_bytes=weights,
        source=item.source,
        kv_dtype=item.kv_dtype,
        pool_bytes=item.kv_pool_bytes,
    )


def freed_bytes(facts: Facts) -> int:
    """What the rank that runs now holds, and gives back when it is replaced: the share that its command line names."""
    if not rank_runs(facts):
        return 0
    share = (facts["rank"]["container"] or {}).get("memory_share")
    return int(share * facts["memory"]["total_bytes"]) if share else 0


def rooms_of(facts_by_node: Mapping[str, Facts]) -> list[Room]:
    rooms = []
    for node, facts in facts_by_node.items():
        memory = facts["memory"]
        total, available = int(memory["total_bytes"]), int(memory["available_bytes"])
        if rank_runs(facts):
            # Its share may be unknown, and memory is judged again on the node once it has ended.
            freed = freed_bytes(facts)
            available = min(total, available + freed) if freed else total
        rooms.append(Room(node, total, available))
    return rooms


def plan_needs(
    cluster: Cluster,
    plan: Plan,
    recipe: Recipe,
    weights: Weights,
    image: Image,
    facts_by_node: Mapping[str, Facts],
) -> tuple[list[NodeNeeds], list[str], list[Finding]]:
    """Each node's needs, what the nodes beyond the first one buy, and what is not there."""
    width = len(plan["nodes"])
    total = max(weights["bytes"], recipe.weights_bytes)
    # Where one node has the weights, theirs is the size of a full copy; the recipe's figure may be rounded.
    full = weights["bytes"] if weights["source_node"] else total
    seen = {m.node: facts_by_node[m.node] for m in cluster.members if m.node in facts_by_node}
    rooms = rooms_of(seen)
    source = seen.get(weights["source_node"] or "", {}).get("weights") or {}
    load = load_of(recipe, width, weights["bytes"], source.get("config"))
    image_bytes = int(image["identity"].get("size_bytes") or recipe.image_bytes or 0)
    findings = too_large(cluster, recipe, load, rooms)
    judged = fit(load, rooms) if rooms and recipe.gpu else None
    if judged and not findings:
        findings += _cache_findings(cluster, recipe, load, judged)
    needs: list[NodeNeeds] = []
    for node in plan["nodes"]:
        facts = facts_by_node.get(node["node"], {})
        room = next((room for room in rooms if room.node == node["node"]), Room(node["node"], 0, 0))
        memory, memory_sum = _taken(recipe, load, room, judged)
        if facts and not any(item.code == "MODEL_TOO_LARGE" for item in findings):
            findings += _memory_findings(recipe, facts, load, room, memory, memory_sum)
        disk, disk_sum, disk_findings = _disk(cluster, node["node"], full, image_bytes, facts)
        findings += disk_findings
        needs.append(
            {
                "node": node["node"],
                "memory_bytes": memory,
                "memory_sum": memory_sum,
                "disk_bytes": disk,
                "disk_sum": disk_sum,
            }
        )
    buys = [*second_node(load, rooms), decode_bought(recipe, width)] if width > 1 and recipe.gpu and rooms else []
    return needs, buys, findings


def too_large(cluster: Cluster, recipe: Recipe, load: Load, rooms: Sequence[Room]) -> list[Finding]:
    """Whether the weights alone fit: equal shares, so the smallest node rules."""
    if not rooms or load.share <= min(room.memory for room in rooms):
        return []
    smallest = min(rooms, key=lambda room: room.memory)
    uneven = len({room.memory for room in rooms}) > 1
    heads = recipe.attention_heads
    nodes = next(
        (n for n in range(load.width + 1, 65) if load.at(n).share <= smallest.memory and not (heads and heads % n)),
        None,
    )
    together = sum(room.memory for room in rooms)
    whole = load.weights + recipe.on_disk_bytes
    written = recipe.weights_said if whole == recipe.weights_bytes else f"{whole} bytes"
    exact = "" if written.endswith(" GiB") else f" = {gib(whole)}"
    kept = f" - {gib(recipe.on_disk_bytes)} that stay on disk" if recipe.on_disk_bytes else ""
    return [
        finding(
            "MODEL_TOO_LARGE",
            node=cluster.name,
            found=(
                f"{recipe.title}: {written}{exact}{kept} of weights / {load.width} = {gib(load.share)} per node, "
                "before any cache"
            ),
            expected=(
                f"at most {gib(smallest.memory)} per node, the memory of {smallest.node}"
                f"{', the smaller one, which rules' if uneven else ''}; together {gib(together)} = {gb(together)}"
            ),
            evidence=[f"{room.node}: {gib(room.memory)} of memory" for room in rooms],
            smallest=f"{nodes} of this size would hold the weights" if nodes else "none of this size would do",
        )
    ]


def _taken(recipe: Recipe, load: Load, room: Room, judged: Fit | None) -> tuple[int, str]:
    """What a rank takes of its node, and the sum in words."""
    if judged and recipe.gpu_memory_utilization is not None:
        return int(room.memory * recipe.gpu_memory_utilization), judged.sum
    share = f"weights {gib(load.weights)} / {load.width} = {gib(load.share)}"
    if recipe.reserve_bytes:
        taken = max(recipe.reserve_bytes, load.share)
        return taken, f"{share}; a rank was measured at {recipe.reserve_said}, cache included"
    return load.share, f"{share}; cache and activations unknown"


def _memory_findings(
    recipe: Recipe, facts: Facts, load: Load, room: Room, memory: int, memory_sum: str
) -> list[Finding]:
    """Whether the engine's share holds the weights, and whether the node has that share now."""
    asked = recipe.gpu_memory_utilization if recipe.gpu else None
    if asked is not None and memory <= load.share:
        least = load.share / room.memory
        return [
            finding(
                "MEMORY_TOO_SMALL",
                node=room.node,
                found=memory_sum,
                expected="an engine share that is larger than the weights",
                cure=f"Raise serve.gpu_memory_utilization of {recipe.name} above {least:.3f}, or use more nodes.",
            )
        ]
    if room.available >= memory:
        return []
    lower = ""
    if asked is not None and room.available > load.share:
        share = int(room.available / room.memory * 100) / 100
        lower = f", or lower serve.gpu_memory_utilization of {recipe.name} to {share:.2f}"
    freed = freed_bytes(facts)
    returned = f", {gib(freed)} of it from the rank that is replaced," if freed else ""
    return [
        finding(
            "MEMORY_TOO_SMALL",
            node=room.node,
            found=f"{gib(room.available)} available{returned} of {gib(room.memory)}",
            expected=f"{gib(memory)} for this rank: {memory_sum}",
            cure=f"End what uses memory on {room.node} (ps aux --sort -rss | head){lower}.",
        )
    ]


def _cache_findings(cluster: Cluster, recipe: Recipe, load: Load, judged: Fit) -> list[Finding]:
    """What beside the weights does not fit. A share that is too small for them or not available is said per node."""
    if load.utilization is None or judged.engine <= load.share:
        return []
    ways = "; or ".join(" and ".join(f"serve.{change}" for change in way) for way in judged.lower)
    if not judged.starts and not judged.unavailable:
        return [
            finding(
                "CACHE_TOO_SMALL",
                node=cluster.name,
                severity="fatal" if judged.certain else "warn",
                found=judged.sum,
                expected=f"room for a cache of at least one request of {load.context or 'any'} tokens",
                cure=f"In a recipe that extends {recipe.name}: {ways}." if ways else "Use more nodes.",
            )
        ]
    if judged.starts and judged.verdict == "fits with":
        return [
            finding(
                "CACHE_SHARED",
                node=cluster.name,
                found=judged.because,
                expected=f"{load.sequences} requests of {load.context} tokens at a time",
                evidence=[judged.sum],
                ways=ways,
            )
        ]
    if load.per_token is None:
        return [
            finding(
                "CACHE_UNKNOWN",
                node=cluster.name,
                found=judged.sum,
                expected="the bytes that a token's cache takes",
            )
        ]
    return []


def decode_bought(recipe: Recipe, width: int) -> str:
    """Decode of one request on ``width`` nodes against one node, as far as both were measured."""
    decode = [item for item in recipe.expected if item.what.startswith("decode") and item.concurrency == 1]
    many = next((item for item in decode if item.nodes == width and item.profile in (None, recipe.profile)), None)
    one = next((item for item in decode if item.nodes == 1 and many and item.unit == many.unit), None)
    if many and one and one.value:
        gain = f"{many.value / one.value - 1:+.1%}"
        return f"decode: {many.value:g} {many.unit} in place of {one.value:g} ({gain}), {many.source}"
    return (
        "decode: not measured on both; each node reads its part of the weights only, and what a step costs besides is "
        "not divided"
    )


# Disk


def _disk(cluster: Cluster, node: str, full: int, image_bytes: int, facts: Facts) -> tuple[int, str, list[Finding]]:
    """What must still be written, on which file system, and whether it has room for that and the headroom."""
    seen = facts.get("weights") or {}
    have = int(seen.get("bytes", 0)) if seen.get("present") else 0
    weights_left = max(0, full - have)
    image = facts.get("image") or {}
    image_left = 0 if image.get("present") else image_bytes
    unknown = not image.get("present") and not image_bytes
    headroom = cluster.policy.disk_headroom_gib * GIB
    parts = [f"weights {gib(weights_left)} to copy" if weights_left else "weights are there"]
    parts.append("image of unknown size" if unknown else f"image {gib(image_left)}" if image_left else "image is there")
    parts.append(f"{cluster.policy.disk_headroom_gib} GiB headroom")
    need = weights_left + image_left + headroom
    words = f"{' + '.join(parts)} = {gib(need)}"
    findings = []
    for path, free, wanted in _by_file_system(facts, weights_left, image_left):
        if free < wanted + headroom:
            findings.append(
                finding(
                    "DISK_TOO_SMALL",
                    node=node,
                    found=f"{gib(free)} free for {path}",
                    expected=f"{gib(wanted + headroom)}: {words}",
                    missing=gib(wanted + headroom - free),
                    path=path,
                )
            )
    return need, words, findings


def _by_file_system(facts: Facts, weights: int, image: int) -> list[tuple[str, int, int]]:
    """(path, free, to be written) for each file system that something is to be written to.

    Two places with the same free and total bytes are one file system.
    """
    wanted = {"models": weights, "docker": image}
    grouped: dict[tuple[int, int], tuple[str, int, int]] = {}
    for disk in facts.get("disks", ()):
        count = wanted.get(str(disk["purpose"]), 0)
        key = (int(disk["free_bytes"]), int(disk["total_bytes"]))
        path, free, before = grouped.get(key, (str(disk["path"]), key[0], 0))
        grouped[key] = (path if before or not count else str(disk["path"]), free, before + count)
    return [item for item in grouped.values() if item[2]]
