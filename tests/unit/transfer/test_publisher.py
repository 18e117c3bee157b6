"""What a download recorded: hashes, revisions, and whether the files are still those."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from ansible.module_utils.spark import publisher, weights

from tests.unit.transfer import trees
from tests.unit.transfer.trees import COMMIT

OTHER = "f" * 40


def look(root: Path) -> tuple[weights.Manifest, publisher.Record]:
    made = weights.scan(str(root), "n")[0]
    return made, publisher.read(str(root), made)


def hashed(root: Path) -> tuple[weights.Manifest, publisher.Record]:
    made, record = look(root)
    return weights.hash_all(str(root), made, "n", made.unhashed())[0], record


def revisions(root: Path, wanted: str | None) -> list[str]:
    return [item.code for item in publisher.revision_findings(str(root), look(root)[1], wanted, "n")]


@pytest.fixture
def cache(tmp_path):
    return trees.downloaded(tmp_path / "models--a--b", trees.safetensors(100))


@pytest.fixture
def folder(tmp_path):
    """A download into a plain folder, with the records beside it."""
    root = trees.model(tmp_path / "tiny", shards=1)
    records = root / ".cache/huggingface/download"
    records.mkdir(parents=True)
    for path in list(root.iterdir()):
        if path.is_file():
            etag = hashlib.sha256(path.read_bytes()).hexdigest()
            (records / f"{path.name}.metadata").write_text(f"{COMMIT}\n{etag}\n{time.time()}\n")
    return root


class TestRecord:
    def test_of_a_cache(self, cache):
        made, record = look(cache)
        assert [len(record.sha256), len(record.git), record.commits] == [1, 1, {COMMIT}]
        assert record.refs == {"main": COMMIT}
        assert publisher.claimed(made, record) == dict(record.sha256)

    def test_of_a_folder(self, folder):
        made, record = look(folder)
        assert record.commits == {COMMIT}
        assert record.sha256.keys() == made.files.keys()

    def test_a_file_that_was_written_after_its_record_is_not_covered(self, folder):
        later = time.time() + 100
        os.utime(folder / "config.json", (later, later))
        assert "config.json" not in look(folder)[1].sha256

    def test_of_nothing(self, tmp_path):
        root = trees.model(tmp_path / "tiny")
        assert look(root)[1] == publisher.Record()

    @pytest.mark.parametrize("text", ["", "x", f"{COMMIT}\nnot a hash\n1.0\n", f"{COMMIT}\n{'0' * 64}\nnever\n"])
    def test_a_record_that_says_nothing(self, folder, text):
        (folder / ".cache/huggingface/download/config.json.metadata").write_text(text)
        assert "config.json" not in look(folder)[1].sha256

    def test_a_reading_beats_a_claim(self, cache):
        known, record = hashed(cache)
        assert publisher.claimed(known, record) == {}


class TestDiffering:
    def test_as_published(self, cache):
        known, record = hashed(cache)
        assert publisher.differing(str(cache), known, record, "n") == []

    def test_a_large_file_that_is_not(self, cache):
        (blob,) = [path for path in (cache / "blobs").iterdir() if len(path.name) == 64]
        blob.write_bytes(trees.safetensors(100, fill=9))
        (found,) = publisher.differing(str(cache), *hashed(cache), "n")
        assert found.code == "WEIGHTS_PUBLISHER_DIFFERS"
        assert blob.name[:12] in found.evidence[0]

    def test_a_small_file_that_is_not(self, cache):
        (blob,) = [path for path in (cache / "blobs").iterdir() if len(path.name) == 40]
        blob.write_bytes(b'{"edited": true}')
        (found,) = publisher.differing(str(cache), *hashed(cache), "n")
        assert found.evidence[0].endswith(f"is not the published {blob.name[:12]}")


class TestRevision:
    def test_the_pinned_one(self, cache, folder):
        assert revisions(cache, COMMIT) == revisions(folder, COMMIT) == []

    def test_another_one(self, cache, folder):
        assert revisions(cache, OTHER) == revisions(folder, OTHER) == ["WEIGHTS_REVISION_DIFFERS"]

    @pytest.mark.parametrize("wanted", [None, "main"])
    def test_a_name_that_moves(self, cache, wanted):
        (found,) = publisher.revision_findings(str(cache), look(cache)[1], wanted, "n")
        assert found.code == "WEIGHTS_UNPINNED"
        assert found.remedy == f"In the recipe set weights.revision: {COMMIT}"

    def test_a_folder_without_a_record(self, tmp_path):
        root = trees.model(tmp_path / "tiny")
        assert revisions(root, COMMIT) == ["WEIGHTS_REVISION_UNKNOWN"]
        assert revisions(root, None) == []


class TestOwner:
    def test_one_owner(self, cache):
        made = look(cache)[0]
        assert publisher.owner_findings(str(cache), made, "n", (os.getuid(), 0)) == []

    def test_somebody_else(self, cache):
        (found,) = publisher.owner_findings(str(cache), look(cache)[0], "n", (os.getuid() + 1, 7))
        assert found.code == "WEIGHTS_OWNER"
        assert found.remedy == f"On n: sudo chown -hR {os.getuid() + 1}:7 {cache}"
