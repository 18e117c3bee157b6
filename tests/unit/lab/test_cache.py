"""The cache: whole or not there, and keyed by what builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dgx-spark-cluster" / "lab"


def test_key_depends_on_each_part_and_its_borders() -> None:
    assert cache.key("ab", "c") == cache.key(b"ab", "c")
    assert len({cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("ab", "d")}) == 4


def test_key_of_files_depends_on_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("x")
    two.write_text("y")
    before = cache.key_of_files([one, two])
    assert cache.key_of_files([two, one]) == before
    two.write_text("z")
    assert cache.key_of_files([one, two]) != before
    assert cache.key_of_files([one, two], "suite") != cache.key_of_files([one, two], "other")


def test_an_entry_is_built_once_and_replaces_older_ones(own_cache: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "image").write_text("whole")

    old = cache.Entry("node", "old").get(build)
    assert cache.Entry("node", "old").get(build) == old
    assert len(built) == 1
    new = cache.Entry("node", "new").get(build)
    assert (new / "image").read_text() == "whole"
    assert not old.exists()
    assert [path.name for path in own_cache.glob("node-*")] == ["node-new"]


def test_a_failed_build_leaves_nothing(own_cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "image").write_text("half")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError):
        cache.Entry("node", "one").get(build)
    assert not cache.Entry("node", "one").present()
    assert [path for path in own_cache.iterdir() if path.suffix != ".lock"] == []


def test_a_build_that_was_overtaken_uses_the_other_result() -> None:
    entry = cache.Entry("node", "one")

    def build(folder: Path) -> None:
        entry.path.mkdir()
        (entry.path / "image").write_text("theirs")

    assert (entry.get(build) / "image").read_text() == "theirs"
