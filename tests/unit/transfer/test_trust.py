"""Keys, authorized_keys and the judgement of a ping."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.spark import peer, trust, undo
from ansible.module_utils.spark.runner import Completed

CASES = yaml.safe_load(Path(__file__).with_name("trust.yml").read_text())
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDlI0a8uNMuRCKT8XEv2WkR1YIxgCdUwbnSBxfM4zUvF"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFkkKQyTzmtBYJfEMOc0rF2fF9bJ2H8V0qSgRzD5VqFt"
RAILS = ("192.168.200.13", "192.168.201.13")
PEER = trust.Peer("spark-02", RAILS, KEY, (OTHER,))
LINE = (
    'restrict,from="192.168.200.13,192.168.201.13",'
    'command="/usr/bin/python3 /usr/local/lib/spark-cluster/rankctl.pyz peer" '
    f"{KEY} spark-cluster:lab:spark-02\n"
).encode()


def answering(rc: int = 0, stdout: str = "", stderr: str = ""):
    return lambda argv, **_options: Completed(tuple(argv), rc, stdout, stderr, 0.1)


class TestKey:
    def test_is_made_once_for_root_only(self, tmp_path):
        path, journal = tmp_path / "ssh/id_ed25519", tmp_path / "undo"
        made = trust.make_key("spark-01", path, journal=journal)
        assert made.startswith("ssh-ed25519 ")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert sorted(item.name for item in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]
        assert trust.read_key("spark-01", path) == (made, [])
        shown = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True).stdout
        assert trust.fingerprint(made) in shown
        assert [entry["path"] for entry in undo.read(root=journal)] == [f"{path}.pub", str(path)]
        assert path.read_text().split("\n")[1] not in (journal / "journal.jsonl").read_text()

    def test_none_yet(self, tmp_path):
        assert trust.read_key("spark-01", tmp_path / "id_ed25519") == (None, [])

    @pytest.mark.parametrize("content", ["", "not a key\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
    def test_broken(self, tmp_path, content):
        path = tmp_path / "id_ed25519"
        path.write_text(content)
        path.chmod(0o600)
        key, findings = trust.read_key("spark-01", path)
        assert key is None
        assert [item.code for item in findings] == ["PEER_KEY_BROKEN"]
        assert str(path) in findings[0].remedy

    def test_with_a_passphrase_it_is_of_no_use(self, tmp_path):
        path = tmp_path / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "horse battery", "-f", str(path)], check=True)
        assert [item.code for item in trust.read_key("spark-01", path)[1]] == ["PEER_KEY_BROKEN"]

    @pytest.mark.parametrize("text", CASES["not_keys"])
    def test_not_a_public_key(self, text):
        assert trust.plain_key(text) is None

    def test_a_public_key_without_its_comment(self):
        assert trust.plain_key(f" {KEY} root@spark-02\n") == KEY


class TestHostKeys:
    def test_public_halves_only(self, tmp_path):
        (tmp_path / "ssh_host_ed25519_key").write_text("private")
        (tmp_path / "ssh_host_ed25519_key.pub").write_text(f"{KEY} root@here\n")
        (tmp_path / "ssh_host_rsa_key.pub").write_text("rubbish\n")
        assert trust.host_keys(tmp_path) == [KEY]

    def test_known_hosts_name_every_rail(self):
        assert trust.known_hosts([PEER]) == f"192.168.200.13,192.168.201.13 {OTHER}\n".encode()


class TestAuthorizedKeys:
    @pytest.mark.parametrize("case", CASES["foreign"], ids=lambda case: case["name"])
    def test_lines_of_others_stay_byte_for_byte(self, case):
        before = case["text"].encode("latin-1")
        after = trust.authorized(before, [PEER], "lab")
        assert after.endswith(LINE)
        kept = after[: -len(LINE)]
        assert kept == before or (kept == before + b"\n" and not before.endswith(b"\n"))
        assert trust.authorized(after, [PEER], "lab") == after

    def test_ours_is_replaced_in_its_place(self):
        stale = LINE.replace(b"192.168.201.13", b"192.168.201.99")
        before = b"ssh-rsa AAAA one\n" + stale + b"ssh-rsa BBBB two\n"
        assert trust.authorized(before, [PEER], "lab") == b"ssh-rsa AAAA one\n" + LINE + b"ssh-rsa BBBB two\n"

    def test_of_a_former_peer_it_goes(self):
        former = LINE.replace(b":spark-02", b":spark-09")
        assert trust.authorized(former, [PEER], "lab") == LINE

    def test_of_a_peer_whose_key_is_not_made_yet_it_stays(self):
        unknown = trust.Peer("spark-02", RAILS, None, ())
        assert trust.authorized(LINE, [unknown], "lab") == LINE
        assert trust.authorized(b"", [unknown], "lab") == b""

    @pytest.mark.parametrize(
        "line",
        [
            LINE.replace(b" spark-cluster:lab:spark-02", b" mine"),
            f"{KEY} spark-cluster:lab:spark-02\n".encode(),
        ],
    )
    def test_a_line_with_one_mark_only_is_not_ours(self, line):
        assert trust.authorized(line, [], "lab") == line

    def test_a_plain_line_with_the_same_key_is_refused(self):
        raw = b"# comment\n" + f"{KEY} someone\n".encode()
        found = trust.unrestricted(raw, [PEER], "spark-01", Path("/root/.ssh/authorized_keys"))
        assert [item.code for item in found] == ["PEER_KEY_UNRESTRICTED"]
        assert "line 2 of /root/.ssh/authorized_keys" in found[0].remedy

    @pytest.mark.parametrize("raw", [None, b"", LINE, f"# {KEY}\n".encode(), f"{OTHER} someone\n".encode()])
    def test_other_lines_are_not(self, raw):
        assert trust.unrestricted(raw, [PEER], "spark-01", Path("x")) == []

    def test_sshd_takes_the_line(self, tmp_path):
        """ssh-keygen reads the options and the key as sshd does."""
        path = tmp_path / "authorized_keys"
        path.write_bytes(LINE)
        done = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=False)
        assert trust.fingerprint(KEY) in done.stdout

    def test_written_whole_with_mode_and_owner_kept(self, tmp_path):
        path = tmp_path / "authorized_keys"
        path.write_bytes(b"ssh-rsa AAAA one")
        path.chmod(0o640)
        change = trust.Change(path, path.read_bytes(), b"ssh-rsa AAAA one\n" + LINE, 0o600)
        trust.write(change, trust.key_entries(change), tmp_path / "undo")
        assert path.read_bytes() == change.after
        assert path.stat().st_mode & 0o777 == 0o640
        (entry,) = undo.read(root=tmp_path / "undo")
        assert (entry["kind"], entry["line"]) == ("authorized_key_added", LINE.decode().rstrip("\n"))

    def test_the_content_before_is_kept(self, tmp_path):
        path = tmp_path / "known_hosts"
        path.write_bytes(b"old\n")
        change = trust.Change(path, b"old\n", b"new\n", 0o600)
        trust.write(change, [trust.file_entry(change, tmp_path / "backup")], tmp_path / "undo")
        (entry,) = undo.read(root=tmp_path / "undo")
        assert Path(entry["backup"]).read_bytes() == b"old\n"
        assert entry["before"]["size"] == 4


class TestPeers:
    NODES = (
        {"node": "spark-01", "rails": [{"address": "192.168.200.12"}]},
        {"node": "spark-02", "rails": [{"address": "192.168.200.13"}, {"address": "192.168.201.13"}]},
    )

    def test_from_the_plan_and_the_exchange(self):
        said = [{"public_key": OTHER, "host_keys": []}, {"public_key": f"{KEY} x", "host_keys": [OTHER]}]
        assert trust.parse_peers("spark-01", self.NODES, said) == [PEER]

    @pytest.mark.parametrize("case", CASES["bad_peers"], ids=lambda case: case["name"])
    def test_nothing_else_gets_into_authorized_keys(self, case):
        node = {"node": "spark-02", "rails": [{"address": "192.168.200.13"}], **case.get("node", {})}
        said = {"public_key": KEY, "host_keys": [OTHER], **case.get("said", {})}
        with pytest.raises(ValueError, match=case["because"]):
            trust.parse_peers("spark-01", [self.NODES[0], node], [{}, said])


class TestSshd:
    @pytest.mark.parametrize("case", CASES["sshd"], ids=lambda case: case["name"])
    def test_root_with_a_key(self, case):
        settings = trust.sshd_settings(RAILS[0], answering(0, case["settings"]))
        found = trust.root_refused(settings, "spark-01", RAILS)
        assert [item.code for item in found] == (["PEER_ROOT_LOGIN_REFUSED"] if case["refused"] else [])
        if found:
            assert case["refused"] in found[0].found
            assert "192.168.200.13" in found[0].remedy

    def test_silent(self):
        settings = trust.sshd_settings(RAILS[0], answering(255, "", "no hostkeys available"))
        assert settings is None
        assert trust.root_refused(settings, "spark-01", RAILS) == []
        assert trust.authorized_keys_path(None) == Path("/root/.ssh/authorized_keys")

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (".ssh/authorized_keys .ssh/authorized_keys2", "/root/.ssh/authorized_keys"),
            ("/etc/ssh/keys/%u", "/etc/ssh/keys/root"),
            ("%h/keys%%1", "/root/keys%1"),
        ],
    )
    def test_where_the_keys_are_looked_for(self, value, path):
        assert trust.authorized_keys_path({"authorizedkeysfile": [value]}) == Path(path)


class TestPing:
    @pytest.mark.parametrize("case", CASES["pings"], ids=lambda case: case["name"])
    def test_judged_by_what_was_said(self, case):
        stdout = json.dumps(case["answer"]) if "answer" in case else case.get("stdout", "")
        runner = answering(case.get("rc", 0), stdout, case.get("stderr", ""))
        found, _seconds = trust.ping(PEER, RAILS[0], "spark-01", "lab", "aaaa", runner)
        assert found.code == case["code"]
        if "evidence" in case:
            assert case["evidence"] in " ".join([found.found, *found.evidence])


def test_the_key_and_the_command_are_where_both_sides_look():
    assert peer.KEY.parent == peer.KNOWN_HOSTS.parent == peer.SSH_DIR
    assert f'command="{peer.COMMAND}"'.encode() in LINE
