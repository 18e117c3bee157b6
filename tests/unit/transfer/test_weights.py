"""Folders of weights: what is wrong with one, and what separates two."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible.module_utils.spark import weights
from ansible.module_utils.spark.weights import File, Manifest, manifest_from

from tests.unit.transfer import trees

SHA = "a" * 64


def read(root: Path, cache: Path) -> Manifest:
    made, findings = weights.scan(str(root), "spark-01")
    assert findings == []
    known, findings = weights.hash_all(str(root), made, "spark-01", made.unhashed())
    assert findings == []
    weights.remember(str(root), known, cache)
    return known


def codes(findings) -> list[str]:
    return [item.code for item in findings]


def judged(root: Path) -> list[str]:
    made, findings = weights.scan(str(root), "spark-01")
    return codes(findings + weights.completeness(str(root), made, "spark-01"))


class TestWhole:
    def test_a_folder(self, tmp_path):
        assert judged(trees.model(tmp_path / "m")) == []

    def test_a_hub_cache(self, tmp_path):
        assert judged(trees.hub_cache(tmp_path / "models--a--b")) == []

    def test_records_of_a_download_are_no_weights(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / ".cache/huggingface").mkdir(parents=True)
        (root / ".cache/huggingface/x.metadata").write_text("x")
        (root / "model.lock").write_text("")
        (root / "half.incomplete").write_text("x")
        made, _ = weights.scan(str(root), "n")
        assert sorted(made.files) == [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ]

    def test_other_formats_are_taken_as_they_are(self, tmp_path):
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        assert judged(tmp_path) == []

    def test_the_folder_may_be_a_link(self, tmp_path):
        trees.model(tmp_path / "real")
        (tmp_path / "m").symlink_to("real")
        assert judged(tmp_path / "m") == []


class TestNotWhole:
    def test_blobs_left_behind(self, tmp_path):
        """A copy of a hub cache by a tool that does not know its links: the names are there, the bytes are not."""
        root = trees.model(tmp_path / "m")
        for shard in root.glob("*.safetensors"):
            shard.write_bytes(b"")
        assert judged(root) == ["WEIGHTS_EMPTY"]

    def test_an_empty_blob_behind_a_link(self, tmp_path):
        root = trees.hub_cache(tmp_path / "m")
        link = root / "snapshots/0123abcd/model.safetensors"
        link.resolve().write_bytes(b"")
        assert judged(root) == ["WEIGHTS_EMPTY"]

    @pytest.mark.parametrize(
        "content",
        [
            trees.safetensors(64)[:-1],
            trees.safetensors(64) + b"x",
            trees.safetensors(64, claim=65),
            b"1234567",
            b"\xff" * 32,
            (8).to_bytes(8, "little") + b"not json",
            (2).to_bytes(8, "little") + b"[]",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n",
        ],
        ids=["short", "long", "claim", "tiny", "huge header", "no json", "a list", "git-lfs"],
    )
    def test_damaged(self, tmp_path, content):
        root = trees.model(tmp_path / "m")
        (root / "model-00002-of-00002.safetensors").write_bytes(content)
        assert judged(root) == ["WEIGHTS_TRUNCATED"]

    def test_a_shard_that_the_index_names(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / "model-00002-of-00002.safetensors").unlink()
        assert judged(root) == ["WEIGHTS_INCOMPLETE"]

    @pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 1}', '{"weight_map": {"a": {}}}'])
    def test_an_index_that_is_none(self, tmp_path, text):
        root = trees.model(tmp_path / "m")
        (root / "model.safetensors.index.json").write_text(text)
        assert judged(root) == ["WEIGHTS_INCOMPLETE"]

    def test_a_description_without_weights(self, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        assert judged(tmp_path) == ["WEIGHTS_INCOMPLETE"]


class TestLinks:
    @pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "../m/../outside"])
    def test_out_of_the_folder(self, tmp_path, target):
        (tmp_path / "outside").write_text("x")
        root = trees.model(tmp_path / "m")
        (root / "sub").mkdir()
        (root / "vocab.json").symlink_to(target)
        assert judged(root) == ["WEIGHTS_LINK_ESCAPES"]

    def test_absolute_to_the_inside_means_nothing_in_a_container(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / "vocab.json").symlink_to(root / "tokenizer.json")
        assert judged(root) == ["WEIGHTS_LINK_ESCAPES"]

    def test_out_by_way_of_another_link(self, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/x").write_text("x")
        root = trees.model(tmp_path / "m")
        (root / "a").symlink_to("../outside")
        (root / "b").symlink_to("a/x")
        assert judged(root) == ["WEIGHTS_LINK_ESCAPES"]

    def test_a_snapshot_without_its_blobs(self, tmp_path):
        root = trees.hub_cache(tmp_path / "m") / "snapshots/0123abcd"
        assert "WEIGHTS_LINK_ESCAPES" in judged(root)

    def test_to_nothing(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / "vocab.json").symlink_to("gone.json")
        assert judged(root) == ["WEIGHTS_LINK_DANGLING"]

    def test_inside(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / "sub").mkdir()
        (root / "sub/vocab.json").symlink_to("../tokenizer.json")
        assert judged(root) == []


class TestOdd:
    def test_a_pipe(self, tmp_path):
        root = trees.model(tmp_path / "m")
        os.mkfifo(root / "pipe")
        assert judged(root) == ["WEIGHTS_UNREADABLE"]

    def test_a_name_with_a_line_break(self, tmp_path):
        root = trees.model(tmp_path / "m")
        (root / "a\nb").write_text("x")
        assert judged(root) == ["WEIGHTS_UNREADABLE"]

    def test_a_read_error(self, tmp_path, monkeypatch):
        root = trees.model(tmp_path / "m")
        made, _ = weights.scan(str(root), "n")

        def failing(*_arguments):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(weights, "hash_open", failing)
        _known, findings = weights.hash_all(str(root), made, "n", ["config.json"])
        assert codes(findings) == ["WEIGHTS_UNREADABLE"]

    def test_a_file_that_grows_while_it_is_read(self, tmp_path):
        root = trees.model(tmp_path / "m")
        made, _ = weights.scan(str(root), "n")

        def write(_count: int) -> None:
            with (root / "config.json").open("a") as out:
                out.write("x")

        _known, findings = weights.hash_all(str(root), made, "n", ["config.json"], write)
        assert codes(findings) == ["WEIGHTS_CHANGING"]


class TestHashes:
    def test_are_those_of_the_bytes(self, tmp_path):
        root = trees.model(tmp_path / "m", size=9 << 20)
        known = read(root, tmp_path / "cache")
        for path, item in known.files.items():
            assert item.sha256 == hashlib.sha256((root / path).read_bytes()).hexdigest()

    def test_are_remembered_for_these_very_files(self, tmp_path):
        root = trees.model(tmp_path / "m")
        known = read(root, tmp_path / "cache")
        again = weights.recall(str(root), weights.scan(str(root), "n")[0], tmp_path / "cache")
        assert again.digest() == known.digest()

    @pytest.mark.parametrize("change", ["size", "time", "inode"])
    def test_are_forgotten_for_another_file(self, tmp_path, change):
        root = trees.model(tmp_path / "m")
        read(root, tmp_path / "cache")
        path = root / "config.json"
        status = path.stat()
        if change == "size":
            path.write_text("{ }")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif change == "time":
            os.utime(path, ns=(1, 1))
        else:
            (root / "copy").write_bytes(path.read_bytes())
            os.utime(root / "copy", ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(root / "copy", path)
        again = weights.recall(str(root), weights.scan(str(root), "n")[0], tmp_path / "cache")
        assert again.unhashed() == ["config.json"]
        assert again.digest() is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": {"config.json": [1]}}'])
    def test_a_broken_record_is_no_record(self, tmp_path, text):
        root = trees.model(tmp_path / "m")
        read(root, tmp_path / "cache")
        (record,) = (tmp_path / "cache").iterdir()
        record.write_text(text)
        made = weights.recall(str(root), weights.scan(str(root), "n")[0], tmp_path / "cache")
        assert len(made.unhashed()) == 5

    def test_the_digest_knows_names_contents_and_links(self):
        base = Manifest({"a": File(1, SHA)}, {"l": "a"})
        others = [
            Manifest({"b": File(1, SHA)}, {"l": "a"}),
            Manifest({"a": File(2, SHA)}, {"l": "a"}),
            Manifest({"a": File(1, "b" * 64)}, {"l": "a"}),
            Manifest({"a": File(1, SHA)}, {"l": "b"}),
            Manifest({"a": File(1, SHA)}),
        ]
        assert len({base.digest(), *(other.digest() for other in others)}) == 6
        assert Manifest({"a": File(1, SHA, 5, 6)}, {"l": "a"}).digest() == base.digest()


class TestManifestFromElsewhere:
    def test_there_and_back(self):
        made = Manifest({"a": File(1, SHA), "s/b": File(2)}, {"l": "s/b", "s/l": "../a"})
        assert manifest_from(made.as_data()).as_data() == made.as_data()

    @pytest.mark.parametrize(
        "data",
        [
            {"files": [["../a", 1, SHA]]},
            {"files": [["/etc/passwd", 1, SHA]]},
            {"files": [["a/../../b", 1, SHA]]},
            {"files": [["a/./b", 1, SHA]]},
            {"files": [["", 1, SHA]]},
            {"files": [["a\nb", 1, SHA]]},
            {"files": [["a\0b", 1, SHA]]},
            {"files": [["a", -1, SHA]]},
            {"files": [["a", "1", SHA]]},
            {"files": [["a", 1, "x"]]},
            {"files": [["a", 1, SHA], ["a/b", 1, SHA]]},
            {"links": [["l", "/etc/passwd"]]},
            {"links": [["l", "../x"]]},
            {"links": [["s/l", "../../x"]]},
            {"links": [["../l", "a"]]},
            {"links": [["l", ""]]},
            {"links": [["l", "s"]], "files": [["l/x", 1, SHA]]},
            {"files": [["l", 1, SHA]], "links": [["l", "a"]]},
        ],
        ids=repr,
    )
    def test_what_would_leave_the_folder(self, data):
        with pytest.raises(ValueError, match="a manifest with"):
            manifest_from(data)


class TestCompare:
    SOURCE = Manifest({"big": File(9, SHA), "small": File(1, SHA)}, {"l": "big"})

    def test_the_same(self):
        assert codes(weights.compare("/m", self.SOURCE, self.SOURCE, "n")) == ["WEIGHTS_VERIFIED"]

    @pytest.mark.parametrize(
        "have",
        [
            Manifest(),
            Manifest({"big": File(9, SHA)}, {"l": "big"}),
            Manifest({"big": File(9, "b" * 64), "small": File(1, SHA)}, {"l": "big"}),
            Manifest({"big": File(8, SHA), "small": File(1, SHA)}, {"l": "big"}),
            Manifest({"big": File(9, SHA), "small": File(1, SHA)}, {"l": "small"}),
            Manifest({"big": File(9, SHA), "small": File(1, SHA)}),
            Manifest({"big": File(9, None), "small": File(1, SHA)}, {"l": "big"}),
        ],
    )
    def test_not_the_same(self, have):
        assert codes(weights.compare("/m", self.SOURCE, have, "n")) == ["WEIGHTS_DIFFER"]

    def test_more_than_the_source(self):
        have = Manifest({**self.SOURCE.files, "extra.safetensors": File(1, SHA)}, self.SOURCE.links)
        found = weights.compare("/m", self.SOURCE, have, "n")
        assert codes(found) == ["WEIGHTS_VERIFIED", "WEIGHTS_EXTRA"]
        assert "/m/extra.safetensors" in found[1].remedy

    def test_the_largest_goes_first(self):
        assert weights.needed(self.SOURCE, Manifest()) == ["big", "small"]


class TestDecide:
    @staticmethod
    def state(digest, *, present=True, arriving=False):
        data = Manifest({"a": File(1, SHA)}).as_data()
        return {"path": "/m", "present": present, "digest": digest, "arriving": arriving, "manifest": data}

    @pytest.mark.parametrize(
        ("mine", "source", "copy", "said"),
        [
            (("x",), ("x",), False, ["WEIGHTS_VERIFIED"]),
            (("x",), ("y",), True, []),
            ((None,), ("x",), False, []),
            ((None,), (None,), False, []),
        ],
    )
    def test_by_the_digest(self, mine, source, copy, said):
        decided, findings = weights.decide("spark-02", "spark-01", self.state(*mine), self.state(*source))
        assert (decided, codes(findings)) == (copy, said)

    def test_nothing_there(self):
        mine = self.state(None, present=False)
        assert weights.decide("spark-02", "spark-01", mine, self.state(None)) == (True, [])

    def test_a_copy_that_was_cut_off_is_tidied_up(self):
        mine = self.state("x", arriving=True)
        assert weights.decide("spark-02", "spark-01", mine, self.state("x"))[0]

    def test_the_source_never_copies_from_itself(self):
        assert not weights.decide("spark-01", "spark-01", self.state("x", arriving=True), self.state("x"))[0]


class TestRoom:
    def test_enough(self):
        assert weights.room("n", "/m", 100 << 30, 121 << 30, 20 << 30) == []

    def test_nothing_to_copy_needs_no_room(self):
        assert weights.room("n", "/m", 0, 0, 20 << 30) == []

    def test_not_enough(self):
        (found,) = weights.room("n", "/", 100 << 30, 119 << 30, 20 << 30)
        assert found.code == "DISK_FULL"
        assert "free 1.00 GiB below /" in found.remedy
        assert "120.0 GiB" in found.expected


class TestMissing:
    def test_says_where_and_how(self):
        found = weights.missing("lab", ["/srv/models/tiny"], "org/tiny", "0123abcd")
        assert found.code == "WEIGHTS_MISSING"
        assert "hf download org/tiny --revision 0123abcd --local-dir /srv/models/tiny" in found.remedy
        assert found.evidence == ("looked at /srv/models/tiny",)

    def test_without_a_repository(self):
        assert "to /srv/models/tiny" in weights.missing("lab", ["/srv/models/tiny"]).remedy
