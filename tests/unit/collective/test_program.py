"""The program that runs in the image, as far as it goes without PyTorch; the virtual pair runs it with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Stands in for PyTorch where a step never ends.
STUCK = "import time\n__version__ = '0'\ndef __getattr__(name):\n    time.sleep(60)\n"


def program(project: Path, *arguments: str, path: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    argv = [sys.executable, str(project / "in_container" / "allreduce.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path or ""), **variables}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)


RANK = ("--rank", "0", "--nodes", "2", "--master", "127.0.0.1")


def test_a_step_without_end_ends_the_program(project: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(STUCK)
    done = program(project, *RANK, "--join", "1", path=tmp_path)
    assert done.returncode == 75, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["allreduce"], last["step"]) == ("stalled", "start")


def test_more_memory_than_the_cap_is_refused_before_anything_is_loaded(project: Path) -> None:
    done = program(project, *RANK, "--bytes", str(2**28))
    assert done.returncode == 1
    assert "the cap is 134217728" in done.stderr


@pytest.mark.parametrize("text", ["7", "0", "-2"])
def test_sizes_are_whole_numbers_of_values(project: Path, text: str) -> None:
    done = program(project, *RANK, f"--bytes={text}")
    assert done.returncode == 1
    assert "no whole number of bfloat16 values" in done.stderr


def test_the_engine_s_own_python_is_taken_where_this_one_has_no_pytorch(project: Path, tmp_path: Path) -> None:
    """Once: where that one has none either, the error is the interpreter's own."""
    own = tmp_path / "python-of-the-engine"
    own.write_text(f'#!/bin/sh\necho "own $2 $3"\nexec {sys.executable} "$@"\n')
    engine = tmp_path / "vllm"
    engine.write_text(f"#!{own}\n")
    for file in (own, engine):
        file.chmod(0o755)
    done = program(project, *RANK, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["own --rank 0"]
    assert "No module named 'torch'" in done.stderr
