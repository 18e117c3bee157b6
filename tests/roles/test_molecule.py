"""Each role by itself on two systemd containers: create, converge, idempotence, verify with testinfra, destroy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SCENARIOS = sorted(path.parent.name for path in HERE.glob("molecule/*/converge.yml"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_role(scenario: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["molecule", "test", "--scenario-name", scenario, "--destroy", "always"],
        cwd=HERE,
        env={**environment, "NO_COLOR": "1", "MOLECULE_COMMAND_BORDERS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"molecule test -s {scenario}\n{done.stdout}", pytrace=False)
