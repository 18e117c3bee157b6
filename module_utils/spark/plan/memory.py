"""Whether a model fits into the memory of its nodes, with the sum of weights, cache, reserve and engine share. Pure.

Every rank gets an equal share, so the smallest node decides for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .kv import LEAST_CONTEXT, RESERVE_BYTES, PerToken
from .units import gib

# What an engine may be given of a node's memory at most: the system needs the rest.
LARGEST_SHARE = 0.95
# A context that is lowered is lowered to whole steps of this many tokens.
STEP = 1024

Verdict = Literal["fits", "fits with", "does not fit"]


@dataclass(frozen=True)
class Load:
    """What a model puts into memory.

    ``weights`` are those of all ranks together that enter memory. ``per_token`` is None where nothing says how large
    the cache is. ``utilization`` is the engine's share of a node; None leaves it to the planner.
    """

    weights: int
    width: int
    per_token: PerToken | None = None
    utilization: float | None = None
    context: int | None = None
    sequences: int | None = None
    reserve: int = RESERVE_BYTES

    @property
    def share(self) -> int:
        """Of the weights, on each rank."""
        return -(-self.weights // self.width)

    def at(self, width: int) -> Load:
        return replace(self, width=width)


@dataclass(frozen=True)
class Room:
    """A node's memory: ``available`` is what is free now and what a rank that is replaced will give back."""

    node: str
    memory: int
    available: int


@dataclass(frozen=True)
class Change:
    """A setting of the recipe and what it has to be."""

    name: str
    value: str
    was: str

    def __str__(self) -> str:
        return f"{self.name} {self.was} -> {self.value}" if self.was else f"{self.name} {self.value}"


@dataclass(frozen=True)
class Fit:
    """What was found. ``lower`` are alternatives, each of them enough; ``pool`` is in tokens, None where unknown.

    ``starts`` says that the engine comes up as it is asked, ``unavailable`` that only other users of the memory prevent
    it, and ``certain`` that neither hangs on the reserve, which is an estimate.
    """

    verdict: Verdict
    rules: str
    share: int
    engine: int
    pool: int | None
    sum: str
    because: str = ""
    lower: tuple[tuple[Change, ...], ...] = ()
    starts: bool = True
    unavailable: bool = False
    certain: bool = True

    @property
    def said(self) -> str:
        ways = "; or ".join(", ".join(map(str, changes)) for changes in self.lower)
        return f"{self.verdict} {ways}" if self.verdict == "fits with" else self.verdict


def fit(load: Load, rooms: Sequence[Room]) -> Fit:
    """Judge ``load`` on ``rooms``, one per rank."""
    small = min(rooms, key=lambda room: room.memory)
    found = _fit(load, rooms, small)
    if not found.starts and _fit(replace(load, reserve=0), rooms, small).starts:
        return replace(found, certain=False)
    return found


def _fit(load: Load, rooms: Sequence[Room], small: Room) -> Fit:
    most = largest_share(rooms)
    asked = most if load.utilization is None else load.utilization
    engine = int(asked * small.memory)
    pool = _pool(load, engine)
    found = Fit("fits", small.node, load.share, engine, pool, _sum(load, rooms, small, engine, pool))
    base = load.share + load.reserve
    if base >= most * small.memory:
        return replace(found, verdict="does not fit", because=_why_not(load, rooms, small), starts=False)
    one = _taken(load, load.context or LEAST_CONTEXT)
    if asked > most or engine - base < one:
        return _with_another_share(load, small, found, most, one)
    if load.context and load.sequences and pool is not None and pool < load.context * load.sequences:
        return _with_fewer(load, found, pool, load.context, load.sequences)
    return found


def _why_not(load: Load, rooms: Sequence[Room], small: Room) -> str:
    if load.share > small.memory:
        return f"{gib(load.share)} of weights per node, {gib(small.memory)} of memory"
    if load.share + load.reserve >= LARGEST_SHARE * small.memory:
        return f"{gib(load.share)} of weights per node leave nothing of {gib(small.memory)} for a cache"
    return f"only {gib(min(room.available for room in rooms))} are available now"


def _with_another_share(load: Load, small: Room, found: Fit, most: float, one: float) -> Fit:
    """The engine's share is more than there is, or less than weights, reserve and one request take."""
    base = load.share + load.reserve
    too_much = load.utilization is not None and load.utilization > most
    if too_much:
        because = f"no more than {most:.2f} of the memory is available"
    elif load.per_token is None:
        because = "the engine's share does not hold weights and reserve"
    else:
        because = f"the cache does not hold one request of {load.context or LEAST_CONTEXT:,} tokens"
    least = math.ceil((base + one) / small.memory * 100) / 100
    was = "" if load.utilization is None else f"{load.utilization:g}"
    ways: list[tuple[Change, ...]] = []
    if least <= most and load.utilization is not None:
        ways.append((Change("gpu_memory_utilization", f"{most if too_much else least:.2f}", was),))
    if not ways or not too_much:
        # Without more memory for the engine, only a shorter context is left.
        share = load.utilization if ways and load.utilization is not None else most
        context = (_pool(load, int(share * small.memory)) or 0) // STEP * STEP
        if load.context and context >= LEAST_CONTEXT:
            change = [Change("max_model_len", str(context), str(load.context))]
            if load.utilization is not None and share != load.utilization:
                change.append(Change("gpu_memory_utilization", f"{share:.2f}", was))
            ways.append(tuple(change))
    verdict: Verdict = "fits with" if ways else "does not fit"
    return replace(found, verdict=verdict, because=because, lower=tuple(ways), starts=False, unavailable=too_much)


def _with_fewer(load: Load, found: Fit, pool: int, context: int, sequences: int) -> Fit:
    """One request fits and not all of them at full length at the same time."""
    ways = [(Change("max_num_seqs", str(pool // context), str(sequences)),)]
    shorter = pool // sequences // STEP * STEP
    if shorter >= LEAST_CONTEXT:
        ways.append((Change("max_model_len", str(shorter), str(context)),))
    because = f"its pool holds {pool / context:.1f} requests of {context:,} tokens, not {sequences}"
    return replace(found, verdict="fits with", because=because, lower=tuple(ways))


def largest_share(rooms: Sequence[Room]) -> float:
    """The largest share, in hundredths, that is available on every node."""
    return math.floor(min(min(room.available / room.memory, LARGEST_SHARE) for room in rooms) * 100 + 1e-9) / 100


def _taken(load: Load, tokens: int) -> float:
    return tokens * load.per_token.on_rank(load.width) if load.per_token else 0.0


def _pool(load: Load, engine: int) -> int | None:
    """Tokens that the cache of a rank holds; they are the same tokens on every rank."""
    if load.per_token is None:
        return None
    return max(0, int((engine - load.share - load.reserve) / load.per_token.on_rank(load.width)))


def _sum(load: Load, rooms: Sequence[Room], small: Room, engine: int, pool: int | None) -> str:
    which = ""
    if len({room.memory for room in rooms}) > 1:
        which = f" of {small.node}, the smaller one, which rules"
    words = f"weights {gib(load.weights)} / {load.width} = {gib(load.share)}"
    share = f"{engine / small.memory:.2f}" if load.utilization is None else f"{load.utilization:g}"
    words += f"; the engine takes {share} x {gib(small.memory)}{which} = {gib(engine)}, "
    left = engine - load.share
    if left <= 0:
        return f"{words}{gib(-left)} too little for the weights alone"
    words += f"which leaves {gib(left)}: {gib(load.reserve)} for activations, graphs and buffers, "
    room = left - load.reserve
    if room <= 0:
        return f"{words}and nothing for a cache"
    if pool is None or load.per_token is None:
        return f"{words}{gib(room)} for a cache, of which nothing says how much a token takes"
    each = load.per_token.on_rank(load.width)
    words += f"{gib(room)} for a cache of {pool:,} tokens at {each / 1000:.1f} kB (from {load.per_token.source})"
    if load.context:
        words += f"; one request of {load.context:,} tokens takes {gib(int(load.context * each))}"
    return words


def second_node(load: Load, rooms: Sequence[Room]) -> list[str]:
    """What the nodes beyond the first one buy: capacity and cache. What decode gains is measured, never computed."""
    if load.width < 2:
        return []
    small = min(rooms, key=lambda room: room.memory)
    alone, together = fit(load.at(1), [small]), fit(load, rooms)
    all_memory = sum(room.memory for room in rooms)
    lines = [f"capacity: {gib(all_memory)} in place of {gib(small.memory)}, {gib(load.share)} of weights on each node"]
    if alone.verdict == "does not fit":
        lines[0] += f"; on one node it does not fit: {alone.because}"
    elif alone.pool and together.pool:
        lines.append(
            f"cache: {together.pool:,} tokens in place of {alone.pool:,}, {together.pool / alone.pool:.2f} times"
        )
    return lines
