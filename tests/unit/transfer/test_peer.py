"""The forced command: what it grants, and everything that it does not."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.spark import peer

CASES = yaml.safe_load(Path(__file__).with_name("requests.yml").read_text())
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Nothing of the tests in this machine's system log."""
    monkeypatch.setattr("syslog.syslog", lambda *_words: None)


@pytest.mark.parametrize("case", CASES["accepted"], ids=lambda case: case["ask"][:60])
def test_granted(case):
    request = peer.parse(case["ask"])
    if "receive" in case:
        assert isinstance(request, peer.Receive)
        assert request.destination == case["receive"]
    else:
        assert isinstance(request, peer.Verb)
        assert request.word == case["verb"]


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: repr(case["ask"])[:70])
def test_refused(case, capsys):
    with pytest.raises(peer.RefusedError, match=case["because"]):
        peer.parse(case["ask"])
    assert peer.serve(case["ask"], receive=lambda _request: 0) == peer.REFUSED_RC
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize("case", CASES["served_refused"], ids=lambda case: case["ask"])
def test_refused_by_its_own_grammar(case, capsys):
    assert peer.serve(case["ask"]) == peer.REFUSED_RC
    assert case["because"] in capsys.readouterr().err


def test_a_long_request_is_not_even_split():
    with pytest.raises(peer.RefusedError, match="characters"):
        peer.parse("ping " + "a" * 5000)


def test_every_verb_of_the_table_exists():
    for module, function in peer.VERBS.values():
        loaded = __import__(f"ansible.module_utils.spark.{module}", fromlist=[function])
        assert callable(getattr(loaded, function))


def test_the_environment_of_a_request_is_ours():
    kept = peer.environment({"LD_PRELOAD": "/tmp/x.so", "RSYNC_RSH": "x", "PATH": "/tmp", "SSH_CONNECTION": "a b c d"})
    assert kept["SSH_CONNECTION"] == "a b c d"
    assert not {"LD_PRELOAD", "RSYNC_RSH"} & kept.keys()
    assert "/tmp" not in kept["PATH"].split(":")


def test_ssh_asks_nobody_and_believes_only_our_record():
    argv = peer.ssh_argv("192.168.200.13", cipher=peer.COPY_CIPHER)
    told = " ".join(argv)
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null", "-F /dev/null"):
        assert option in told
    assert argv[-3:] == ["-l", "root", "192.168.200.13"]
    assert all(" " not in word for word in argv), "rsync splits its remote shell at spaces"


class TestIncoming:
    """Where files may arrive; the tests run as root or not, and as whoever they run the folder has to be theirs."""

    def test_is_made_private_below_the_root(self, tmp_path):
        root = tmp_path / "models"
        os.close(peer.open_incoming(f"{root}/org/.spark-incoming-tiny", [str(root)]))
        made = root / "org/.spark-incoming-tiny"
        assert made.stat().st_mode & 0o777 == 0o700
        assert (root / "org").stat().st_mode & 0o777 == 0o755

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_a_folder_made_on_the_way_belongs_to_the_owner_of_the_one_above(self, tmp_path):
        home = tmp_path / "home"
        home.mkdir()
        os.chown(home, 1234, 1234)
        os.close(peer.open_incoming(f"{home}/models/.spark-incoming-x", [f"{home}/models"]))
        assert (home / "models").stat().st_uid == 1234
        assert (home / "models/.spark-incoming-x").stat().st_uid == 0

    def test_the_root_may_be_a_link(self, tmp_path):
        (tmp_path / "disk").mkdir()
        (tmp_path / "models").symlink_to("disk")
        os.close(peer.open_incoming(f"{tmp_path}/models/.spark-incoming-x", [f"{tmp_path}/models"]))
        assert (tmp_path / "disk/.spark-incoming-x").is_dir()

    @pytest.mark.parametrize("roots", [[], ["/srv/models"], ["/"], ["/mod"]])
    def test_outside_of_every_root(self, roots):
        with pytest.raises(peer.RefusedError, match="not below"):
            peer.open_incoming("/models/.spark-incoming-x", roots)

    def test_a_sibling_with_a_longer_name_is_outside(self, tmp_path):
        with pytest.raises(peer.RefusedError, match="not below"):
            peer.open_incoming(f"{tmp_path}/models-secret/.spark-incoming-x", [f"{tmp_path}/models"])

    def test_a_link_below_the_root_is_not_followed(self, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        root = tmp_path / "models"
        root.mkdir()
        (root / "org").symlink_to(outside)
        with pytest.raises(peer.RefusedError):
            peer.open_incoming(f"{root}/org/.spark-incoming-x", [str(root)])
        assert list(outside.iterdir()) == []

    def test_the_folder_itself_may_not_be_a_link(self, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir(mode=0o700)
        (tmp_path / ".spark-incoming-x").symlink_to(outside)
        with pytest.raises(peer.RefusedError):
            peer.open_incoming(f"{tmp_path}/.spark-incoming-x", [str(tmp_path)])

    def test_a_folder_that_others_may_enter_is_not_ours(self, tmp_path):
        (tmp_path / ".spark-incoming-x").mkdir(mode=0o755)
        with pytest.raises(peer.RefusedError, match="others may enter"):
            peer.open_incoming(f"{tmp_path}/.spark-incoming-x", [str(tmp_path)])

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_a_folder_of_somebody_else_is_not_ours(self, tmp_path):
        made = tmp_path / ".spark-incoming-x"
        made.mkdir(mode=0o700)
        os.chown(made, 1234, 1234)
        with pytest.raises(peer.RefusedError, match="somebody else"):
            peer.open_incoming(str(made), [str(tmp_path)])

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / ".spark-incoming-x").write_text("")
        with pytest.raises(peer.RefusedError):
            peer.open_incoming(f"{tmp_path}/.spark-incoming-x", [str(tmp_path)])


class TestClaim:
    def test_one_after_the_other(self, tmp_path):
        os.close(peer.claim("/m/.spark-incoming-x", 1, tmp_path))
        os.close(peer.claim("/m/.spark-incoming-x", 1, tmp_path))

    def test_another_folder_is_another_matter(self, tmp_path):
        one, other = peer.claim("/m/.spark-incoming-x", 0, tmp_path), peer.claim("/m/.spark-incoming-y", 0, tmp_path)
        os.close(one)
        os.close(other)

    def test_who_is_no_receiver_is_waited_for_and_left_alone(self, tmp_path):
        held = peer.claim("/m/.spark-incoming-x", 0, tmp_path)
        with pytest.raises(peer.RefusedError, match="does not end"):
            peer.claim("/m/.spark-incoming-x", 0.2, tmp_path)
        os.close(held)


def test_the_packed_command_answers_as_sshd_calls_it(tmp_path):
    """The whole way: zipapp, verb, environment variable, answer and exit status."""
    from ansible.module_utils.spark.bundle import build_rankctl

    code = tmp_path / "rankctl.pyz"
    code.write_bytes(build_rankctl(PROJECT / "module_utils/spark"))

    def ask(wish: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SSH_ORIGINAL_COMMAND": wish, "SSH_CONNECTION": "192.168.200.12 1 2 3"}
        argv = [sys.executable, str(code), "peer"]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=30)

    answer = ask("ping")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["spark_cluster"] == "peer"
    refused = ask("cat /etc/shadow")
    assert (refused.returncode, refused.stdout) == (peer.REFUSED_RC, "")
    assert "refused" in refused.stderr


def test_quoting_survives_the_remote_shell():
    path = "/srv/my models/.spark-incoming-a'b"
    wish = f"rsync --server -tRe.LsfxCIvu --timeout=60 --inplace . {shlex.quote(path)}"
    request = peer.parse(wish)
    assert isinstance(request, peer.Receive)
    assert request.destination == path
