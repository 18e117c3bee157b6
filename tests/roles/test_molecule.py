"""Each role by itself on two systemd containers: create, converge, idempotence, verify with testinfra, destroy."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SCENARIOS = sorted(path.parent.name for path in HERE.glob("molecule/*/converge.yml"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_role(scenario: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "MOLECULE_COMMAND_BORDERS": "0",
        # Molecule remembers how far it came; what it remembers of another run is not true of this one.
        "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path / scenario),
    }
    done = subprocess.run(
        ["molecule", "test", "--scenario-name", scenario, "--destroy", "always"],
        cwd=HERE,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"molecule test -s {scenario}\n{done.stdout}", pytrace=False)
