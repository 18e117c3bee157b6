"""What is known about a recipe before it is served: its guards, its overlays, and what somebody measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..findings import Finding, finding
from .recipe import Recipe, choose, digest_of, refused_value
from .types import OVERLAY_DIR, Bundle, Figure


def chosen(recipe: Recipe, profile: str, values: Sequence[str], *, node: str) -> tuple[Recipe | None, list[Finding]]:
    """``recipe`` with the profile and the values that the inventory asks for, or why it cannot have them.

    ``values`` are NAME=VALUE; the last one of a name counts.
    """
    findings = []
    if profile and profile not in recipe.profiles:
        known = ", ".join(recipe.profiles)
        findings.append(
            finding(
                "PROFILE_UNKNOWN",
                node=node,
                found=f"profile: {profile}",
                expected=f"one of {known}" if known else f"no profile, {recipe.name} has none",
                cure=f"Use -e profile= with one of: {known}" if known else "Leave profile away.",
            )
        )
    asked = dict(value.split("=", 1) for value in values)
    for name, value in asked.items():
        variable = recipe.variables.get(name)
        known = ", ".join(recipe.variables)
        expected = (refused_value(variable, value) or "") if variable else f"one of {known}" if known else "none"
        if expected:
            cure = f"Set {name} to {expected}." if variable else f"Remove {name}; the recipe knows: {known or 'none'}"
            findings.append(
                finding(
                    "PROFILE_VALUE_INVALID",
                    node=node,
                    found=f"profile_values: {name}={value}",
                    expected=expected,
                    cure=cure,
                )
            )
    return (None, findings) if findings else (choose(recipe, profile, asked), [])


def guard_findings(recipe: Recipe, width: int, *, node: str) -> list[Finding]:
    findings = []
    for guard in recipe.guards:
        if not guard.refuses(recipe.values, width):
            continue
        settings = " ".join(f"{name}={recipe.values[name]}" for name in guard.when) or recipe.name
        cost = [f"it takes {guard.memory_said} more per rank"] if guard.memory_said else []
        findings.append(
            finding(
                "GUARD_REFUSES",
                node=node,
                found=f"{settings} on {width} node{'s' if width != 1 else ''}",
                expected="another combination",
                evidence=[guard.because, *cost, f"source: {guard.source}"],
                cure=guard.cure,
            )
        )
    return findings


def overlay_findings(recipe: Recipe, bundle: Bundle, *, node: str) -> list[Finding]:
    """Whether every overlay is part of what the nodes get, with the bytes that the recipe means.

    Without one of them the engine would start as another engine.
    """
    bundled = {item["path"]: item["sha256"] for item in bundle["files"]}
    findings = []
    missing = [item for item in recipe.overlays if f"{OVERLAY_DIR}/{item.name}" not in bundled]
    if missing:
        sources = sorted({item.source for item in missing if item.source})
        findings.append(
            finding(
                "OVERLAY_MISSING",
                node=node,
                found=f"{len(missing)} of {len(recipe.overlays)} overlay files are in no folder of recipes",
                expected=", ".join(item.file for item in missing),
                evidence=[f"from {source}" for source in sources],
            )
        )
    for item in recipe.overlays:
        got = bundled.get(f"{OVERLAY_DIR}/{item.name}")
        if got is not None and item.sha256 is not None and got != item.sha256:
            findings.append(
                finding(
                    "OVERLAY_DIFFERS",
                    node=node,
                    found=f"{item.file} has the SHA-256 {got}",
                    expected=item.sha256,
                    evidence=[f"from {item.source}"] if item.source else [],
                    file=item.file,
                )
            )
    return findings


def overlay_hashes(recipe: Recipe, bundle: Bundle) -> dict[str, str]:
    """The overlays that are mounted, and what is in them."""
    bundled = {item["path"]: item["sha256"] for item in bundle["files"]}
    return {item.target: bundled.get(f"{OVERLAY_DIR}/{item.name}", "") for item in recipe.overlays}


def figures(recipe: Recipe, width: int) -> list[Figure]:
    """The figures for this width and profile. Only those of the very image that is served can be judged by."""
    return [
        {
            "what": item.what,
            "value": item.value,
            "unit": item.unit,
            "concurrency": item.concurrency,
            "image": item.image,
            "source": item.source,
            "same_image": same_image(item.image, recipe.image_reference or ""),
        }
        for item in recipe.expected
        if item.nodes == width and item.profile in (None, recipe.profile)
    ]


def same_image(one: str, other: str) -> bool:
    """Digests decide; without them only the same text is the same image, and words about an image never are."""
    digests = digest_of(one), digest_of(other)
    return digests[0] == digests[1] if all(digests) else bool(one) and one == other
