"""Fetching weights from the hub: what is asked of Docker, what becomes of errors, and the token's way.

The client is a stand-in of the same interface and the same errors here; the real one runs against the same double of
the hub where huggingface_hub can be had.
"""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import sys
import textwrap
from pathlib import Path

import pytest
from ansible.module_utils.spark import hub, hub_client, jobs, undo

from tests.hub_double import COMMIT, REPOSITORY, HubDouble

FILES = {"config.json": b"{}", "model-00001-of-00001.safetensors": bytes(range(256)) * 4000, "sub/a.txt": b"a"}

STAND_IN = """\
import json, os, pathlib, time, urllib.error, urllib.request
__version__ = "0.stand-in"
class HfHubHTTPError(Exception):
    def __init__(self, text, response=None):
        super().__init__(text); self.response = response
class RepositoryNotFoundError(HfHubHTTPError): pass
class GatedRepoError(RepositoryNotFoundError): pass
class RevisionNotFoundError(HfHubHTTPError): pass
class Thing:
    def __init__(self, **words): self.__dict__.update(words)
def ask(path, offset=0):
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    token = os.environ.get("HF_TOKEN_PATH")
    if token: headers["Authorization"] = "Bearer " + open(token).read()
    try:
        request = urllib.request.Request(os.environ["HF_ENDPOINT"] + path, headers=headers)
        return urllib.request.urlopen(request, timeout=20)
    except urllib.error.HTTPError as error:
        kinds = {"GatedRepo": GatedRepoError, "RepoNotFound": RepositoryNotFoundError,
                 "RevisionNotFound": RevisionNotFoundError}
        kind = kinds.get(error.headers.get("X-Error-Code"), HfHubHTTPError)
        raise kind(str(error), Thing(status_code=error.code)) from None
    except urllib.error.URLError as error:
        raise ConnectionError(str(error)) from None
class HfApi:
    def model_info(self, repository, revision, files_metadata):
        data = json.load(ask(f"/api/models/{repository}/revision/{revision}"))
        siblings = [Thing(size=item["size"], name=item["rfilename"]) for item in data["siblings"]]
        return Thing(sha=data["sha"], siblings=siblings)
def snapshot_download(repository, revision, max_workers, local_dir=None, cache_dir=None):
    if (local_dir or cache_dir) != os.environ["SPARK_TEST_MOUNT"]: raise RuntimeError("not mounted")
    for item in HfApi().model_info(repository, revision, True).siblings:
        path = pathlib.Path(local_dir, item.name)
        if path.exists(): continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".incomplete")
        with part.open("ab") as out:
            answer = ask(f"/{repository}/resolve/{revision}/{item.name}", out.tell())
            while block := answer.read(65536): out.write(block); out.flush()
        if part.stat().st_size != item.size: raise ConnectionError("it ended early")
        part.rename(path)
"""


class Node:
    """A node whose docker runs what it is given in a process, with no more than was mounted and set."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
        self.root, self.hub = root, HubDouble(files)
        (root / "bin").mkdir()
        (root / "image").mkdir()
        (root / "models").mkdir()
        (root / "image/huggingface_hub.py").write_text(STAND_IN)
        docker = root / "bin/docker"
        docker.write_text(
            textwrap.dedent(
                f"""\
                #!{sys.executable}
                import json, os, pathlib, sys
                words = sys.argv[1:]
                if words[0] != "run":
                    sys.exit(0)
                with open({str(root / "argv.jsonl")!r}, "a") as out:
                    out.write(json.dumps(words) + "\\n")
                given = [word.split("=", 1) for word in words if word.startswith("--") and "=" in word]
                volumes = [value.split(":") for name, value in given if name == "--volume"]
                env = dict(value.split("=", 1) for name, value in given if name == "--env")
                env |= {{"PYTHONPATH": {str(root / "image")!r}, "PATH": "/usr/bin:/bin", "LC_ALL": "C"}}
                env["SPARK_TEST_MOUNT"] = volumes[0][1]
                if "HF_TOKEN_PATH" in env:
                    env["HF_TOKEN_PATH"] = next(here for here, there, *_ in volumes if there == env["HF_TOKEN_PATH"])
                at = words.index("--entrypoint=python3")
                os.execve({sys.executable!r}, [{sys.executable!r}, *words[at + 2:]], env)
                """
            )
        )
        docker.chmod(0o755)
        monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(undo.record, "__kwdefaults__", {"root": root / "undo"})
        monkeypatch.setattr(hub, "LOGIN", root / "run/hub/login")
        monkeypatch.setattr(hub, "_PAUSE_S", 0)
        monkeypatch.setattr(hub, "_LOOK_EVERY_S", 0.05)
        monkeypatch.setattr(hub.Download, "_own_login", lambda _self: None)
        self.path = root / "models/tiny"
        self.status: dict = {}

    def run(self, **spec):
        self.status = jobs._fresh_status("weights-download", "weights_download", "spark-01", {})
        job = jobs.Reporter(self.root / "job.json", self.status)
        job.stage("begins")
        defaults = {"path": str(self.path), "repository": REPOSITORY, "revision": COMMIT, "image": "org/engine:1"}
        return hub.download_job({**defaults, "endpoint": self.hub.endpoint, **spec}, job)

    def fails(self, **spec):
        with pytest.raises(jobs.JobFailedError) as failed:
            self.run(**spec)
        (found,) = failed.value.findings
        return found

    def codes(self) -> list[str]:
        return [item["code"] for item in self.status["findings"]]

    def argv(self) -> list[str]:
        return json.loads((self.root / "argv.jsonl").read_text().splitlines()[-1])

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in self.path.rglob("*")
            if path.is_file() and ".cache" not in path.parts
        }


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch, FILES)
    yield made
    made.hub.close()


class TestDownload:
    def test_the_pinned_revision(self, node):
        result = node.run()
        assert (result["changed"], result["commit"]) == (True, COMMIT)
        assert node.files() == FILES
        assert node.codes() == ["HUB_FETCHED"]
        staging = node.root / "models/.spark-download-tiny"
        assert not staging.exists()
        journal = undo.read(root=node.root / "undo")
        assert [(item["kind"], item["path"], item["new"]) for item in journal] == [
            ("weights_copied", str(staging), True),
            ("weights_copied", str(node.path), True),
        ]
        owner = (node.root / "models").stat()
        assert f"--user={owner.st_uid}:{owner.st_gid}" in node.argv()
        assert node.run()["changed"] is False

    def test_a_branch_is_said_to_be_one(self, node):
        node.run(revision=None)
        assert node.codes() == ["HUB_REVISION_FLOATS", "HUB_FETCHED"]
        assert COMMIT in node.status["findings"][0]["remedy"]

    def test_it_goes_on_where_it_ended(self, node):
        node.hub.cut_after, node.hub.cuts = 300_000, 2
        node.run()
        assert node.files() == FILES
        assert [headers["Range"] for _, _, headers in node.hub.seen if "Range" in headers] == [
            "bytes=300000-",
            "bytes=600000-",
        ]

    def test_the_folders_of_the_hubs_own_cache(self, node):
        path = node.root / "models/models--org--tiny"
        with pytest.raises(jobs.JobFailedError):
            # The stand-in has no cache of its own; what matters is what it was asked.
            node.run(path=str(path))
        asked = json.loads(node.argv()[-1])
        assert (asked["layout"], asked["folder"]) == (
            "cache_dir",
            str(path.with_name(".spark-download-models--org--tiny")),
        )

    def test_no_real_name_before_it_is_whole(self, node, monkeypatch):
        monkeypatch.setattr(hub, "TRIES", 1)
        node.hub.cut_after, node.hub.cuts = 0, 99
        assert node.fails().code == "HUB_UNREACHABLE"
        assert not node.path.exists()
        node.hub.cuts = 0
        node.run()
        assert node.files() == FILES


class TestToken:
    def test_it_shows_nowhere(self, node, monkeypatch):
        node.hub.token = "hf_" + "s" * 30
        login = node.root / "token"
        login.write_text(node.hub.token + "\n")
        watched = []
        argv = hub.Download._argv

        def look(self, path):
            watched.append((stat.S_IMODE(path.stat().st_mode), path.read_text()))
            return argv(self, path)

        monkeypatch.setattr(hub.Download, "_argv", look)
        node.run(login_file=str(login))
        assert watched == [(0o400, node.hub.token)]
        assert node.hub.token not in (node.root / "argv.jsonl").read_text()
        assert node.hub.token not in json.dumps(node.status)
        assert not hub.LOGIN.exists()

    def test_a_job_may_carry_its_place(self):
        assert jobs.secrets_in({"login_file": "/etc/spark-cluster/hub"}) == []

    def test_no_such_file(self, node):
        assert node.fails(login_file=str(node.root / "none")).code == "HUB_DENIED"


class TestErrors:
    def test_gated(self, node):
        node.hub.token = "other"
        found = node.fails()
        assert found.code == "HUB_DENIED"
        assert f"{node.hub.endpoint}/{REPOSITORY}" in found.remedy

    def test_no_such_revision(self, node):
        assert node.fails(revision="f" * 40).code == "HUB_NO_SUCH_REVISION"

    def test_a_repository_that_is_not_there_or_closed(self, node):
        """The hub answers 401 to both for an unknown login."""
        assert node.fails(repository="org/other").code == "HUB_DENIED"
        (node.root / "token").write_text("hf_known")
        found = node.fails(repository="org/other", login_file=str(node.root / "token"))
        assert found.code == "HUB_NO_SUCH_REPOSITORY"

    def test_no_way_there(self, node, monkeypatch):
        monkeypatch.setattr(hub, "TRIES", 2)
        found = node.fails(endpoint="http://127.0.0.1:9")
        assert found.code == "HUB_UNREACHABLE"
        assert len((node.root / "argv.jsonl").read_text().splitlines()) == 2

    def test_silence(self, node, monkeypatch):
        node.hub.silent_s = 20
        monkeypatch.setattr(hub, "TRIES", 1)
        monkeypatch.setattr(hub, "STALL_S", 0.5)
        assert node.fails().code == "HUB_STALLED"

    def test_no_client_in_the_image(self, node):
        (node.root / "image/huggingface_hub.py").write_text("raise ImportError('no module')")
        assert node.fails().code == "HUB_CLIENT_MISSING"

    def test_no_room(self, node):
        assert node.fails(bytes=1 << 60).code == "DISK_FULL"
        assert not (node.root / "argv.jsonl").exists()

    @pytest.mark.parametrize(
        ("raised", "code"),
        [
            ("OSError(28, 'No space left on device')", "DISK_FULL"),
            ("PermissionError(13, 'Permission denied')", "HUB_FOLDER_CLOSED"),
            ("RuntimeError('something new')", "UNKNOWN_CAUSE"),
        ],
    )
    def test_in_the_middle(self, node, raised, code):
        with (node.root / "image/huggingface_hub.py").open("a") as out:
            out.write(f"\ndef snapshot_download(*a, **k): raise {raised}\n")
        assert node.fails().code == code

    @pytest.mark.parametrize(
        ("status", "kind"), [(404, "repository"), (401, "denied"), (403, "gated"), (500, "unknown")]
    )
    def test_by_the_status_alone(self, status, kind):
        error = RuntimeError("an error of a client that is newer")
        error.__dict__["response"] = type("Response", (), {"status_code": status})()
        assert hub_client.kind_of(error) == kind

    def test_not_found_for_a_known_login(self):
        error = type("RepositoryNotFoundError", (Exception,), {"response": type("R", (), {"status_code": 404})})()
        assert hub_client.kind_of(error) == "repository"

    def test_the_cause_behind_the_client_giving_up(self):
        error = type("LocalEntryNotFoundError", (Exception,), {})("cannot find it in the cache")
        error.__cause__ = type("GatedRepoError", (Exception,), {})()
        assert hub_client.kind_of(error) == "gated"


REAL = os.environ.get("SPARK_TEST_HUB_PYTHON") or (
    sys.executable if importlib.util.find_spec("huggingface_hub") else ""
)


@pytest.mark.skipif(not REAL, reason="no huggingface_hub here; SPARK_TEST_HUB_PYTHON names a Python that has it")
class TestRealClient:
    @pytest.fixture
    def real(self, node, monkeypatch):
        monkeypatch.setattr(hub, "TRIES", 1)
        (node.root / "image/huggingface_hub.py").unlink()
        docker = node.root / "bin/docker"
        called = "os.execve({0!r}, [{0!r}"
        docker.write_text(docker.read_text().replace(called.format(sys.executable), called.format(REAL)))
        return node

    def test_a_folder(self, real):
        assert real.run()["commit"] == COMMIT
        assert real.files() == FILES

    def test_its_own_cache(self, real):
        path = real.root / "models/models--org--tiny"
        real.run(path=str(path))
        found = path / "snapshots" / COMMIT / "model-00001-of-00001.safetensors"
        assert found.is_symlink()
        assert found.read_bytes() == FILES[found.name]

    def test_errors(self, real):
        assert real.fails(revision="f" * 40).code == "HUB_NO_SUCH_REVISION"
        assert real.fails(repository="org/other").code == "HUB_DENIED"
        assert real.fails(endpoint="http://127.0.0.1:9").code == "HUB_UNREACHABLE"
        real.hub.token = "other"
        assert real.fails().code == "HUB_DENIED"

    def test_a_token(self, real):
        real.hub.token = "hf_" + "s" * 30
        (real.root / "token").write_text(real.hub.token)
        real.run(login_file=str(real.root / "token"))
        assert real.files() == FILES
