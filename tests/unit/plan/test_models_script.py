"""``make models`` as it is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
SAMPLE = str(PROJECT / "inventory" / "sample")


def models(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROJECT / "scripts" / "models.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_every_shipped_recipe_has_a_row() -> None:
    said = models("-i", SAMPLE, "--on", "2x121")
    assert said.returncode == 0, said.stderr
    for path in (PROJECT / "models").glob("*.yml"):
        assert path.stem in said.stdout


def test_that_the_machines_are_those_of_the_sample_is_said_first() -> None:
    if (PROJECT / "inventory" / "cluster").exists():
        pytest.skip("this clone has an inventory of its own")
    assert models().stdout.splitlines()[0].startswith("There is no inventory/cluster yet: this is for the two Sparks")
    for arguments in (("-i", SAMPLE), ("--on", "2x121")):
        assert "There is no inventory" not in models(*arguments).stdout, "what was asked for needs no remark"


def test_machines_without_a_cluster_are_no_clusters_of_one(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("spark: {hosts: {spark-01: {}, spark-02: {}}}\n")
    said = models("-i", str(hosts))
    assert (said.returncode, said.stdout) == (2, "")
    assert "cluster_name" in said.stderr
    assert "spark-02" in said.stderr
    # Other machines need no inventory.
    assert models("-i", str(hosts), "--on", "2x121").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--on", "2x" + "9" * 400), "is neither NODESxGIB"),
        (("--on", "two"), "is neither NODESxGIB"),
        (("-i", "no-such-inventory.yml"), "no host in the group spark"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: tuple[str, ...], expected: str) -> None:
    said = models(*arguments)
    assert said.returncode == 2
    assert expected in said.stderr
    assert "Traceback" not in said.stderr
