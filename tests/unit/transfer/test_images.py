"""Images: which are the same, what is done about one that is not, and the way from node to node."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.spark import images, jobs
from ansible.module_utils.spark.runner import Completed

CASES = yaml.safe_load(Path(__file__).with_name("images.yml").read_text())
PROJECT = Path(__file__).resolve().parents[3]
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


class TestInspect:
    @staticmethod
    def docker(known: dict[str, dict], error: str = ""):
        def run(argv, **_options):
            if error:
                return Completed(tuple(argv), 1, "[]", error)
            found = known.get(argv[-1])
            if found:
                return Completed(tuple(argv), 0, json.dumps([found]), "")
            return Completed(tuple(argv), 1, "[]", f"Error response from daemon: No such image: {argv[-1]}")

        return run

    def test_there(self):
        found, findings = images.inspect(NAME, "n", self.docker({NAME: ONE}))
        assert (found["present"], found["name"], findings) == (True, NAME, [])

    def test_not_there(self):
        assert images.inspect(NAME, "n", self.docker({})) == (images.ABSENT, [])

    def test_pinned_and_known_by_its_tag_only(self):
        """A copy between nodes loses the registry digest on the classic store; the tag is how it is found."""
        pinned = f"{NAME}@sha256:{'a' * 64}"
        found, _findings = images.inspect(pinned, "n", self.docker({NAME: ONE}))
        assert found["name"] == NAME

    def test_docker_is_silent(self):
        said = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
        found, findings = images.inspect(NAME, "n", self.docker({}, said))
        assert not found["present"]
        assert [item.code for item in findings] == ["DOCKER_SILENT"]
        assert findings[0].evidence == (said,)


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


class Docker:
    """A docker per node: a script that keeps its images as files, and an ssh that calls the peer's forced command."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        for node in ("spark-01", "spark-02"):
            (root / node).mkdir()
        program = root / "bin"
        program.mkdir()
        script = program / "docker"
        script.write_text(
            textwrap.dedent(f"""\
            #!{sys.executable}
            import json, os, pathlib, sys
            home = pathlib.Path({str(root)!r}, os.environ.get("SPARK_TEST_NODE", "spark-01"))
            files = {{path.stem.replace("%", "/"): path for path in home.glob("*.json")}}
            words = [word for word in sys.argv[1:] if word != "--"]
            if words[:2] == ["image", "inspect"]:
                if words[-1] not in files:
                    sys.exit("Error response from daemon: No such image: " + words[-1])
                data = json.loads(files[words[-1]].read_text())
                print(data["Id"] if "--format" in words else json.dumps([data]))
            elif words[0] == "save":
                sys.stdout.write(files[words[1]].read_text() + " " * 3000000)
            elif words[0] == "load":
                data = sys.stdin.read()
                if (home / "full").exists():
                    sys.exit("write /var/lib/docker/tmp/x: no space left on device")
                name = json.loads(data)["RepoTags"][0]
                if (home / "garbles").exists():
                    data = data.replace("sha256:bb", "sha256:cc")
                (home / (name.replace("/", "%") + ".json")).write_text(data)
                print("Loaded image: " + name)
            elif words[0] == "pull":
                sys.exit("Error response from daemon: dial tcp: lookup ghcr.io: no such host")
            """)
        )
        script.chmod(0o755)
        ssh = root / "ssh"
        ssh.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            shift
            SPARK_TEST_NODE=spark-02 SSH_ORIGINAL_COMMAND="$*" exec {sys.executable} -c '
            import sys; sys.path.insert(0, "{PROJECT}/module_utils")
            import syslog; syslog.syslog = lambda *words: None
            from spark import peer
            sys.exit(peer.main([]))'
            """)
        )
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program}:/usr/bin:/bin")
        monkeypatch.setattr(images, "ssh_argv", lambda address, **_options: [str(ssh), address])

    def has(self, node: str, data: dict, name: str = NAME) -> None:
        (self.root / node / f"{name.replace('/', '%')}.json").write_text(json.dumps({**data, "RepoTags": [name]}))

    def run(self, function, **spec):
        self.status = jobs._fresh_status("push", "image_push", "spark-01", {})
        job = jobs.Reporter(self.root / "jobs/push.json", self.status)
        job.stage("begins")
        defaults = {"reference": NAME, "node": "spark-02", "addresses": ["192.168.200.13", "192.168.201.13"]}
        return function({**defaults, **spec}, job)

    def codes(self) -> list[str]:
        return [item["code"] for item in self.status["findings"]]


@pytest.fixture
def docker(tmp_path, monkeypatch) -> Docker:
    return Docker(tmp_path, monkeypatch)


class TestPush:
    def test_an_image_that_the_peer_lacks(self, docker):
        docker.has("spark-01", ONE)
        result = docker.run(images.push_job)
        assert result["changed"]
        assert result["bytes"] > 3_000_000
        assert docker.codes() == ["IMAGE_VERIFIED"]
        assert docker.status["progress"]["stage"] == f"spark-02 unpacks {NAME}"

    def test_another_one_of_that_name(self, docker):
        docker.has("spark-01", ONE)
        docker.has("spark-02", OTHER)
        assert docker.run(images.push_job)["changed"]
        assert docker.codes() == ["IMAGE_VERIFIED"]

    def test_the_same_is_not_sent(self, docker):
        docker.has("spark-01", ONE)
        docker.has("spark-02", ONE)
        assert docker.run(images.push_job) | {"image": None} == {"changed": False, "bytes": 0, "image": None}

    def test_one_that_arrives_otherwise(self, docker):
        docker.has("spark-01", ONE)
        (docker.root / "spark-02/garbles").touch()
        docker.run(images.push_job)
        assert docker.codes() == ["IMAGE_DIFFERS"]

    def test_no_room_on_the_peer(self, docker):
        docker.has("spark-01", ONE)
        (docker.root / "spark-02/full").touch()
        with pytest.raises(jobs.JobFailedError) as failed:
            docker.run(images.push_job)
        assert [(item.code, item.node) for item in failed.value.findings] == [("DISK_FULL", "spark-02")]

    def test_it_went_away_at_the_source(self, docker):
        with pytest.raises(jobs.JobFailedError) as failed:
            docker.run(images.push_job)
        assert [item.code for item in failed.value.findings] == ["IMAGE_UNAVAILABLE"]


class TestPull:
    def test_where_no_registry_answers(self, docker):
        reference, digest = "ghcr.io/org/engine:0.1.1", f"sha256:{'a' * 64}"
        with pytest.raises(jobs.JobFailedError) as failed:
            docker.run(images.pull_job, reference=reference, digest=digest)
        (found,) = failed.value.findings
        assert found.code == "IMAGE_UNAVAILABLE"
        assert f"docker pull ghcr.io/org/engine@{digest}" in found.remedy
        assert "no such host" in found.evidence[0]

    @pytest.mark.parametrize("digest", ["", "latest", "sha256:12"])
    def test_never_by_anything_but_a_digest(self, docker, digest):
        with pytest.raises(ValueError, match="reference"):
            docker.run(images.pull_job, digest=digest)
