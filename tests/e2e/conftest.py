"""Pairs for the end-to-end tests: each is brought to factory state once per module and removed at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .virtual_pair import VirtualPair


def _pair(name: str) -> Iterator[VirtualPair]:
    pair = VirtualPair(name)
    was_up = pair.is_up()
    pair.factory()
    yield pair
    if not was_up:
        pair.lab("down")


@pytest.fixture(scope="module")
def container_pair() -> Iterator[VirtualPair]:
    yield from _pair("lab")


@pytest.fixture(scope="module")
def vm_pair() -> Iterator[VirtualPair]:
    yield from _pair("lab-fabric")
