"""Images: which are the same, what is done about one that is not, and the way from node to node."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.spark import images

CASES = yaml.safe_load(Path(__file__).with_name("images.yml").read_text())
NAME = "spark-lab/vllm-cpu:0.32.0"
ONE, OTHER = CASES["pairs"][0]["one"], CASES["pairs"][3]["other"]


class TestIdentity:
    @pytest.mark.parametrize("case", CASES["pairs"], ids=lambda case: case["name"])
    def test_same(self, case):
        one, other = images.identity(case["one"]), images.identity(case["other"])
        assert images.same(one, other) is case["same"]
        assert images.same(other, one) is case["same"]

    @pytest.mark.parametrize("case", CASES["pairs"], ids=lambda case: case["name"])
    def test_judged(self, case):
        one, other = images.identity(case["one"]), images.identity(case["other"])
        found = images.judge(NAME, one, other, "spark-02", "spark-01")
        assert found.code == ("IMAGE_VERIFIED" if case["same"] else "IMAGE_DIFFERS")
        assert (found.evidence == ()) is case["same"]

    def test_an_index_has_one_digest_for_all_its_platforms(self):
        pinned = {"RepoDigests": [f"a@sha256:{'a' * 64}"]}
        arm, amd = ({**pinned, "Architecture": name, "RootFS": {"Layers": [name]}} for name in ("arm64", "amd64"))
        assert not images.same(images.identity(arm), images.identity(amd))

    def test_an_absent_one_is_like_none(self):
        assert not images.same(images.ABSENT, images.ABSENT)
        assert images.judge(NAME, images.ABSENT, images.identity(ONE), "n", "m").code == "IMAGE_DIFFERS"

    @pytest.mark.parametrize("case", CASES["references"], ids=lambda case: case["reference"])
    def test_references(self, case):
        assert images.split(case["reference"]) == tuple(case["split"])
        assert images.local_name(case["reference"]) == case["local"]

    @pytest.mark.parametrize("text", CASES["not_references"])
    def test_no_reference(self, text):
        with pytest.raises(ValueError, match="not a reference"):
            images.split(text)


class TestFind:
    PINNED = f"{NAME}@sha256:{'a' * 64}"

    def test_there(self, tmp_path):
        found = images.find(NAME, {NAME: ONE}.get, tmp_path)
        assert found is not None
        assert found["name"] == NAME

    def test_not_there(self, tmp_path):
        assert images.find(NAME, lambda _reference: None, tmp_path) is None

    def test_pinned_and_known_by_its_tag_only(self, tmp_path):
        """A copy between nodes loses the registry digest on the classic store; the tag is how it is found."""
        found = images.find(self.PINNED, {NAME: ONE}.get, tmp_path)
        assert found is not None
        assert (found["name"], found["digests"]) == (NAME, [])
        warned = images.unproven(self.PINNED, found, "spark-02")
        assert warned is not None
        assert warned.code == "IMAGE_DIGEST_UNPROVEN"

    def test_what_a_copy_proved_counts(self, tmp_path):
        images.remember(images.identity(ONE)["content"], f"sha256:{'a' * 64}", tmp_path)
        found = images.find(self.PINNED, {NAME: ONE}.get, tmp_path)
        assert found is not None
        assert found["digests"] == [f"sha256:{'a' * 64}"]
        assert images.unproven(self.PINNED, found, "spark-02") is None

    def test_a_proof_is_of_one_content(self, tmp_path):
        images.remember(images.identity(ONE)["content"], f"sha256:{'a' * 64}", tmp_path)
        found = images.find(self.PINNED, {NAME: OTHER}.get, tmp_path)
        assert found is not None
        assert found["digests"] == []

    def test_a_tag_that_was_moved(self, tmp_path):
        """Its store knows a digest, and it is another one."""
        moved = {**OTHER, "RepoDigests": [f"spark-lab/vllm-cpu@sha256:{'b' * 64}"]}
        assert images.find(self.PINNED, {NAME: moved}.get, tmp_path) is None

    def test_a_torn_proof_proves_nothing(self, tmp_path):
        content = images.identity(ONE)["content"]
        (tmp_path / f"{content}.json").write_text("{")
        assert images.proven(content, tmp_path) == []


class TestSource:
    DIGEST = f"sha256:{'a' * 64}"

    @staticmethod
    def look(digests=None, answers=None):
        image = {**images.ABSENT, "present": digests is not None, "digests": digests or []}
        said = {} if answers is None else {"answers": answers, "said": "401" if not answers else "offers linux/arm64"}
        return {"image": image, "registry": said}

    @pytest.mark.parametrize(
        ("looks", "source", "pull"),
        [
            ([([], None), (None, None)], "spark-01", False),
            ([([], None), ([DIGEST], None)], "spark-02", False),
            ([(None, True), (None, True)], "spark-01", True),
            ([(None, False), (None, True)], "spark-02", True),
        ],
        ids=["the one that has it", "the one that shows the digest", "the head pulls", "where a registry answers"],
    )
    def test_chosen(self, looks, source, pull):
        named = {f"spark-0{number}": self.look(*look) for number, look in enumerate(looks, 1)}
        assert images.choose_source(NAME, self.DIGEST, "spark-01", named) == (source, pull, [])

    def test_nobody_has_it_and_no_registry_answers(self):
        named = {"spark-01": self.look(None, answers=False), "spark-02": self.look(None, answers=False)}
        source, _pull, findings = images.choose_source(NAME, self.DIGEST, "spark-01", named)
        assert (source, [item.code for item in findings]) == ("", ["IMAGE_UNAVAILABLE"])
        assert findings[0].evidence == ("spark-01: 401", "spark-02: 401")

    def test_asked_of_the_registry(self):
        offered = {"Platforms": [{"os": "linux", "architecture": "arm64"}]}
        said = images.registry_answer(NAME, self.DIGEST, lambda name: offered if name.endswith(self.DIGEST) else {})
        assert said == {"answers": True, "said": "offers linux/arm64"}

        def silent(_name):
            raise OSError("no such host")

        assert images.registry_answer(NAME, self.DIGEST, silent) == {"answers": False, "said": "no such host"}


class TestDecide:
    def test_the_same(self):
        copy, findings = images.decide(NAME, images.identity(ONE), images.identity(ONE), "spark-02", "spark-01")
        assert (copy, [item.code for item in findings]) == (False, ["IMAGE_VERIFIED"])

    @pytest.mark.parametrize("mine", [images.ABSENT, images.identity(OTHER)])
    def test_lacking_or_another(self, mine):
        assert images.decide(NAME, mine, images.identity(ONE), "spark-02", "spark-01") == (True, [])

    def test_a_pull_that_was_only_predicted(self):
        assert images.decide(NAME, images.ABSENT, images.ABSENT, "spark-02", "spark-01") == (True, [])
        assert images.decide(NAME, images.ABSENT, images.ABSENT, "spark-01", "spark-01") == (False, [])
