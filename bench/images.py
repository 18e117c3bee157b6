"""The image half of the benchmark: ``docker save | ssh docker load`` beside ours, between two real Docker daemons.

The nodes are containers of the lab, joined by veth pairs; on each store in turn, the ways take turns within each run.
Times are taken on the nodes, so that the lab's own command does not count.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
MACHINES = Path(__file__).with_name("images-pair.yml")
sys.path[:0] = [str(PROJECT), str(PROJECT / "module_utils")]

from spark import bundle  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

SOURCE, TARGET = "spark-01", "spark-02"
RAILS = {"enp1s0f0np0": 200, "enP2p1s0f0np0": 201}
CIPHER = "aes128-gcm@openssh.com"
STORES = ("containerd", "classic")
LAYERS_MIB = (192, 192, 96, 32)
RANKCTL = "/usr/local/lib/spark-cluster/rankctl.pyz"
FILE = 512 << 10


def measure(runs: int) -> dict[str, Any]:
    """Lists of seconds by store; those of the containerd store, Docker's default since 29, at the top as well."""
    nodes = Nodes()
    nodes.lab("up")
    try:
        nodes.prepare()
        result = {store: _measure(nodes, store, runs) for store in STORES}
    finally:
        nodes.lab("down")
    size = sum(LAYERS_MIB) << 20
    about = {"bytes": size, "layers_mib": list(LAYERS_MIB), "top_layer_bytes": LAYERS_MIB[-1] << 20}
    return {"images": {**about, **result}, **result["containerd"]}


def _measure(nodes: Nodes, store: str, runs: int) -> dict[str, list[float]]:
    nodes.use(store)
    for name, top in (("one", 4), ("two", 5)):
        nodes.load(SOURCE, image(f"bench/{name}:1", [1, 2, 3, top]))
    ways: dict[str, tuple[str, Callable[[], float]]] = {
        "save_load_s": ("", lambda: nodes.save_load("bench/one:1")),
        "image_s": ("", lambda: nodes.fetch("bench/one:1")),
        "save_load_top_layer_s": ("bench/one:1", lambda: nodes.save_load("bench/two:1")),
        "image_top_layer_s": ("bench/one:1", lambda: nodes.fetch("bench/two:1")),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs):
        for name, (there, way) in ways.items():
            nodes.clear(TARGET)
            if there:
                nodes.fetch(there)
                nodes.settle()
            times[name].append(round(way(), 3))
            print(f"  {store} {number + 1}/{runs} {name[:-2]}: {times[name][-1]:.2f} s", flush=True)
    return times


def image(name: str, seeds: Sequence[int], layers_mib: Sequence[int] = LAYERS_MIB) -> bytes:
    """An archive for ``docker load``: layers of files of which about half cannot be packed, and small ones."""
    layers = [_layer(seed, mib) for seed, mib in zip(seeds, layers_mib, strict=True)]
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Cmd": ["/bench"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(item).hexdigest()}" for item in layers]},
        }
    ).encode()
    entry = {"Config": "config.json", "RepoTags": [name], "Layers": [f"{n}.tar" for n in range(len(layers))]}
    members = {"config.json": config, "manifest.json": json.dumps([entry]).encode()}
    members |= {f"{number}.tar": layer for number, layer in enumerate(layers)}
    return _tar(members)


def _architecture() -> str:
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _layer(seed: int, mib: int) -> bytes:
    source = random.Random(seed)  # noqa: S311 - data, no secret
    members = {f"lib/{seed}/{number}.py": source.randbytes(source.randrange(10, 4000)) for number in range(500)}
    for number in range(mib * (1 << 20) // FILE):
        block = source.randbytes(FILE // 2)
        members[f"data/{seed}/{number}"] = block + block[: FILE // 4] + bytes(FILE // 4)
    return _tar(members)


def _tar(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


class Nodes:
    """The pair, as root on each node."""

    def lab(self, *words: str) -> None:
        subprocess.run([sys.executable, "-m", "lab", "--machines", str(MACHINES), *words], cwd=PROJECT, check=True)

    def on(self, node: str, script: str, data: bytes = b"") -> str:
        argv = [sys.executable, "-m", "lab", "--machines", str(MACHINES), "exec", node, "bash", "-euc", script]
        with tempfile.TemporaryFile() as given:
            given.write(data)
            given.seek(0)
            done = subprocess.run(argv, cwd=PROJECT, stdin=given, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{node}: {done.stderr.decode()[-1500:]}{done.stdout.decode()[-1500:]}")
        return done.stdout.decode()

    def prepare(self) -> None:
        """Addresses on the rails, keys for both ways, and the code that is measured."""
        rankctl = bundle.build_rankctl(PROJECT / "module_utils/spark")
        public, host = {}, {}
        folder = "/etc/spark-cluster/ssh"
        for number, node in enumerate((SOURCE, TARGET), 12):
            for netdev, net in RAILS.items():
                self.on(node, f"ip link set {netdev} up; ip addr replace 192.168.{net}.{number}/24 dev {netdev}")
            self.on(
                node, f"mkdir -p -m 700 /root/.ssh {folder}; mkdir -p {Path(RANKCTL).parent}; cat > {RANKCTL}", rankctl
            )
            for path in ("/root/.ssh/id_ed25519", f"{folder}/id_ed25519"):
                self.on(node, f"rm -f {path}; ssh-keygen -q -t ed25519 -N '' -f {path}")
            public[node] = self.on(node, "cat /root/.ssh/id_ed25519.pub"), self.on(node, f"cat {folder}/id_ed25519.pub")
            host[node] = self.on(node, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub").strip()
        for node, other, number in ((SOURCE, TARGET, 13), (TARGET, SOURCE, 12)):
            forced = f'restrict,command="/usr/bin/python3 {RANKCTL} peer" '
            self.on(node, "cat > /root/.ssh/authorized_keys", (public[other][0] + forced + public[other][1]).encode())
            known = "".join(f"192.168.{net}.{number} {host[other]}\n" for net in RAILS.values())
            self.on(node, f"tee /root/.ssh/known_hosts > {folder}/known_hosts", known.encode())

    def use(self, store: str) -> None:
        settings = json.dumps({"features": {"containerd-snapshotter": store == "containerd"}})
        for node in (SOURCE, TARGET):
            # The other store's images stay on the disk; a pair that is thrown away does not mind.
            script = "systemctl stop docker.socket docker; mkdir -p /etc/docker; cat > /etc/docker/daemon.json"
            self.on(node, f"{script}; systemctl start docker; docker info > /dev/null", settings.encode())
            self.clear(node)

    def load(self, node: str, archive: bytes) -> None:
        self.on(node, "docker load", archive)

    def clear(self, node: str) -> None:
        self.on(node, "docker image ls -q | sort -u | xargs -r docker image rm -f; docker image prune -af; sync")
        self.settle()

    def settle(self) -> None:
        self.on(TARGET, "sync")

    def save_load(self, name: str) -> float:
        address = f"192.168.{next(iter(RAILS.values()))}.13"
        return self._timed(SOURCE, f"docker save {name} | ssh -c {CIPHER} root@{address} docker load > /dev/null")

    def fetch(self, name: str) -> float:
        addresses = [f"192.168.{net}.12" for net in RAILS.values()]
        spec = {"reference": name, "source_node": SOURCE, "addresses": addresses}
        job = json.dumps({"kind": "image_fetch", "node": TARGET, "spec": spec})
        self.on(TARGET, "mkdir -p /run/spark-cluster/jobs; cat > /root/spec.json", job.encode())
        return self._timed(
            TARGET, f"python3 {RANKCTL} job bench /root/spec.json || cat /run/spark-cluster/jobs/bench.json"
        )

    def _timed(self, node: str, command: str) -> float:
        script = f"set -o pipefail; s=$(date +%s%N); {command}; e=$(date +%s%N); echo $(( (e - s) / 1000 ))"
        said = self.on(node, script).split()
        if len(said) != 1:
            raise RuntimeError(f"{node}: {' '.join(said)[-1500:]}")
        return int(said[0]) / 1e6


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5), indent=1))
