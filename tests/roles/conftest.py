"""What verifies a role: both nodes, each seen by testinfra through the lab's root console."""

from __future__ import annotations

import pytest
from testinfra.host import Host

from tests.e2e.virtual_pair import VirtualPair

NODES = ("spark-01", "spark-02")


@pytest.fixture(scope="session")
def pair() -> VirtualPair:
    return VirtualPair("molecule", NODES)


@pytest.fixture(params=NODES)
def host(request: pytest.FixtureRequest, pair: VirtualPair) -> Host:
    """Each node in turn."""
    return pair.host(request.param)


@pytest.fixture
def head(pair: VirtualPair) -> Host:
    return pair.host(NODES[0])
