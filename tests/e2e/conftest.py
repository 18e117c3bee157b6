"""Pairs for the end-to-end tests: each is brought to factory state once per module.

A pair that the session booted stays up for its next module, and goes when another pair is wanted or at the end: the
machine has two cores, and a boot costs more than most tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .virtual_pair import VirtualPair


@pytest.fixture(scope="session")
def booted() -> Iterator[list[VirtualPair]]:
    """The pairs that were down before and are up now."""
    pairs: list[VirtualPair] = []
    yield pairs
    for pair in pairs:
        pair.lab("down")


def _pair(name: str, booted: list[VirtualPair], folder: Path | None = None) -> VirtualPair:
    pair = VirtualPair(name, folder=folder)
    for other in [one for one in booted if one.name != name]:
        other.lab("down")
        booted.remove(other)
    if not pair.is_up():
        booted.append(pair)
    pair.factory()
    return pair


@pytest.fixture(scope="module")
def container_pair(booted: list[VirtualPair]) -> VirtualPair:
    return _pair("lab", booted)


@pytest.fixture(scope="module")
def bare_pair(booted: list[VirtualPair]) -> VirtualPair:
    """Two containers without an engine: nothing is served, and they boot in seconds."""
    return _pair("bare", booted, Path(__file__).parent / "pairs")


@pytest.fixture(scope="module")
def vm_pair(booted: list[VirtualPair]) -> VirtualPair:
    return _pair("lab-fabric", booted)
