"""An image's way from store to store: both of Docker's, every pairing, and what can go wrong on the way."""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from ansible.module_utils.spark import (
    image_daemon,
    image_fetch,
    image_lanes,
    image_registry,
    image_serve,
    image_store,
    images,
    jobs,
    peer,
    undo,
)

from .docker_double import DockerDouble, layer_of, sha

PROJECT = Path(__file__).resolve().parents[3]
NAME = "org/engine:1"
STORES = ("classic", "containerd")
ADDRESSES = ["192.168.200.12", "192.168.201.12"]


def random_layer(seed: int, size: int = 300_000) -> bytes:
    source = random.Random(seed)  # noqa: S311 - data, no secret
    small = {f"lib/{seed}/{number}.py": source.randbytes(source.randrange(0, 900)) for number in range(40)}
    return layer_of({f"big/{seed}": source.randbytes(size), **small, f"link{seed}>": b"/etc/hostname"})


LAYERS = [random_layer(1), random_layer(2, 3_000_000), random_layer(3)]


class Pair:
    """Two nodes, each with a Docker; ssh is a process that answers as the peer's forced command does."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str) -> None:
        self.root = root
        for name in ("source", "target"):
            (root / name).mkdir()
        self.source, self.target = DockerDouble(root / "source", source), DockerDouble(root / "target", target)
        self.ssh = root / "ssh"
        self.behave("")
        monkeypatch.setattr(image_lanes, "ssh_argv", lambda address, **_options: [str(self.ssh), address])
        monkeypatch.setattr(image_fetch, "Daemon", lambda: image_daemon.Daemon(self.target.socket))
        monkeypatch.setattr(images, "PROOFS", root / "proofs")
        monkeypatch.setattr(undo, "ROOT", root / "undo")
        monkeypatch.setattr(undo.record, "__kwdefaults__", {"root": root / "undo"})
        self.status: dict = {}

    def behave(self, how: str) -> None:
        """``how`` is Python that is run in the ssh before it answers; ``address`` is whom it was called for."""
        self.ssh.write_text(
            textwrap.dedent(
                f"""\
                #!{sys.executable}
                import sys; sys.path.insert(0, "{PROJECT}/module_utils")
                from spark import image_daemon, image_serve, images
                from pathlib import Path
                images.PROOFS = Path("{self.root}/source/proofs")
                address, reference = sys.argv[1], sys.argv[2].split()[1]
                out, marks = sys.stdout.buffer, Path("{self.root}")
                """
            )
            + textwrap.dedent(how)
            + textwrap.dedent(
                f"""
                try:
                    daemon = image_daemon.Daemon("{self.source.socket}")
                    sys.exit(image_serve.serve(reference, daemon, sys.stdin.buffer, out))
                except image_serve.CutShortError as error:
                    sys.exit(f"the layer cannot be read to its end: {{error}}")
                """
            )
        )
        self.ssh.chmod(0o755)

    def run(self, **spec):
        self.status = jobs._fresh_status("fetch", "image_fetch", "spark-02", {})
        job = jobs.Reporter(self.root / "jobs/fetch.json", self.status)
        job.stage("begins")
        defaults = {"reference": NAME, "source_node": "spark-01", "addresses": ADDRESSES}
        return image_fetch.fetch_job({**defaults, **spec}, job)

    def fails(self, **spec):
        with pytest.raises(jobs.JobFailedError) as failed:
            self.run(**spec)
        (found,) = failed.value.findings
        return found

    def codes(self) -> list[str]:
        return [item["code"] for item in self.status["findings"]]

    def journal(self) -> list[dict]:
        return undo.read(root=self.root / "undo")


@pytest.fixture
def pair_of(tmp_path, monkeypatch):
    made = []

    def make(source: str = "containerd", target: str = "containerd") -> Pair:
        made.append(Pair(tmp_path, monkeypatch, source, target))
        return made[-1]

    yield make
    for pair in made:
        pair.source.close()
        pair.target.close()


class TestEveryPairing:
    @pytest.mark.parametrize("target", STORES)
    @pytest.mark.parametrize("source", STORES)
    def test_the_same_image_arrives(self, pair_of, source, target):
        pair = pair_of(source, target)
        pair.source.plant(NAME, LAYERS, packed=True)
        result = pair.run()
        assert result["changed"]
        assert pair.codes() == ["IMAGE_VERIFIED"]
        assert result["image"]["layers"] == [sha(layer) for layer in LAYERS]
        assert list(pair.target.images) == [NAME]
        # Named by its registry digest before and after, wherever the store can keep one.
        if (source, target) == ("containerd", "containerd"):
            assert result["image"]["digests"] == images.identity(pair.source.images[NAME])["digests"]
        (entry,) = pair.journal()
        assert (entry["kind"], entry["reference"], entry["replaced"]) == ("image_loaded", NAME, "")
        assert entry["id"] == pair.target.images[NAME]["Id"]
        assert pair.run() | {"image": None} == {"changed": False, "bytes": 0, "image": None}

    @pytest.mark.parametrize("target", STORES)
    @pytest.mark.parametrize("source", STORES)
    def test_layers_that_are_there_stay_where_they_are(self, pair_of, source, target):
        pair = pair_of(source, target)
        pair.source.plant(NAME, LAYERS)
        pair.target.plant("org/older:1", LAYERS[:2])
        result = pair.run()
        assert pair.codes() == ["IMAGE_VERIFIED"]
        assert result["bytes"] == len(LAYERS[2])

    @pytest.mark.parametrize("target", STORES)
    def test_both_rails_carry(self, pair_of, target):
        pair = pair_of("classic", target)
        pair.source.plant(NAME, LAYERS)
        pair.run()
        assert sum(json.loads(pair.status["measurements"]["image_copy_rails"]).values()) == sum(map(len, LAYERS))

    def test_one_of_several_platforms_under_the_digest_of_all(self, pair_of):
        pair = pair_of()
        top = pair.source.plant(NAME, LAYERS, index=True)
        result = pair.run()
        assert result["image"]["id"] == top
        assert result["image"]["digests"] == [top]

    def test_the_digest_is_proven_where_the_store_cannot_keep_it(self, pair_of):
        pair = pair_of("containerd", "classic")
        digest = pair.source.plant(NAME, LAYERS)
        result = pair.run(reference=f"{NAME}@{digest}")
        assert result["image"]["digests"] == [digest]
        found = images.find(f"{NAME}@{digest}", pair.target.find)
        assert found is not None
        assert found["digests"] == [digest]

    def test_another_image_of_that_name(self, pair_of):
        pair = pair_of("classic", "classic")
        pair.source.plant(NAME, LAYERS)
        before = pair.target.plant(NAME, LAYERS[:1])
        assert pair.run()["changed"]
        assert pair.codes() == ["IMAGE_VERIFIED"]
        assert pair.journal()[0]["replaced"] == before

    def test_names_of_a_pull_that_was_killed(self, pair_of):
        pair = pair_of()
        pair.source.plant(NAME, LAYERS)
        pair.target.plant(f"127.0.0.1:4711/spark-cluster/0123@sha256:{'a' * 64}", LAYERS[:1])
        pair.run()
        assert list(pair.target.images) == [NAME]


class TestTrouble:
    def test_a_rail_that_breaks_in_the_middle(self, pair_of):
        """What came over it stays, and the rest comes over the other one."""
        pair = pair_of("classic", "classic")
        pair.source.plant(NAME, LAYERS)
        pair.behave(
            """
            import os
            if address == "192.168.200.12" and not (marks / "cut").exists():
                class Cut:
                    sent = 0
                    def write(self, data):
                        Cut.sent += len(data)
                        if Cut.sent > 1500000:
                            (marks / "cut").touch()
                            print("client_loop: send disconnect: Broken pipe", file=sys.stderr, flush=True)
                            os._exit(255)
                        sys.stdout.buffer.write(data)
                    def flush(self): sys.stdout.buffer.flush()
                out = Cut()
            """
        )
        assert pair.run()["changed"]
        assert pair.codes() == ["COPY_RAIL_CHANGED", "IMAGE_VERIFIED"]
        rails = json.loads(pair.status["measurements"]["image_copy_rails"])
        assert sum(rails.values()) == sum(map(len, LAYERS))
        assert all(rails.values())

    def test_no_rail_leads_there(self, pair_of):
        pair = pair_of()
        pair.source.plant(NAME, LAYERS)
        pair.behave('sys.stderr.write("ssh: connect to host: Connection refused\\\\n"); sys.exit(255)')
        assert pair.fails().code == "PEER_UNREACHABLE"

    def test_a_silent_rail_is_given_up(self, pair_of, monkeypatch):
        pair = pair_of()
        pair.source.plant(NAME, LAYERS)
        pair.behave("import time; time.sleep(30)")
        monkeypatch.setattr(image_lanes.Source.__init__, "__kwdefaults__", {"stall_s": 0.2})
        monkeypatch.setattr(image_lanes, "END_S", 0.1)
        assert pair.fails().code == "COPY_STALLED"

    @pytest.mark.parametrize("source", STORES)
    def test_a_layer_that_changed_on_the_disk(self, pair_of, source):
        pair = pair_of(source, "containerd")
        pair.source.plant(NAME, LAYERS)
        if source == "classic":
            victim = next(pair.source.docker_root.glob("overlay2/*/diff/big/2"))
        else:
            victim = pair.source.blobs / sha(LAYERS[1])[7:]
        data = bytearray(victim.read_bytes())
        data[5000] ^= 1
        victim.write_bytes(data)
        found = pair.fails()
        assert (found.code, "spark-01" in found.remedy) == ("IMAGE_LAYER_DAMAGED", True)
        assert NAME not in pair.target.images

    def test_no_room(self, pair_of):
        pair = pair_of()
        pair.source.plant(NAME, LAYERS)
        found = pair.fails(headroom_bytes=1 << 60)
        assert found.code == "IMAGE_DISK_TOO_SMALL"
        assert "3 of 3 layers" in found.evidence[0]
        assert not pair.target.asked

    @pytest.mark.parametrize("target", STORES)
    def test_the_disk_runs_full_all_the_same(self, pair_of, target):
        pair = pair_of("classic", target)
        pair.source.plant(NAME, LAYERS)
        said = "write /var/lib/docker/tmp/x: no space left on device"
        pair.target.fails = {"/images/load": said, "/images/create": said}
        found = pair.fails()
        assert (found.code, found.node) == ("DISK_FULL", "spark-02")

    def test_it_went_away_at_the_source(self, pair_of):
        assert pair_of().fails().code == "IMAGE_UNAVAILABLE"

    def test_docker_refuses(self, pair_of):
        pair = pair_of()
        pair.source.plant(NAME, LAYERS)
        pair.target.fails = {"/images/create": "snapshotter is on fire"}
        found = pair.fails()
        assert (found.code, found.evidence) == ("DOCKER_SILENT", ("snapshotter is on fire",))

    def test_no_docker(self, pair_of, monkeypatch, tmp_path):
        monkeypatch.setattr(image_fetch, "Daemon", lambda: image_daemon.Daemon(str(tmp_path / "nothing")))
        pair = pair_of
        monkeypatch.setattr(image_lanes, "ssh_argv", lambda address, **_options: ["true", address])
        job = jobs.Reporter(tmp_path / "job.json", jobs._fresh_status("fetch", "image_fetch", "spark-02", {}))
        with pytest.raises(jobs.JobFailedError) as failed:
            image_fetch.fetch_job({"reference": NAME, "source_node": "s", "addresses": ADDRESSES}, job)
        assert [item.code for item in failed.value.findings] == ["DOCKER_SILENT"]
        assert pair

    def test_a_store_that_dropped_a_packed_layer(self, pair_of, tmp_path, monkeypatch):
        """Then Docker has to do it: the layers are made again by docker save."""
        pair = pair_of("containerd", "classic")
        pair.source.plant(NAME, LAYERS)
        (pair.source.blobs / sha(LAYERS[1])[7:]).unlink()
        saved = DockerDouble(tmp_path / "saved", "classic")
        saved.plant(NAME, LAYERS)
        store = image_daemon.Daemon(saved.socket).store()
        described = image_store.describe(store, saved.images[NAME])
        opened = {item.digest: image_store.open_layer(store, described, item.digest) for item in described.layers}
        stream = image_fetch.archive(
            described, NAME, described.layers, lambda digest: (opened[digest][0], opened[digest][1](0))
        )
        (tmp_path / "save.tar").write_bytes(b"".join(stream))
        saved.close()
        docker = tmp_path / "docker"
        docker.write_text(
            f'#!/bin/sh\n[ "$1 $2 $3" = "save --platform=linux/amd64 {NAME}" ] && cat {tmp_path}/save.tar\n'
        )
        docker.chmod(0o755)
        pair.behave(f'import os; os.environ["PATH"] = "{tmp_path}:" + os.environ["PATH"]')
        assert pair.run()["changed"]
        assert pair.codes() == ["IMAGE_SAVED_WHOLE"]
        assert pair.status["measurements"]["image_copy_way"] == "docker save"
        assert NAME in pair.target.images


class TestStore:
    def test_a_layer_of_the_classic_store_from_any_byte_on(self, tmp_path):
        double = DockerDouble(tmp_path, "classic")
        double.plant(NAME, LAYERS)
        store = image_daemon.Daemon(double.socket).store()
        double.close()
        described = image_store.describe(store, double.images[NAME], sizes=True)
        assert [item.size for item in described.layers] == [len(layer) for layer in LAYERS]
        for layer, offset in [(0, 0), (1, 700), (1, 2_999_999), (2, 0), (2, 512), (2, len(LAYERS[2]))]:
            size, read = image_store.open_layer(store, described, described.layers[layer].digest)
            assert b"".join(read(offset)) == LAYERS[layer][offset:]
            assert size == len(LAYERS[layer])

    def test_a_link_in_a_layer_does_not_lead_out(self, tmp_path):
        double = DockerDouble(tmp_path, "classic")
        double.plant(NAME, [layer_of({"a/secret": b"x" * 10})])
        store = image_daemon.Daemon(double.socket).store()
        double.close()
        files = next(double.docker_root.glob("overlay2/*/diff"))
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/secret").write_bytes(b"y" * 10)
        (files / "a/secret").unlink()
        (files / "a").rmdir()
        (files / "a").symlink_to(tmp_path / "outside")
        described = image_store.describe(store, double.images[NAME])
        _size, read = image_store.open_layer(store, described, described.layers[0].digest)
        with pytest.raises(image_store.StoreError, match="leads out"):
            list(read(0))

    @pytest.mark.parametrize("kind", STORES)
    def test_only_layers_of_the_image(self, tmp_path, kind):
        double = DockerDouble(tmp_path, kind)
        double.plant(NAME, LAYERS[:1])
        double.plant("org/other:1", LAYERS[1:])
        questions = [{"ask": "layer", "digest": sha(LAYERS[1])}, {"ask": "layer", "digest": "../../../etc/passwd"}]
        answers = io.BytesIO()
        image_serve.serve(
            NAME,
            image_daemon.Daemon(double.socket),
            io.BytesIO(b"".join(json.dumps(item).encode() + b"\n" for item in questions)),
            answers,
        )
        double.close()
        said = [json.loads(line) for line in answers.getvalue().splitlines()]
        assert [item["ok"] for item in said] == [False, False]
        assert all("not a layer of the image" in item["error"] for item in said)

    @pytest.mark.parametrize("question", [b"x\n", b"[]\n", b'{"ask": "shell"}\n', b'{"ask": "layer"}\n'])
    def test_no_other_questions(self, tmp_path, question):
        double = DockerDouble(tmp_path, "classic")
        double.plant(NAME, LAYERS[:1])
        with pytest.raises(peer.RefusedError):
            image_serve.serve(NAME, image_daemon.Daemon(double.socket), io.BytesIO(question), io.BytesIO())
        double.close()

    def test_a_description_with_foreign_texts(self, tmp_path):
        double = DockerDouble(tmp_path, "containerd")
        double.plant(NAME, LAYERS[:1])
        store = image_daemon.Daemon(double.socket).store()
        double.close()
        data = image_store.describe(store, double.images[NAME]).as_data()
        assert image_store.described_from(data).top == data["top"]
        data["documents"][data["config"]][1] = "e30="
        with pytest.raises(image_store.StoreError, match="other contents"):
            image_store.described_from(data)

    def test_another_driver(self, tmp_path):
        store = image_daemon.Store("classic", "btrfs", str(tmp_path), str(tmp_path))
        with pytest.raises(image_store.StoreError):
            image_store.ClassicLayer(store, f"sha256:{'a' * 64}")

    def test_where_containerd_keeps_its_blobs(self, tmp_path):
        for name in ("moved", "docker/containerd/daemon"):
            (tmp_path / name / "io.containerd.content.v1.content").mkdir(parents=True)
        config = tmp_path / "config.toml"
        config.write_text(f'version = 2\n# root = "/no"\nroot = "{tmp_path}/moved"\n')
        roots = image_daemon.containerd_roots(str(tmp_path / "docker"), str(config))
        assert [root for root in roots if root.startswith(str(tmp_path))] == [
            f"{tmp_path}/moved",
            f"{tmp_path}/docker/containerd/daemon",
        ]


class TestRegistry:
    def test_what_it_answers(self):
        blob = bytes(range(256)) * 40
        text = b'{"schemaVersion": 2}'

        def read(_digest, offset):
            yield blob[offset:]

        with image_registry.Registry({sha(text): ("application/x", text)}, {sha(blob): len(blob)}, read) as registry:
            base = f"http://{registry.repository.split('/', 1)[0]}/v2/"

            def get(path, **headers):
                request = urllib.request.Request(base + path, headers=headers)
                return urllib.request.urlopen(request, timeout=5).read()

            assert get("") == b""
            assert get(f"{registry.name}/manifests/{sha(text)}") == text
            assert get(f"{registry.name}/blobs/{sha(blob)}") == blob
            assert get(f"{registry.name}/blobs/{sha(blob)}", Range="bytes=10000-") == blob[10000:]
            assert get(f"{registry.name}/blobs/{sha(blob)}", Range="bytes=5-9") == blob[5:10]
            for path in (
                f"other/blobs/{sha(blob)}",
                f"{registry.name}/blobs/{sha(b'')}",
                "../x",
                f"{registry.name}/tags",
            ):
                with pytest.raises(urllib.error.HTTPError):
                    get(path)


class TestPull:
    REFERENCE, DIGEST = "ghcr.io/org/engine:0.1.1", f"sha256:{'a' * 64}"

    @staticmethod
    def run(root, monkeypatch, double, **spec):
        monkeypatch.setattr(image_fetch, "Daemon", lambda: image_daemon.Daemon(double.socket))
        monkeypatch.setattr(undo.record, "__kwdefaults__", {"root": root / "undo"})
        job = jobs.Reporter(root / "job.json", jobs._fresh_status("pull", "image_pull", "spark-01", {}))
        job.stage("begins")
        return image_fetch.pull_job(spec, job)

    def test_by_its_digest(self, tmp_path, monkeypatch):
        double = DockerDouble(tmp_path, "classic")
        monkeypatch.setattr(
            double, "pull", lambda repository, digest: double.plant(f"{repository}@{digest}", LAYERS[:1])
        )
        result = self.run(tmp_path, monkeypatch, double, reference=self.REFERENCE, digest=self.DIGEST)
        double.close()
        assert result["image"]["name"] == self.REFERENCE
        assert set(double.images) == {self.REFERENCE, f"ghcr.io/org/engine@{self.DIGEST}"}

    @pytest.mark.parametrize(
        ("said", "code"),
        [("dial tcp: lookup ghcr.io: no such host", "IMAGE_UNAVAILABLE"), ("no space left on device", "DISK_FULL")],
    )
    def test_where_it_fails(self, tmp_path, monkeypatch, said, code):
        double = DockerDouble(tmp_path, "classic")
        double.fails = {"/images/create": said}
        with pytest.raises(jobs.JobFailedError) as failed:
            self.run(tmp_path, monkeypatch, double, reference=self.REFERENCE, digest=self.DIGEST)
        double.close()
        (found,) = failed.value.findings
        assert (found.code, said in found.evidence[0]) == (code, True)

    @pytest.mark.parametrize("digest", ["", "latest", "sha256:12"])
    def test_never_by_anything_but_a_digest(self, tmp_path, monkeypatch, digest):
        with pytest.raises(ValueError, match="reference"):
            image_fetch.pull_job(
                {"reference": self.REFERENCE, "digest": digest}, jobs.Reporter(tmp_path / "job.json", {})
            )

    def test_a_login_is_handed_on(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"auths": {"ghcr.io": {"auth": "dXNlcjp3b3Jk"}}}))
        assert set(image_daemon._authorization("ghcr.io/org/engine", str(path))) == {"X-Registry-Auth"}
        assert image_daemon._authorization("quay.io/org/engine", str(path)) == {}
        assert image_daemon._authorization("ghcr.io/org/engine", str(tmp_path / "none")) == {}


def test_a_daemon_that_does_nothing_is_given_up(tmp_path, monkeypatch):
    """Neither a byte nor the disk moves: the call is ended and says so."""
    store = image_daemon.Store("classic", "overlay2", str(tmp_path), str(tmp_path))
    abandoned = []

    class Stuck:
        def abandon(self):
            abandoned.append(True)

    clock = iter(range(0, 100000, 1000))
    watched = image_fetch.Watched(
        store, jobs.Reporter(tmp_path / "job.json", {}), None, NAME, idle_s=10, clock=lambda: next(clock)
    )
    monkeypatch.setattr(watched, "_state", lambda: (0, 0))

    def work(began):
        began(Stuck())
        for _ in range(100):
            if abandoned:
                raise image_daemon.DaemonError(0, "closed")
            subprocess.run(["sleep", "0.05"], check=True)

    with pytest.raises(image_daemon.DaemonError, match="nothing moved for 10 s"):
        watched.run(work)


def test_hash_of_an_archive_is_what_docker_reads(tmp_path):
    """The archive for docker load leaves out what is there and names it all the same."""
    double = DockerDouble(tmp_path, "classic")
    double.plant(NAME, LAYERS)
    store = image_daemon.Daemon(double.socket).store()
    double.close()
    described = image_store.describe(store, double.images[NAME])
    lacking = described.layers[2:]

    def layer(digest):
        size, read = image_store.open_layer(store, described, digest)
        return size, read(0)

    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(image_fetch.archive(described, NAME, lacking, layer)))
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True).stdout.split()
    assert listed == [
        f"{described.config[7:]}.json",
        "manifest.json",
        f"{hashlib.sha256(LAYERS[2]).hexdigest()}/layer.tar",
    ]
