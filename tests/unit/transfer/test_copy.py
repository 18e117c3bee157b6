"""Weights from one folder to another by real rsync through the real forced command, and what may go wrong on the
way.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ansible.module_utils.spark import jobs, peer, transfer, undo, weights, weights_jobs
from ansible.module_utils.spark.weights import Manifest

from tests.unit.transfer import trees

PROJECT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed here")


class Pair:
    """Two nodes in two folders. The peer's sshd is a script that calls the forced command."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        self.models = {name: root / name / "models" for name in ("spark-01", "spark-02")}
        for folder in self.models.values():
            folder.mkdir(parents=True)
        self.path = self.models["spark-02"] / "tiny"
        self.shell = root / "shell"
        self.dead: set[str] = set()
        self.write_shell()
        monkeypatch.setattr(weights_jobs, "rsync_argv", self.rsync_argv)
        monkeypatch.setattr(weights_jobs, "BACKUP", str(root / "backup"))
        monkeypatch.setattr(peer.claim, "__defaults__", (10.0, root / "locks"))
        monkeypatch.setattr(undo.record, "__kwdefaults__", {"root": root / "undo"})
        for function in (weights.recall, weights.remember):
            monkeypatch.setattr(function, "__defaults__", (root / "cache",))

    def write_shell(self, before: str = "") -> None:
        config = self.root / "peer.json"
        config.write_text(f'{{"receive": ["{self.models["spark-02"]}"]}}')
        self.shell.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            address=$1; shift
            case " {" ".join(self.dead)} " in *" $address "*)
                echo "ssh: connect to host $address port 22: No route to host" >&2; exit 255;;
            esac
            {before or ":"}
            SSH_ORIGINAL_COMMAND="$*" exec {sys.executable} -c '
            import sys; sys.path.insert(0, "{PROJECT}/module_utils")
            from pathlib import Path
            import syslog; syslog.syslog = lambda *words: None
            from spark import peer
            peer.read_config.__defaults__ = (Path("{config}"),)
            peer.claim.__defaults__ = (10.0, Path("{self.root}/locks"))
            sys.exit(peer.main([]))'
            """)
        )
        self.shell.chmod(0o755)

    def rsync_argv(self, source: str, address: str, _incoming: str, listing: str) -> list[str]:
        # Both nodes have the folder under one path; here they share a machine, so the target's lies elsewhere.
        return transfer.rsync_argv(source, address, peer.incoming_dir(str(self.path)), listing, [str(self.shell)])

    def reporter(self, node: str) -> jobs.Reporter:
        status = jobs._fresh_status("copy", "weights_push", node, {})
        self.status = status
        return jobs.Reporter(self.root / "jobs" / "copy.json", status)

    def push(self, addresses: tuple[str, ...] = ("192.168.200.13", "192.168.201.13")) -> dict:
        have = self.have()
        spec = {
            "path": str(self.models["spark-01"] / "tiny"),
            "node": "spark-02",
            "addresses": list(addresses),
            "have": have.as_data(),
        }
        return weights_jobs.push_job(spec, self.reporter("spark-01"))

    def have(self) -> Manifest:
        if not self.path.is_dir():
            return Manifest()
        made = weights.scan(str(self.path), "spark-02")[0]
        return weights.hash_all(str(self.path), made, "spark-02", made.unhashed())[0]

    def receive(self, pushed: dict) -> dict:
        spec = {
            "path": str(self.path),
            "models_dir": str(self.models["spark-02"]),
            "source_node": "spark-01",
            "manifest": pushed["manifest"],
        }
        return weights_jobs.receive_job(spec, self.reporter("spark-02"))

    def codes(self) -> list[str]:
        return [item["code"] for item in self.status["findings"]]

    @property
    def incoming(self) -> Path:
        return Path(peer.incoming_dir(str(self.path)))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def contents(root: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def written(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {path.name: path.stat() for path in root.iterdir()}
    return {name: (status.st_ino, status.st_mtime_ns, status.st_ctime_ns) for name, status in found.items()}


def same(pair: Pair) -> bool:
    return contents(pair.models["spark-01"] / "tiny") == contents(pair.path)


def failing(pair: Pair, **arguments) -> tuple[str, ...]:
    with pytest.raises(jobs.JobFailedError) as failed:
        pair.push(**arguments)
    return tuple(item.code for item in failed.value.findings)


class TestCopy:
    def test_everything(self, pair):
        trees.model(pair.models["spark-01"] / "tiny", size=3 << 20)
        pushed = pair.push()
        assert (pushed["files"], pushed["changed"]) == (5, True)
        assert not pair.path.exists(), "nothing has its real name before it was checked"
        assert pair.status["measurements"]["weights_copy_files"] == 5
        pair.receive(pushed)
        assert same(pair)
        assert pair.codes() == ["WEIGHTS_VERIFIED"]
        assert not pair.incoming.exists()
        modes = {path.stat().st_mode & 0o777 for path in pair.path.iterdir()}
        assert modes == {0o644}

    def test_a_hub_cache_keeps_its_links(self, pair):
        trees.hub_cache(pair.models["spark-01"] / "tiny")
        pair.receive(pair.push())
        assert same(pair)
        assert (pair.path / "snapshots/0123abcd/config.json").is_symlink()

    def test_odd_names(self, pair):
        root = trees.model(pair.models["spark-01"] / "tiny")
        for name in ("with space.txt", "$(touch x)", "-rf", "*", "über.txt", "#x#", "a'b\"c"):
            (root / name).write_text(name)
        pair.receive(pair.push())
        assert same(pair)

    def test_again_with_nothing_to_do(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.receive(pair.push())
        before = written(pair.path)
        pushed = pair.push()
        assert (pushed["files"], pushed["changed"]) == (0, False)
        assert written(pair.path) == before

    def test_only_what_differs(self, pair):
        root = trees.model(pair.models["spark-01"] / "tiny")
        pair.receive(pair.push())
        inode = (pair.path / "tokenizer.json").stat().st_ino
        (root / "config.json").write_text('{"model_type": "other"}')
        pushed = pair.push()
        assert pushed["files"] == 1
        pair.receive(pushed)
        assert same(pair)
        assert pair.codes() == ["WEIGHTS_VERIFIED", "WEIGHTS_REPLACED"]
        (kept,) = (pair.root / "backup").glob("*/config.json")
        assert kept.read_text() == '{"model_type": "llama"}'
        assert [entry["new"] for entry in undo.read(root=pair.root / "undo")] == [True, False]
        assert (pair.path / "tokenizer.json").stat().st_ino == inode

    def test_a_flipped_bit_on_the_target_is_healed(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.receive(pair.push())
        shard = pair.path / "model-00001-of-00002.safetensors"
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        shard.write_bytes(raw)
        pair.receive(pair.push())
        assert same(pair)

    def test_files_beyond_the_source_stay_and_are_named(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.path.mkdir()
        (pair.path / "mine.txt").write_text("mine")
        pair.receive(pair.push())
        assert pair.codes() == ["WEIGHTS_VERIFIED", "WEIGHTS_EXTRA"]
        assert (pair.path / "mine.txt").read_text() == "mine"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_the_owner_is_that_of_the_models_folder(self, pair):
        trees.hub_cache(pair.models["spark-01"] / "tiny")
        os.chown(pair.models["spark-02"], 1234, 1234)
        pair.receive(pair.push())
        assert {path.lstat().st_uid for path in [pair.path, *pair.path.rglob("*")]} == {1234}

    def test_the_other_rail(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.dead = {"192.168.200.13"}
        pair.write_shell()
        pair.push()
        assert pair.codes() == ["COPY_RAIL_CHANGED"]
        assert pair.status["measurements"]["weights_copy_address"] == "192.168.201.13"


class TestCutOff:
    def test_both_ends_killed_and_repeated(self, pair):
        """Killed in the middle: nothing under a real name; repeated: all of it, and nothing left over."""
        trees.model(pair.models["spark-01"] / "tiny", shards=2, size=30 << 20)
        watched = f'$(du -sb "{pair.incoming}" 2>/dev/null | cut -f1)'
        # The copy stands still in the middle, so that the kill cannot come too late.
        wire, relay = pair.root / "wire", pair.root / "relay.py"
        relay.write_text(
            "import os, time\n"
            "left = 20_000_000\n"
            "while left > 0 and (block := os.read(0, 65536)):\n"
            "    left -= len(block)\n"
            "    while block:\n"
            "        block = block[os.write(1, block) :]\n"
            "time.sleep(600)\n"
        )
        pair.write_shell(
            f"mkfifo {wire}; exec 3<&0; {sys.executable} {relay} <&3 >{wire} & "
            f'(while [ "{watched}0" -lt 80000000 ]; do sleep 0.01; done; kill -9 0) & exec <{wire}'
        )
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        listing = transfer.write_listing(names)
        argv = pair.rsync_argv(str(pair.models["spark-01"] / "tiny"), "192.168.200.13", "", listing)
        with subprocess.Popen(argv, start_new_session=True, env=transfer._environment()) as killed:
            assert killed.wait(30) == -signal.SIGKILL
        os.unlink(listing)
        pair.write_shell()
        assert not pair.path.exists()
        arrived = sum(path.stat().st_size for path in pair.incoming.rglob("*") if path.is_file())
        assert 0 < arrived < 60 << 20
        pair.receive(pair.push())
        assert same(pair)
        assert not pair.incoming.exists()

    def test_a_receiver_that_was_left_behind_is_ended(self, pair):
        """Its connection went silent, the copy went on over the other rail: it must not write into what is
        published.
        """
        trees.model(pair.models["spark-01"] / "tiny")
        wish = f"rsync --server -tRe.LsfxCIvu --timeout=60 --inplace . {pair.incoming}/"
        with subprocess.Popen(
            [str(pair.shell), "192.168.200.13", wish], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as left:
            assert left.stdout
            assert left.stdout.read(4), "it has begun to speak"
            pushed = pair.push()
            assert left.wait(10) == -signal.SIGKILL
        pair.receive(pushed)
        assert same(pair)

    def test_published_halfway(self, pair):
        """The receiving job was killed after one file: the next run keeps that one and brings the rest."""
        trees.model(pair.models["spark-01"] / "tiny")
        pushed = pair.push()
        pair.path.mkdir()
        os.rename(pair.incoming / "tokenizer.json", pair.path / "tokenizer.json")
        pair.receive(pair.push())
        assert same(pair)
        assert pushed["digest"] == pair.have().digest()

    def test_what_arrived_wrong_never_gets_its_name(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pushed = pair.push()
        shard = pair.incoming / "model-00001-of-00002.safetensors"
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        shard.write_bytes(raw)
        pair.receive(pushed)
        assert pair.codes() == ["WEIGHTS_DIFFER"]
        assert not (pair.path / shard.name).exists()
        pair.receive(pair.push())
        assert same(pair)

    def test_a_link_that_waits_among_what_arrived(self, pair, tmp_path):
        trees.model(pair.models["spark-01"] / "tiny")
        pushed = pair.push()
        secret = tmp_path / "secret"
        secret.write_text("x")
        (pair.incoming / "config.json").unlink()
        (pair.incoming / "config.json").symlink_to(secret)
        pair.receive(pushed)
        assert pair.codes() == ["WEIGHTS_DIFFER"]
        assert not (pair.path / "config.json").exists()
        assert secret.read_text() == "x"

    def test_a_link_where_the_source_has_a_folder(self, pair, tmp_path):
        root = trees.model(pair.models["spark-01"] / "tiny")
        (root / "sub").mkdir()
        (root / "sub/x.json").write_text("{}")
        outside = tmp_path / "outside"
        outside.mkdir()
        pair.path.mkdir()
        (pair.path / "sub").symlink_to(outside)
        pair.receive(pair.push())
        assert same(pair)
        assert list(outside.iterdir()) == []

    def test_the_folder_itself_is_a_link(self, pair, tmp_path):
        trees.model(pair.models["spark-01"] / "tiny")
        pushed = pair.push()
        (tmp_path / "elsewhere").mkdir()
        pair.path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(jobs.JobFailedError) as failed:
            pair.receive(pushed)
        assert [item.code for item in failed.value.findings] == ["WEIGHTS_LINK_ESCAPES"]


class TestRefusedBeforeAByteMoves:
    def test_damaged_at_the_source(self, pair):
        root = trees.model(pair.models["spark-01"] / "tiny")
        (root / "model-00001-of-00002.safetensors").write_bytes(b"")
        assert failing(pair) == ("WEIGHTS_EMPTY",)
        assert not pair.incoming.exists()

    def test_dangling_at_the_source(self, pair):
        root = trees.model(pair.models["spark-01"] / "tiny")
        (root / "x").symlink_to("gone")
        assert failing(pair) == ("WEIGHTS_LINK_DANGLING",)

    def test_a_folder_that_the_peer_does_not_take(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.path = pair.root / "elsewhere" / "tiny"
        assert failing(pair) == ("PEER_REFUSED",)
        assert not (pair.root / "elsewhere").exists()

    def test_a_hostile_manifest(self, pair):
        with pytest.raises(ValueError, match="a manifest with"):
            pair.receive({"manifest": {"files": [["../../x", 1, "a" * 64]]}})

    def test_no_rail(self, pair):
        trees.model(pair.models["spark-01"] / "tiny")
        pair.dead = {"192.168.200.13", "192.168.201.13"}
        pair.write_shell()
        assert failing(pair) == ("PEER_UNREACHABLE",)

    @pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/full").exists(), reason="only root mounts")
    def test_a_full_disk(self, pair):
        trees.model(pair.models["spark-01"] / "tiny", size=6 << 20)
        folder = pair.models["spark-02"]
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=False)
        if mounted.returncode:
            pytest.skip("no mounts here")
        try:
            assert failing(pair) == ("DISK_FULL",)
            assert not pair.path.exists()
        finally:
            subprocess.run(["umount", str(folder)], check=True)


class TestExplain:
    @pytest.mark.parametrize(
        ("rc", "said", "code"),
        [
            (11, 'rsync: write failed on "x": No space left on device (28)', "DISK_FULL"),
            (30, "rsync error: timeout in data send/receive (code 30)", "COPY_STALLED"),
            (255, "ssh: connect to host 192.168.200.13 port 22: Connection refused", "PEER_UNREACHABLE"),
            (12, "Connection reset by 192.168.200.13 port 22", "PEER_UNREACHABLE"),
            (255, "Timeout, server 192.168.200.13 not responding.", "PEER_UNREACHABLE"),
            (255, "Host key verification failed.", "PEER_HOST_KEY_CHANGED"),
            (255, "root@192.168.200.13: Permission denied (publickey).", "PEER_KEY_REFUSED"),
            (77, "rankctl peer: refused: no request 'x'", "PEER_REFUSED"),
            (12, "rankctl peer: refused: /x is not below /m", "PEER_REFUSED"),
            (127, "rsync: no such program", "TOOL_MISSING"),
            (12, "rankctl peer: rsync is not installed", "TOOL_MISSING"),
            (23, 'rsync: open "/m/x" failed: Permission denied (13)', "UNKNOWN_CAUSE"),
            (1, "rsync error: syntax or usage error (code 1)", "UNKNOWN_CAUSE"),
        ],
    )
    def test_by_what_was_said(self, rc, said, code):
        outcome = transfer.Outcome(rc, 5, 1.0, [said])
        found = transfer.explain(outcome, node="spark-01", target="spark-02", address="192.168.200.13", path="/m")
        assert found.code == code

    def test_who_lacks_the_tool(self):
        mine = transfer.rsync(["no-such-rsync"], lambda _count: None)
        found = transfer.explain(mine, node="spark-01", target="spark-02", address="x", path="/m")
        assert (found.code, found.node) == ("TOOL_MISSING", "spark-01")


def test_the_request_of_this_rsync_is_one_that_the_peer_takes(pair):
    """Another version of rsync may spell its request otherwise: then the copy is refused, and this says so first."""
    seen = pair.root / "seen"
    pair.shell.write_text(f'#!/bin/sh\nshift\nprintf "%s" "$*" > {seen}\nexit 1\n')
    listing = transfer.write_listing(["x"])
    transfer.rsync(pair.rsync_argv(str(pair.root), "192.168.200.13", "", listing), lambda _count: None)
    os.unlink(listing)
    request = peer.parse(seen.read_text())
    assert isinstance(request, peer.Receive)
    assert request.destination == str(pair.incoming)
