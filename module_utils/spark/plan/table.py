"""Every recipe against a number of nodes and their memory, as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .known import guard_findings
from .memory import Room, fit, largest_share
from .needs import load_of
from .recipe import Recipe, choose
from .units import GIB, gib

HEADINGS = ("model", "profile", "verdict", "weights/node", "KV pool", "disk/node", "recorded", "what to lower, or why")


@dataclass(frozen=True)
class Row:
    """One recipe with one profile on one set of nodes; ``pool`` is in tokens."""

    model: str
    profile: str
    verdict: str
    weights: int
    pool: int | None
    disk: int
    image_known: bool
    recorded: str
    remark: str

    @property
    def cells(self) -> tuple[str, ...]:
        pool = "unknown" if self.pool is None else f"{self.pool:,}"
        return (
            self.model,
            self.profile or "-",
            self.verdict,
            gib(self.weights),
            "-" if self.verdict == "does not fit" else pool,
            gib(self.disk) + ("" if self.image_known else " + image"),
            self.recorded,
            self.remark,
        )


def rooms_for(memory: Sequence[int]) -> list[Room]:
    """Nodes of which no more than the memory is known: all of it is taken to be available."""
    return [Room(f"node {rank}", each, each) for rank, each in enumerate(memory)]


def rows(recipes: Sequence[Recipe], rooms: Sequence[Room], headroom: int = 20 * GIB) -> list[Row]:
    """A row for each recipe, or for each of its profiles."""
    chosen = (choose(recipe, name) for recipe in recipes for name in recipe.profiles)
    plain = (recipe for recipe in recipes if not recipe.profiles)
    return sorted((row(recipe, rooms, headroom) for recipe in (*plain, *chosen)), key=lambda found: found.model)


def row(recipe: Recipe, rooms: Sequence[Room], headroom: int = 20 * GIB) -> Row:
    width = len(rooms)
    load = load_of(recipe, width)
    found = fit(load, rooms)
    verdict, remark, pool = str(found.verdict), found.because, found.pool
    if found.lower:
        remark = "; or ".join(", ".join(map(str, changes)) for changes in found.lower) + f" ({found.because})"
    elif found.verdict == "fits" and load.per_token is None:
        remark = "nothing says how much cache a token takes"
    elif found.verdict == "fits" and load.utilization is None:
        remark = f"with the largest engine share, {largest_share(rooms):.2f}, as the recipe names none"
    if not recipe.gpu:
        least = min(room.available for room in rooms)
        taken = max(recipe.reserve_bytes, load.share)
        verdict, pool = ("fits" if taken <= least else "does not fit"), None
        remark = f"{gib(taken)} per rank, measured" if recipe.reserve_bytes else ""
    return Row(
        model=recipe.name,
        profile=recipe.profile,
        verdict=verdict,
        weights=load.share,
        pool=pool,
        disk=recipe.weights_bytes + (recipe.image_bytes or 0) + headroom,
        image_known=recipe.image_bytes is not None,
        recorded=_recorded(recipe, width),
        remark=remark,
    )


def _recorded(recipe: Recipe, width: int) -> str:
    """What is known whatever fits: a guard, heads that cannot be divided, a record."""
    if guard_findings(recipe, width, node=recipe.name):
        return "refused"
    if recipe.attention_heads and recipe.attention_heads % width:
        return "uneven heads"
    known = recipe.width(width)
    return known.verdict if known else "unproven"


def lines(table: Sequence[Row]) -> list[str]:
    """Columns as wide as their widest cell; the last one runs free."""
    cells = [HEADINGS, *(item.cells for item in table)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS) - 1)]
    shown = []
    for line in cells:
        start = "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=False))
        shown.append(f"{start}  {line[-1]}".rstrip())
    return shown
