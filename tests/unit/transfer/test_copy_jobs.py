"""The two jobs of a copy over the rails, each in a process of its own as on its own node: what they find and leave."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import copies, peer, publisher, undo, weights
from ansible.module_utils.spark.transport.sender import SendError

from tests.unit.transfer import trees
from tests.unit.transfer.rails import PROJECT, RECEIVER, SENDER
from tests.unit.transfer.test_copy import contents
from tests.unit.transfer.test_transport import KEYS, free_port

NODE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
asked = json.loads(sys.argv[2])
from spark import jobs, peer, undo, weights, weights_jobs
root = Path(asked["root"])
peer.claim.__defaults__ = (10.0, root / "locks")
undo.record.__kwdefaults__ = {"root": root / "undo"}
weights_jobs.BACKUP = str(root / "backup")
for function in (weights.recall, weights.remember):
    function.__defaults__ = (root / "cache",)
exec(asked["before"])
sys.exit(jobs.execute(asked["name"], asked["kind"], asked["node"], asked["spec"], root / "jobs", asked["secrets"]))
"""
RAILS = [{"rail": n, "address": RECEIVER[n], "peer_addresses": {"spark-01": SENDER[n]}} for n in range(2)]


class Pair:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = {node: root / node for node in ("spark-01", "spark-02")}
        for folder in self.folders.values():
            (folder / "models").mkdir(parents=True)
        self.source, self.target = (self.folders[node] / "models/tiny" for node in ("spark-01", "spark-02"))
        self.keys = KEYS.make("spark-01", "spark-02", encrypt=True)
        self.running: list[subprocess.Popen[bytes]] = []

    def status(self, node: str, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folders[node] / f"jobs/{name}.json").read_text()))
        except (OSError, ValueError):
            return {}

    def start(self, node: str, kind: str, spec: dict, before: str = "") -> subprocess.Popen[bytes]:
        (self.folders[node] / f"jobs/{kind}.json").unlink(missing_ok=True)
        end = "sender" if kind == "weights_send" else "receiver"
        asked = {"root": str(self.folders[node]), "name": kind, "kind": kind, "node": node, "spec": spec}
        asked |= {"before": before, "secrets": self.keys[end]}
        argv = [sys.executable, "-c", NODE, str(PROJECT / "module_utils"), json.dumps(asked)]
        self.running.append(subprocess.Popen(argv, start_new_session=True))
        return self.running[-1]

    def manifest(self) -> dict[str, Any]:
        made = weights.scan(str(self.source), "spark-01")[0]
        whole = weights.hash_all(str(self.source), made, "spark-01", made.unhashed())[0]
        weights.remember(str(self.source), whole, self.folders["spark-01"] / "cache")
        return whole.as_data()

    def have(self) -> dict[str, Any]:
        if not self.target.is_dir():
            return {}
        made = weights.scan(str(self.target), "spark-02")[0]
        whole = weights.hash_all(str(self.target), made, "spark-02", made.unhashed())[0]
        weights.remember(str(self.target), whole, self.folders["spark-02"] / "cache")
        return whole.as_data()

    def arrive(self, before: str = "", manifest: dict[str, Any] | None = None) -> dict[str, Any]:
        spec: dict[str, Any] = {"path": str(self.target), "models_dir": str(self.target.parent)}
        spec |= {"source_node": "spark-01", "rails": RAILS, "manifest": manifest or self.manifest()}
        running = self.start("spark-02", "weights_arrive", spec, before)
        while running.poll() is None and "listening" not in self.status("spark-02", "weights_arrive"):
            time.sleep(0.01)
        return dict(self.status("spark-02", "weights_arrive").get("listening") or {})

    def copy(self, *, arrive: str = "", send: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """The statuses of sender and receiver."""
        have = self.have()
        listening = self.arrive(arrive)
        spec = {"path": str(self.source), "node": "spark-02", "rails": RAILS, "listening": listening, "have": have}
        self.start("spark-01", "weights_send", spec, send).wait(60)
        self.running[-2].wait(60)
        return self.status("spark-01", "weights_send"), self.status("spark-02", "weights_arrive")

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait(10)


def codes(status: dict[str, Any]) -> list[str]:
    return [item["code"] for item in status["findings"]]


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.close()


class TestCopy:
    def test_everything_and_then_nothing(self, pair):
        trees.model(pair.source, size=3 << 20)
        sent, arrived = pair.copy()
        assert contents(pair.source) == contents(pair.target)
        assert (sent["state"], arrived["state"]) == ("done", "done")
        assert (codes(sent), codes(arrived)) == ([], ["WEIGHTS_VERIFIED"])
        assert not Path(peer.incoming_dir(str(pair.target))).exists()
        measured = sent["measurements"]["weights_copy"]
        assert (measured["transport"], measured["verified"], measured["files"]) == ("tls", True, 5)
        assert [rail["address"] for rail in measured["rails"]] == list(RECEIVER)
        assert sum(rail["bytes"] for rail in measured["rails"]) == measured["bytes"] == sent["result"]["bytes"]
        assert {path.stat().st_mode & 0o777 for path in pair.target.iterdir()} == {0o644}
        (entry,) = undo.read(root=pair.folders["spark-02"] / "undo")
        assert (entry["kind"], entry["new"], entry["replaced"]) == ("weights_copied", True, [])
        assert entry["added"] == sorted(contents(pair.source))
        before = {path: path.stat() for path in pair.target.iterdir()}
        sent, arrived = pair.copy()
        assert (sent["result"]["files"], arrived["result"]["complete"]) == (0, True)
        assert {path: path.stat() for path in pair.target.iterdir()} == before

    def test_a_hub_cache_keeps_links_and_owner(self, pair):
        trees.hub_cache(pair.source)
        if os.geteuid() == 0:
            os.chown(pair.target.parent, 1234, 1234)
        pair.copy()
        assert contents(pair.source) == contents(pair.target)
        assert (pair.target / "snapshots/0123abcd/config.json").is_symlink()
        if os.geteuid() == 0:
            assert {path.lstat().st_uid for path in [pair.target, *pair.target.rglob("*")]} == {1234}
        (entry,) = undo.read(root=pair.folders["spark-02"] / "undo")
        assert "snapshots/0123abcd/config.json" in entry["added"], "links are ours to remove as well"

    def test_only_what_differs(self, pair):
        root = trees.model(pair.source)
        pair.copy()
        (root / "config.json").write_text('{"model_type": "other"}')
        sent, arrived = pair.copy()
        assert sent["result"]["files"] == 1
        assert codes(arrived) == ["WEIGHTS_VERIFIED", "WEIGHTS_REPLACED"]
        assert contents(pair.source) == contents(pair.target)
        assert undo.read(root=pair.folders["spark-02"] / "undo")[-1]["replaced"] == ["config.json"]

    def test_what_is_remembered_after_a_copy_is_not_read_again(self, pair):
        trees.model(pair.source)
        pair.copy()
        made = weights.scan(str(pair.target), "spark-02")[0]
        assert weights.recall(str(pair.target), made, pair.folders["spark-02"] / "cache").unhashed() == []

    def test_killed_in_the_middle_and_repeated(self, pair):
        trees.model(pair.source, shards=2, size=4 << 20)
        listening = pair.arrive()
        spec = {"path": str(pair.source), "node": "spark-02", "rails": RAILS, "listening": listening, "have": {}}
        stands = (
            "import time\n"
            "from spark.transport import workers\n"
            "real_add = workers.Slots.add\n"
            "workers.Slots.add = lambda self, slot, count: (real_add(self, slot, count), time.sleep(600))"
        )
        sender = pair.start("spark-01", "weights_send", spec, stands)
        incoming = Path(peer.incoming_dir(str(pair.target)))
        ends = time.monotonic() + 20
        while not any(path.stat().st_size for path in incoming.rglob("*") if path.is_file()):
            assert time.monotonic() < ends
            time.sleep(0.005)
        for process in (sender, pair.running[-2]):
            os.killpg(process.pid, 9)
            process.wait(10)
        source = contents(pair.source)
        now = contents(pair.target) if pair.target.exists() else {}
        assert all(source[name] == content for name, content in now.items())
        assert "config.json" not in now
        _, arrived = pair.copy()
        assert contents(pair.source) == contents(pair.target)
        assert codes(arrived)[0] == "WEIGHTS_VERIFIED"
        assert not incoming.exists()

    def test_no_rail_carries(self, pair):
        """A firewall lets nothing through but ssh: the sender says that another way is needed."""
        trees.model(pair.source)
        listening = {"addresses": list(RECEIVER), "ports": [free_port(address) for address in RECEIVER]}
        pair.manifest()
        spec = {"path": str(pair.source), "node": "spark-02", "rails": RAILS, "listening": listening, "have": {}}
        pair.start("spark-01", "weights_send", spec).wait(60)
        sent = pair.status("spark-01", "weights_send")
        assert (sent["state"], sent["result"]["fallback"]) == ("done", True)
        assert codes(sent) == ["COPY_FALLBACK"]

    def test_the_rate_of_each_rail_is_told(self, pair):
        trees.model(pair.source, size=3 << 20)
        sent, _ = pair.copy()
        assert [rail["rail"] for rail in sent["progress"]["rails"]] == ["rail 0", "rail 1"]


class TestThePublishersWord:
    def cache(self, pair: Pair, content: bytes = b"") -> Path:
        """A hub cache whose large file is named by its hash, as the hub's client names it."""
        shard = trees.safetensors(3 << 20)
        name = hashlib.sha256(shard).hexdigest()
        trees.downloaded(pair.source, shard)
        if content:
            (pair.source / "blobs" / name).write_bytes(content)
        return pair.source / "blobs" / name

    def claims(self, pair: Pair) -> dict[str, Any]:
        made = weights.scan(str(pair.source), "spark-01")[0]
        hashes = publisher.claimed(made, publisher.read(str(pair.source), made))
        whole = weights.with_hashes(made, hashes)
        return weights.hash_all(str(pair.source), whole, "spark-01", whole.unhashed())[0].as_data()

    def test_takes_the_place_of_a_first_reading(self, pair):
        self.cache(pair)
        pair.manifest = lambda: self.claims(pair)
        read = "real = weights.hash_file\nseen = root / 'read'\n"
        read += "weights.hash_file = lambda path, *a: (seen.open('a').write(path + chr(10)), real(path, *a))[1]"
        _sent, arrived = pair.copy(send=read)
        assert contents(pair.source) == contents(pair.target)
        assert codes(arrived) == ["WEIGHTS_VERIFIED"]
        assert not any(len(Path(line).name) == 64 for line in (pair.folders["spark-01"] / "read").read_text().split())
        made = weights.scan(str(pair.source), "spark-01")[0]
        assert weights.recall(str(pair.source), made, pair.folders["spark-01"] / "cache").unhashed() == []

    def test_and_is_found_wrong_on_the_way(self, pair):
        self.cache(pair, trees.safetensors(3 << 20, fill=8))
        pair.manifest = lambda: self.claims(pair)
        sent, _ = pair.copy()
        assert codes(sent) == ["COPY_SOURCE_DAMAGED"]


class TestBeforeAByteMoves:
    def test_a_disk_that_is_too_small(self, pair):
        trees.model(pair.source, size=3 << 20)
        full = "import shutil; shutil.disk_usage = lambda _path: type('Usage', (), {'free': 1 << 20})"
        listening = pair.arrive(full)
        assert listening == {}
        status = pair.status("spark-02", "weights_arrive")
        assert (status["state"], codes(status)) == ("failed", ["DISK_FULL"])
        assert "0.01 GiB for the files that are still to come" in status["findings"][0]["expected"]

    def test_a_folder_for_arrivals_that_is_not_ours(self, pair):
        if os.geteuid() != 0:
            pytest.skip("only root gives folders away")
        trees.model(pair.source)
        incoming = Path(peer.incoming_dir(str(pair.target)))
        incoming.mkdir()
        os.chown(incoming, 1234, 1234)
        assert pair.arrive() == {}
        assert codes(pair.status("spark-02", "weights_arrive")) == ["COPY_WRITE_FAILED"]


class TestFaults:
    @pytest.mark.parametrize(
        ("kind", "code", "node"),
        [
            ("changed", "WEIGHTS_CHANGING", "spark-01"),
            ("unreadable", "WEIGHTS_UNREADABLE", "spark-01"),
            ("damaged", "COPY_SOURCE_DAMAGED", "spark-01"),
            ("differs", "COPY_DIFFERS", "spark-02"),
            ("refused", "COPY_REFUSED", "spark-01"),
            ("disk", "DISK_FULL", "spark-02"),
            ("write", "COPY_WRITE_FAILED", "spark-02"),
            ("rails", "COPY_FALLBACK", "spark-01"),
            ("odd", "UNKNOWN_CAUSE", "spark-01"),
        ],
    )
    def test_by_kind(self, kind, code, node):
        error = SendError(kind, "what was said", "shard", ("stream 0 on rail 0",))
        found = copies.fault(error, node="spark-01", target="spark-02", path="/m/tiny")
        assert (found.code, found.node) == (code, node)

    def test_what_was_repaired_is_named(self):
        said = [("stalled", "stream 1 on rail 1 stalled in x: no byte for 20 s"), ("repeated", "stream 0: y")]
        assert [item.code for item in copies._repairs(said, "spark-01", "spark-02")] == [
            "COPY_RAIL_CHANGED",
            "COPY_REPEATED",
        ]
        assert copies._repairs([], "spark-01", "spark-02") == []

    def test_strangers_and_wrong_keys_are_named(self, pair):
        trees.model(pair.source)
        listening = pair.arrive()
        import socket

        where = (RECEIVER[0], listening["ports"][0])
        for local in ("127.0.0.9", SENDER[0]):
            with socket.create_connection(where, source_address=(local, 0), timeout=5) as odd:
                odd.sendall(b"x" * 100)
                odd.settimeout(5)
                try:
                    while odd.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        spec = {"path": str(pair.source), "node": "spark-02", "rails": RAILS, "listening": listening, "have": {}}
        pair.start("spark-01", "weights_send", spec).wait(60)
        pair.running[-2].wait(60)
        assert codes(pair.status("spark-02", "weights_arrive")) == ["COPY_FOREIGN", "COPY_REFUSED", "WEIGHTS_VERIFIED"]
