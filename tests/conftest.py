"""Shared by all tests: our module_utils importable as on a node, and a marker for each test by its folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ansible.module_utils
import pytest

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

TESTS = Path(__file__).resolve().parent
# ansible-playbook and the linters are those of the environment that runs the tests, however it was started.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
MARKERS = {"lint": "lint", "unit": "unit", "roles": "role", "e2e": "e2e"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKERS:
            item.add_marker(MARKERS[folder])


@pytest.fixture(scope="session")
def project() -> Path:
    """Root of the clone."""
    return TESTS.parent
