"""The modules and action plugins: what they return and what they refuse."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import image_daemon, images, jobs, peer, runner, trust, undo, weights
from ansible.module_utils.spark.codes import DOMAINS
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.testing import patch_module_args

from tests.unit.transfer import trees

PROJECT = Path(__file__).resolve().parents[3]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDlI0a8uNMuRCKT8XEv2WkR1YIxgCdUwbnSBxfM4zUvF"
NODES = [
    {"node": "spark-01", "rails": [{"address": "192.168.200.12"}, {"address": "192.168.201.12"}]},
    {"node": "spark-02", "rails": [{"address": "192.168.200.13"}, {"address": "192.168.201.13"}]},
]
IDENTITIES = [{"public_key": None, "host_keys": []}, {"public_key": KEY, "host_keys": [KEY]}]
Call = Callable[..., dict[str, Any]]


def load(folder: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, PROJECT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(name: str, /, *, check: bool = False, diff: bool = False, **arguments: Any) -> dict[str, Any]:
        flags = {"_ansible_check_mode": check, "_ansible_diff": diff}
        with patch_module_args({"node": "spark-01", **arguments, **flags}), pytest.raises(SystemExit):
            load("library", name).main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def codes(result: dict[str, Any]) -> list[str]:
    return [item["code"] for item in result["findings"]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node in a folder: its /etc and /var are there, root's home as well, and sshd lets root in."""
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text(f"{KEY} root@spark-01\n")
    ssh = tmp_path / "etc/spark-cluster/ssh"
    monkeypatch.setattr(peer, "KEY", ssh / "id_ed25519")
    monkeypatch.setattr(peer, "KNOWN_HOSTS", ssh / "known_hosts")
    monkeypatch.setattr(peer, "CONFIG", tmp_path / "etc/spark-cluster/peer.json")
    monkeypatch.setattr(trust.host_keys, "__defaults__", (tmp_path / "etc/ssh",))
    monkeypatch.setattr(trust.read_key, "__defaults__", (ssh / "id_ed25519", runner.run))
    monkeypatch.setattr(trust.make_key, "__defaults__", (ssh / "id_ed25519", runner.run, tmp_path / "undo"))
    monkeypatch.setattr(trust.write, "__defaults__", (tmp_path / "undo",))
    monkeypatch.setattr(trust.file_entry, "__defaults__", (tmp_path / "backup",))
    monkeypatch.setattr(trust.authorized_keys_path, "__defaults__", (tmp_path / "root",))
    monkeypatch.setattr(trust, "sshd_settings", lambda _address: {"permitrootlogin": ["without-password"]})
    return tmp_path


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed here")
class TestPeerKey:
    def test_made_once(self, node, call):
        first = call("peer_key")
        second = call("peer_key")
        assert (first["changed"], second["changed"]) == (True, False)
        assert first["public_key"] == second["public_key"]
        assert first["host_keys"] == [KEY]

    def test_check_mode_makes_none(self, node, call):
        result = call("peer_key", check=True, diff=True)
        assert (result["changed"], result["public_key"]) == (True, None)
        assert not (node / "etc/spark-cluster").exists()

    def test_no_private_half_anywhere(self, node, call):
        said = json.dumps(call("peer_key", diff=True))
        private = [line for line in peer.KEY.read_text().splitlines() if "PRIVATE" not in line]
        assert all(line not in said for line in private)

    def test_no_host_keys(self, node, call):
        (node / "etc/ssh/ssh_host_ed25519_key.pub").unlink()
        result = call("peer_key")
        assert (result["failed"], codes(result)) == (True, ["PEER_HOST_KEYS_MISSING"])
        assert not peer.KEY.exists()


class TestPeerTrust:
    @staticmethod
    def trust(call: Call, **more: Any) -> dict[str, Any]:
        arguments = {"cluster": "lab", "nodes": NODES, "identities": IDENTITIES, "receive": ["/home/spark/models"]}
        return call("peer_trust", **{**arguments, **more})

    def test_once(self, node, call):
        first = self.trust(call)
        assert (first["changed"], codes(first), first["peers"]) == (True, [], ["spark-02"])
        keys = node / "root/.ssh/authorized_keys"
        assert KEY in keys.read_text()
        assert keys.stat().st_mode & 0o777 == 0o600
        assert json.loads(peer.CONFIG.read_text())["receive"] == ["/home/spark/models"]
        before = {path: path.stat() for path in (keys, peer.KNOWN_HOSTS, peer.CONFIG)}
        assert not self.trust(call)["changed"]
        assert {path: path.stat() for path in before} == before
        assert [entry["kind"] for entry in undo.read(root=node / "undo")] == [
            "authorized_key_added",
            "file_written",
            "file_written",
        ]

    def test_check_mode_shows_and_writes_nothing(self, node, call):
        result = self.trust(call, check=True, diff=True)
        assert result["changed"]
        assert [part["after_header"].rpartition("/")[2] for part in result["diff"]] == [
            "authorized_keys",
            "known_hosts",
            "peer.json",
        ]
        assert not (node / "root").exists()

    def test_check_mode_before_the_peer_has_a_key(self, node, call):
        unknown = [IDENTITIES[0], {"public_key": None, "host_keys": [KEY]}]
        result = self.trust(call, check=True, identities=unknown)
        assert (result["changed"], codes(result)) == (True, ["NOT_PROVEN_IN_CHECK_MODE"])

    def test_without_a_key_nothing_is_written(self, node, call):
        unknown = [IDENTITIES[0], {"public_key": None, "host_keys": [KEY]}]
        result = self.trust(call, identities=unknown)
        assert result["failed"]
        assert not (node / "root").exists()

    def test_a_key_that_opens_a_shell_elsewhere_in_the_file(self, node, call):
        keys = node / "root/.ssh/authorized_keys"
        keys.parent.mkdir(parents=True)
        keys.write_text(f"{KEY} by hand\n")
        result = self.trust(call)
        assert (result["failed"], codes(result)) == (True, ["PEER_KEY_UNRESTRICTED"])
        assert keys.read_text() == f"{KEY} by hand\n"

    def test_root_may_not_log_in(self, node, call, monkeypatch):
        monkeypatch.setattr(trust, "sshd_settings", lambda _address: {"permitrootlogin": ["no"]})
        result = self.trust(call)
        assert codes(result) == ["PEER_ROOT_LOGIN_REFUSED"]
        assert not (node / "root").exists()

    def test_rubbish_from_a_peer(self, node, call):
        result = self.trust(call, identities=[IDENTITIES[0], {"public_key": 'command="id" ssh-rsa AAAA'}])
        assert result["failed"]
        assert not (node / "root").exists()

    def test_one_node_has_no_peers(self, node, call):
        result = self.trust(call, nodes=NODES[:1], identities=IDENTITIES[:1])
        assert (result["peers"], codes(result)) == ([], [])


class TestPeerPing:
    @staticmethod
    def ping(call: Call, monkeypatch: pytest.MonkeyPatch, code: str, **more: Any) -> dict[str, Any]:
        def said(one: trust.Peer, address: str, *_more: Any) -> tuple[Any, float]:
            return finding(code, node="spark-01", found=f"{one.node} {address}", expected="x", address=address), 0.25

        monkeypatch.setattr(trust, "ping", said)
        return call("peer_ping", cluster="lab", nodes=NODES, **more)

    def test_well(self, call, monkeypatch):
        result = self.ping(call, monkeypatch, "PEER_REACHED")
        assert codes(result) == ["PEER_REACHED"]
        assert result["measurements"] == {"peer_ping_spark-02_s": 0.25}
        assert "192.168.200.13" in result["findings"][0]["found"]

    def test_not(self, call, monkeypatch):
        result = self.ping(call, monkeypatch, "PEER_UNREACHABLE")
        assert result["failed"]

    def test_in_check_mode_without_a_key_nobody_is_asked(self, node, call, monkeypatch):
        result = self.ping(call, monkeypatch, "PEER_REACHED", check=True)
        assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]
        assert "no peer was asked" in result["findings"][0]["found"]

    def test_in_check_mode_a_failure_is_no_verdict(self, node, call, monkeypatch):
        peer.KEY.parent.mkdir(parents=True)
        peer.KEY.touch()
        result = self.ping(call, monkeypatch, "PEER_UNREACHABLE", check=True)
        assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]
        assert result["findings"][0]["evidence"] == ["PEER_UNREACHABLE: spark-02 192.168.200.13"]
        assert not result.get("failed")


class TestWeightsInfo:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr(weights.recall, "__defaults__", (tmp_path / "cache",))
        monkeypatch.setattr(weights.remember, "__defaults__", (tmp_path / "cache",))

    def test_at_the_source(self, tmp_path, call):
        root = str(trees.model(tmp_path / "tiny"))
        made = weights.scan(root, "n")[0]
        result = call("weights_info", path=root, source_node="spark-01")
        assert (result["weights"]["unread"], result["weights"]["digest"]) == (5, None)
        known = weights.hash_all(root, made, "n", made.unhashed())[0]
        weights.remember(root, known)
        result = call("weights_info", path=root, source_node="spark-01")
        assert (result["weights"]["unread"], result["weights"]["digest"]) == (0, known.digest())
        assert call("weights_info", path=root, source_node="spark-01", trust="nothing")["weights"]["unread"] == 5

    def test_a_damaged_source(self, tmp_path, call):
        root = trees.model(tmp_path / "tiny")
        (root / "model-00001-of-00002.safetensors").write_bytes(b"")
        assert codes(call("weights_info", path=str(root), source_node="spark-01")) == ["WEIGHTS_EMPTY"]
        # The same on a target is what the copy is for.
        assert codes(call("weights_info", path=str(root), source_node="spark-02")) == []

    @pytest.mark.parametrize("source", ["", "spark-01"])
    def test_on_no_node(self, tmp_path, call, source):
        result = call("weights_info", path=str(tmp_path / "gone"), source_node=source, repository="org/tiny")
        assert codes(result) == ["WEIGHTS_MISSING"]
        assert "hf download org/tiny" in result["findings"][0]["remedy"]

    def test_a_target_without_room(self, tmp_path, call):
        result = call("weights_info", path=str(tmp_path / "tiny"), source_node="spark-02", bytes=1 << 60)
        assert codes(result) == ["DISK_FULL"]

    def test_a_target_with_room(self, tmp_path, call):
        result = call("weights_info", path=str(tmp_path / "tiny"), source_node="spark-02", bytes=1000)
        assert (codes(result), result["weights"]["present"]) == ([], False)

    def test_check_mode_says_what_it_does_not_know(self, tmp_path, call):
        root = trees.model(tmp_path / "tiny")
        result = call("weights_info", path=str(root), source_node="spark-01", check=True)
        assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]


class TestImageInfo:
    @pytest.mark.parametrize(
        ("source", "digest", "said"),
        [
            ("spark-02", "", []),
            ("spark-01", "", ["IMAGE_UNAVAILABLE"]),
            ("", "", ["IMAGE_UNAVAILABLE"]),
            ("", f"sha256:{'a' * 64}", []),
        ],
    )
    def test_an_image_that_is_not_here(self, call, monkeypatch, source, digest, said):
        monkeypatch.setattr(image_daemon.Daemon, "ask", lambda *_arguments: (404, {"message": "No such image"}))
        monkeypatch.setattr(image_daemon.Daemon, "answered_for", lambda *_arguments: {"Platforms": []})
        result = call("image_info", reference="a/b:1", source_node=source, digest=digest)
        assert codes(result) == said
        assert result["registry"].get("answers") is (True if digest else None)

    def test_docker_is_silent(self, call, monkeypatch):
        monkeypatch.setattr(image_daemon.Daemon, "ask", lambda *_arguments: (500, {"message": "on fire"}))
        result = call("image_info", reference="a/b:1", source_node="spark-01")
        assert codes(result) == ["DOCKER_SILENT"]
        assert "on fire" in result["msg"]

    def test_there_by_its_tag_and_nothing_shows_the_digest(self, call, monkeypatch):
        known = {"/images/a/b:1/json": (200, {"Id": "sha256:1", "RepoDigests": [], "RootFS": {"Layers": ["x"]}})}
        monkeypatch.setattr(image_daemon.Daemon, "ask", lambda _self, _method, path: known.get(path, (404, {})))
        result = call("image_info", reference=f"a/b:1@sha256:{'a' * 64}")
        assert result["image"]["name"] == "a/b:1"
        assert codes(result) == ["IMAGE_DIGEST_UNPROVEN"]

    def test_rubbish(self, call):
        assert call("image_info", reference="a b")["failed"]


class TestNodeJob:
    @pytest.mark.parametrize("action", ["start", "cancel"])
    def test_check_mode_touches_nothing(self, call, action, monkeypatch):
        monkeypatch.setattr(jobs, "start", None)
        monkeypatch.setattr(jobs, "cancel", None)
        result = call("node_job", name="push", action=action, kind="weights_push", check=True)
        assert (result["changed"], codes(result)) == (True, ["NOT_PROVEN_IN_CHECK_MODE"])

    def test_a_poll_is_counted_as_one(self, call, monkeypatch):
        status = {"state": "running", "measurements": {}}
        monkeypatch.setattr(jobs, "poll", lambda *_arguments, **_named: (status, []))
        result = call("node_job", name="push")
        assert (result["poll"], result["changed"], result["job"]) == (True, False, status)

    def test_a_start_that_is_none(self, call):
        assert "missing: kind" in call("node_job", name="push", action="start")["msg"]
        assert "no kind" in call("node_job", name="push", action="start", kind="x")["msg"]


class TestSparkJob:
    """The action plugin, with the node's answers in the place of a node."""

    @pytest.fixture
    def action(self, monkeypatch):
        module = load("action_plugins", "spark_job")
        monkeypatch.setattr(module, "CONNECTION_PAUSE_S", 0)
        monkeypatch.setattr(module, "SHOW_EVERY_S", 0)
        shown: list[str] = []
        monkeypatch.setattr(module.display, "display", lambda text, **_more: shown.append(text))

        def run(answers: list[Any], *, check: bool = False) -> tuple[dict[str, Any], list[str], list[str]]:
            asked: list[str] = []
            plugin = module.ActionModule.__new__(module.ActionModule)
            arguments = {"node": "spark-01", "name": "push", "kind": "weights_push", "spec": {"path": "/m"}}
            plugin._task = type("Task", (), {"args": arguments, "check_mode": check, "async_val": 0})()
            monkeypatch.setattr(module.ActionBase, "run", lambda *_arguments: {})

            def execute(module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
                asked.append(module_args["action"])
                answer = answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return dict(answer)

            plugin._execute_module = execute
            return plugin.run(None, {}), asked, shown

        return run

    @staticmethod
    def status(state: str, done: int = 0, result: Any = None) -> dict[str, Any]:
        progress = {"stage": "sends", "done_bytes": done, "total_bytes": 100, "rate_bps": 10}
        return {"changed": state == "running", "job": {"state": state, "progress": progress, "result": result}}

    def test_to_its_end(self, action):
        answers = [self.status("running", 10), self.status("running", 60), self.status("done", 100, {"changed": True})]
        result, asked, shown = action(answers)
        assert asked == ["start", "poll", "poll"]
        assert (result["changed"], result["module_executions"]) == (True, {"modules": 1, "polls": 2})
        assert shown[0] == "  spark-01: sends: 10 B of 100 B, 10 %, 10 B/s, 9 s left"
        assert shown[-1] == "  spark-01: sends: 100 B of 100 B, 100 %, 10 B/s"

    def test_a_short_one_is_one_execution(self, action):
        result, asked, shown = action([self.status("done", 0, {"changed": False})])
        assert (asked, result["changed"], shown) == (["start"], False, [])

    def test_its_findings_end_it(self, action):
        failed = {
            "failed": True,
            "msg": "FATAL JOB_DIED",
            "findings": [{"code": "JOB_DIED"}],
            "job": {"state": "failed"},
        }
        result, _asked, _shown = action([self.status("running"), failed])
        assert (result["failed"], codes(result)) == (True, ["JOB_DIED"])

    def test_a_lost_connection_does_not(self, action):
        from ansible.errors import AnsibleConnectionFailure

        lost = AnsibleConnectionFailure("Connection timed out")
        answers = [self.status("running"), lost, lost, self.status("done", 0, {"changed": True})]
        result, asked, _shown = action(answers)
        assert result["changed"]
        assert asked == ["start", "poll", "poll", "poll"]

    def test_a_connection_that_stays_lost_does(self, action):
        from ansible.errors import AnsibleConnectionFailure

        with pytest.raises(AnsibleConnectionFailure):
            action([self.status("running"), *[AnsibleConnectionFailure("gone")] * 5])

    def test_check_mode_asks_nobody(self, action):
        result, asked, _shown = action([], check=True)
        assert asked == []
        assert (result["changed"], codes(result)) == (True, ["NOT_PROVEN_IN_CHECK_MODE"])
        assert result["job"]["result"] is None


def test_every_code_of_the_domain_is_named_in_a_test():
    texts = [path.read_text() for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".yml")]
    unnamed = [code.code for code in DOMAINS["transfer"] if not any(code.code in text for text in texts)]
    assert unnamed == []


class TestTransferDecide:
    """On the controller, from what both nodes said."""

    @staticmethod
    def decide(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
        module = load("action_plugins", "transfer_decide")
        plugin = module.ActionModule.__new__(module.ActionModule)
        plugin._task = type("Task", (), {"args": arguments})()
        monkeypatch.setattr(module.ActionBase, "run", lambda *_arguments: {})
        return dict(plugin.run(None, {}))

    def test_weights(self, monkeypatch):
        there = {
            "path": "/m",
            "present": True,
            "digest": "x",
            "arriving": False,
            "manifest": {"files": [], "links": []},
        }
        gone = {**there, "present": False, "digest": None}
        nodes = {"what": "weights", "node": "spark-02", "source_node": "spark-01", "source": there}
        same = self.decide(monkeypatch, mine=there, **nodes)
        assert (same["needed"], codes(same)) == (False, ["WEIGHTS_VERIFIED"])
        assert self.decide(monkeypatch, mine=gone, **nodes)["needed"]

    def test_image(self, monkeypatch):
        there = {**images.ABSENT, "present": True, "content": "x"}
        nodes = {"what": "image", "node": "spark-02", "source_node": "spark-01", "source": there, "reference": "a/b:1"}
        same = self.decide(monkeypatch, mine=there, **nodes)
        assert (same["needed"], codes(same)) == (False, ["IMAGE_VERIFIED"])
        assert same["module_executions"] == {"modules": 0, "polls": 0}
        assert self.decide(monkeypatch, mine=images.ABSENT, **nodes)["needed"]
