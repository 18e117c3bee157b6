#!/usr/bin/env python3
"""How fast verified copies are, beside what everybody uses: one machine, two network namespaces, two rails between.

The copies run the very jobs that run on the nodes, from the start of both processes to their end; rsync runs over ssh
with the fastest cipher it has, and verifies nothing. Ways take turns, so that a busy moment hits all of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "module_utils"), str(PROJECT)]

from spark import weights  # noqa: E402
from spark.transport.channel import OPENSSL_CONF  # noqa: E402

RESULT = PROJECT / "results" / "bench" / "sync.json"
MIB = 1 << 20
SMALL_FILES = 2000
# Of the range that is reserved for such measurements.
RAILS = (("198.18.0.1", "198.18.0.2"), ("198.18.1.1", "198.18.1.2"))

JOB = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
asked = json.loads(Path(sys.argv[2]).read_text())
from spark import jobs, peer, undo, weights, weights_jobs
root = Path(asked["root"])
peer.claim.__defaults__ = (10.0, root / "locks")
undo.record.__kwdefaults__ = {"root": root / "undo"}
weights_jobs.BACKUP = str(root / "backup")
for function in (weights.recall, weights.remember):
    function.__defaults__ = (root / "cache",)
sys.exit(jobs.execute(asked["kind"], asked["kind"], asked["node"], asked["spec"], root / "jobs", asked["secrets"]))
"""


def main() -> int:
    options = _options()
    if os.geteuid() != 0:
        print("bench-sync needs root for network namespaces: sudo make bench-sync", file=sys.stderr)
        return 2
    lacking = [name for name in ("ip", "rsync", "ssh", "ssh-keygen", "openssl") if not shutil.which(name)]
    if _sshd() is None:
        lacking.append("sshd")
    if lacking:
        print(f"bench-sync needs {', '.join(lacking)}: scripts/apt.sh bench", file=sys.stderr)
        return 2
    # Ansible takes its time to be imported, and that is no part of a copy.
    _keys(encrypt=True)
    # Ended from outside, also in the background of a shell, it takes its namespaces and processes along.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    with Bench(options) as bench:
        result = bench.run()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    print(summary(result))
    print(f"raw times: {options.out}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-sync", description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=4096, help="size of all shards together")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--small", type=int, default=SMALL_FILES, help="small files beside the shards")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--disk-runs", type=int, default=3, help="0 leaves the disk out")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a tmpfs")  # noqa: S108 - a tmpfs is meant
    parser.add_argument("--disk", type=Path, default=PROJECT / ".cache", help="a folder on a disk")
    parser.add_argument("--images", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _run(*argv: str | Path, **options: Any) -> None:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.names = [f"spark-bench-{os.getpid()}-{end}" for end in "ab"]
        self.work = Path(tempfile.mkdtemp(prefix="spark-bench-"))
        self.folders: list[Path] = []
        self.sshd: subprocess.Popen[bytes] | None = None
        self.result: dict[str, Any] = {}

    def __enter__(self) -> Bench:
        try:
            self._namespaces()
            self._ssh()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self.sshd:
            self.sshd.terminate()
            self.sshd.wait()
        for name in self.names:
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in inside.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        for folder in (*self.folders, self.work):
            shutil.rmtree(folder, ignore_errors=True)

    def _namespaces(self) -> None:
        first, second = self.names
        for name in self.names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number, (here, there) in enumerate(RAILS):
            _run(
                *("ip", "link", "add", f"rail{number}", "netns", first),
                *("type", "veth", "peer", "name", f"rail{number}", "netns", second),
            )
            for name, address in ((first, here), (second, there)):
                _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", f"rail{number}")
                _run("ip", "-n", name, "link", "set", f"rail{number}", "up")

    def _ssh(self) -> None:
        for name in ("host", "user"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.work / name)
        shutil.copy(self.work / "user.pub", self.work / "authorized")
        (self.work / "known").write_text(f"{RAILS[0][1]} {(self.work / 'host.pub').read_text()}")
        (self.work / "sshd_config").write_text(
            f"HostKey {self.work}/host\nAuthorizedKeysFile {self.work}/authorized\nPidFile none\nStrictModes no\n"
            f"PermitRootLogin prohibit-password\nListenAddress {RAILS[0][1]}\nUsePAM no\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        argv = ["ip", "netns", "exec", self.names[1], str(_sshd()), "-D", "-e", "-f", str(self.work / "sshd_config")]
        with (self.work / "sshd.log").open("wb") as log:
            self.sshd = subprocess.Popen(argv, stderr=log)
        self.shell = (
            f"ssh -F /dev/null -i {self.work}/user -o UserKnownHostsFile={self.work}/known -o BatchMode=yes "
            "-o LogLevel=ERROR -c aes128-gcm@openssh.com"
        )
        for _ in range(50):
            greeting = [*self.inside(0), *self.shell.split(), f"root@{RAILS[0][1]}", "true"]
            if subprocess.run(greeting, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        raise SystemExit(f"sshd does not answer: {(self.work / 'sshd.log').read_text()[-500:]}")

    def inside(self, end: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[end]]

    def run(self) -> dict[str, Any]:
        self.result = {"schema": 1, "machine": machine(), "data": self._data_words()}
        with self._data(self.options.memory) as place:
            known = self._known(place)
            self.result["hash_s"] = [round(known, 4)]
            self.result |= self._alternate(
                self.options.runs,
                {
                    "rsync_s": lambda: self._rsync(place),
                    "plain_s": lambda: self._copy(place, encrypt=False),
                    "tls_s": lambda: self._copy(place, encrypt=True),
                    "openssl_s": lambda: self._openssl(place),
                    "verify_s": lambda: self._verify(place),
                    "nothing_s": lambda: self._nothing(place),
                },
                place,
            )
        if self.options.disk_runs:
            self.options.disk.mkdir(parents=True, exist_ok=True)
            with self._data(self.options.disk) as place:
                self._known(place)
                self.result["disk"] = self._alternate(
                    self.options.disk_runs,
                    {
                        "rsync_s": lambda: self._rsync(place),
                        "rsync_fsync_s": lambda: self._rsync(place, "--fsync"),
                        "plain_s": lambda: self._copy(place, encrypt=False),
                        "tls_s": lambda: self._copy(place, encrypt=True),
                    },
                    place,
                )
        if self.options.images:
            self.result |= self._images()
        self.result["ratios"] = ratios(self.result)
        return self.result

    def _images(self) -> dict[str, Any]:
        """The part of the images, where it is there and this machine can run it."""
        try:
            images = importlib.import_module("bench.images")
        except ModuleNotFoundError as error:
            return {"images": f"not measured: {error}"}
        measured: dict[str, Any] = images.measure(self.options.runs)
        return measured

    def _alternate(self, runs: int, ways: dict[str, Callable[[], float]], place: Place) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(runs):
            for name, way in ways.items():
                place.rest()
                before = self._cpu()
                times[name].append(round(way(), 4))
                busy = times.setdefault(f"{name[:-2]}_cpu_s", [])
                busy.append(round(self._cpu() - before, 2))
                words = f"{place.kind} {number + 1}/{runs} {name[:-2]}"
                print(f"  {words}: {times[name][-1]:.2f} s, {busy[-1]:.2f} s of processors", flush=True)
        return times

    def _cpu(self) -> float:
        """Processor seconds of this process, of all that it waited for, and of what sshd waited for."""
        mine = os.times()
        total = mine.user + mine.system + mine.children_user + mine.children_system
        if self.sshd:
            fields = Path(f"/proc/{self.sshd.pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        return total

    def _data_words(self) -> dict[str, Any]:
        options = self.options
        return {
            "shards": options.shards,
            "shard_bytes": options.mib * MIB // options.shards,
            "small_files": options.small,
        }

    @contextmanager
    def _data(self, parent: Path) -> Iterator[Place]:
        root = Path(tempfile.mkdtemp(prefix="spark-bench-", dir=parent))
        self.folders.append(root)
        place = Place(root, "tmpfs" if parent == self.options.memory else "disk")
        free = shutil.disk_usage(root).free
        need = 2 * self.options.mib * MIB + 4 * self.options.small * 32768 + 64 * MIB
        if free < need:
            raise SystemExit(f"{parent} has {free / 2**30:.1f} GiB free, and {need / 2**30:.1f} are needed (--mib)")
        write_model(
            place.source, self.options.shards, self.options.mib * MIB // self.options.shards, self.options.small
        )
        yield place
        # Makes room for the next; after an error the whole benchmark tidies, once nothing writes any more.
        shutil.rmtree(root)

    def _known(self, place: Place) -> float:
        """The source's manifest, which is made once and remembered; how long that takes is told apart."""
        began = time.monotonic()
        made = weights.scan(str(place.source), "a")[0]
        made, findings = weights.hash_all(str(place.source), made, "a", made.unhashed())
        seconds = time.monotonic() - began
        if findings:
            raise SystemExit(f"the data cannot be read: {findings}")
        weights.remember(str(place.source), made, place.end("a") / "cache")
        place.manifest = made.as_data()
        return seconds

    # The ways

    def _rsync(self, place: Place, *more: str) -> float:
        argv = [*self.inside(0), "rsync", "-a", *more, "-e", self.shell]
        argv += [f"{place.source}/", f"root@{RAILS[0][1]}:{place.target}/"]
        began = time.monotonic()
        _run(*argv)
        return time.monotonic() - began

    def _copy(self, place: Place, *, encrypt: bool) -> float:
        keys = _keys(encrypt=encrypt)
        rails = [
            {"rail": number, "address": there, "peer_addresses": {"a": here}}
            for number, (here, there) in enumerate(RAILS)
        ]
        common = {"rails": rails, "path": str(place.target)}
        began = time.monotonic()
        receiver = self._job(
            *(place, 1, "weights_arrive", keys["receiver"]),
            {**common, "models_dir": str(place.target.parent), "source_node": "a", "manifest": place.manifest},
        )
        status = place.end("b") / "jobs/weights_arrive.json"
        while (listening := _status(status).get("listening")) is None:
            if receiver.poll() is not None:
                raise SystemExit(f"the receiver ended: {_status(status).get('findings')}")
            time.sleep(0.005)
        sender = self._job(
            *(place, 0, "weights_send", keys["sender"]),
            {**common, "path": str(place.source), "node": "b", "listening": listening, "have": {}},
        )
        ended = [sender.wait(), receiver.wait()]
        seconds = time.monotonic() - began
        findings = [item["code"] for item in _status(status).get("findings", ())]
        sent = _status(place.end("a") / "jobs/weights_send.json")
        if ended != [0, 0] or findings != ["WEIGHTS_VERIFIED"] or sent["result"]["fallback"]:
            raise SystemExit(f"the copy failed: {ended}, {findings}, {sent.get('findings')}")
        return seconds

    def _job(
        self, place: Place, end: int, kind: str, secrets: dict[str, Any], spec: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        root = place.end("ab"[end])
        (root / "jobs").mkdir(parents=True, exist_ok=True)
        (root / f"jobs/{kind}.json").unlink(missing_ok=True)
        asked = {"root": str(root), "kind": kind, "node": "ab"[end], "spec": spec, "secrets": secrets}
        (root / "asked.json").write_text(json.dumps(asked))
        (root / "openssl.cnf").write_text(OPENSSL_CONF)
        argv = [*self.inside(end), sys.executable, "-c", JOB, str(PROJECT / "module_utils"), str(root / "asked.json")]
        return subprocess.Popen(argv, env={**os.environ, "OPENSSL_CONF": str(root / "openssl.cnf")})

    def _openssl(self, place: Place) -> float:
        began = time.monotonic()
        for shard in sorted(place.source.glob("*.safetensors")):
            _run("openssl", "dgst", "-sha256", shard)
        return time.monotonic() - began

    def _verify(self, place: Place) -> float:
        """The same shards by the code that a node verifies with."""
        shards = sorted(path.name for path in place.source.glob("*.safetensors"))
        began = time.monotonic()
        made = weights.scan(str(place.source), "a")[0]
        hashed, findings = weights.hash_all(str(place.source), made, "a", shards)
        seconds = time.monotonic() - began
        known = {path: sha256 for path, _size, sha256 in place.manifest["files"]}
        if findings or any(hashed.files[name].sha256 != known[name] for name in shards):
            raise SystemExit(f"the verification failed: {findings}")
        return seconds

    def _nothing(self, place: Place) -> float:
        """What it takes to see, on one node, that all files are known and right."""
        cache = place.end("a") / "cache"
        began = time.monotonic()
        made = weights.recall(str(place.source), weights.scan(str(place.source), "a")[0], cache)
        right = made.digest() == weights.manifest_from(place.manifest).digest()
        seconds = time.monotonic() - began
        if not right:
            raise SystemExit("what was known of the files was forgotten")
        return seconds


class Place:
    """A source and a target on one file system, and what each end remembers."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.source, self.target = root / "source", root / "target" / "model"
        self.manifest: dict[str, Any] = {}
        self.target.parent.mkdir(parents=True)

    def end(self, name: str) -> Path:
        made = self.root / f"node-{name}"
        made.mkdir(exist_ok=True)
        return made

    def rest(self) -> None:
        """As before the first copy: no target, nothing of it remembered, and on a disk nothing of it in memory."""
        shutil.rmtree(self.target, ignore_errors=True)
        for leftover in self.target.parent.iterdir():
            shutil.rmtree(leftover)
        with suppress(FileNotFoundError):
            shutil.rmtree(self.end("b"))
        if self.kind == "disk":
            os.sync()
            for path in self.source.rglob("*"):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)


def _keys(*, encrypt: bool) -> dict[str, Any]:
    made: dict[str, Any] = importlib.import_module("action_plugins.transport_keys").make("a", "b", encrypt=encrypt)
    return made


def _status(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def write_model(root: Path, shards: int, size: int, small: int) -> None:
    """Shards with a header of their own, and small files in folders, none like another."""
    root.mkdir(parents=True)
    block = os.urandom(16 * MIB)
    for number in range(shards):
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with (root / f"model-{number + 1:05d}-of-{shards:05d}.safetensors").open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            left, counter = size, 0
            while left:
                part = number.to_bytes(4, "little") + counter.to_bytes(4, "little") + block[8 : min(left, len(block))]
                out.write(part[:left])
                left -= min(left, len(part))
                counter += 1
    for number in range(small):
        folder = root / f"parts-{number % 20}"
        folder.mkdir(exist_ok=True)
        at = number * 4099 % (15 * MIB)
        (folder / f"{number}.json").write_bytes(
            number.to_bytes(4, "little") + block[at : at + 1024 + number * 31 % 65536]
        )


def machine() -> dict[str, Any]:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            model = line.partition(":")[2].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "arch": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "openssl": _first_line("openssl", "version"),
        "rsync": _first_line("rsync", "--version"),
        "ssh": _first_line("ssh", "-V"),
        "load": [round(value, 2) for value in os.getloadavg()],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _first_line(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).splitlines()[0].strip()


def _median(times: Sequence[float] | None) -> float | None:
    return statistics.median(times) if times else None


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """How many times faster: medians over medians."""
    pairs = {
        "tls": ("rsync_s", "tls_s"),
        "plain": ("rsync_s", "plain_s"),
        "verify": ("openssl_s", "verify_s"),
        "image": ("save_load_s", "image_s"),
        "image_top_layer": ("save_load_s", "image_top_layer_s"),
    }
    made = {}
    for name, (base, ours) in pairs.items():
        first, second = _median(result.get(base)), _median(result.get(ours))
        if first and second:
            made[name] = round(first / second, 2)
    return made


def summary(result: dict[str, Any]) -> str:
    data = result["data"]
    size = data["shards"] * data["shard_bytes"]
    lines = [
        f"{size / 2**30:.1f} GiB in {data['shards']} shards and {data['small_files']} small files, "
        f"{result['machine']['cores']} cores ({result['machine']['cpu']})"
    ]
    words = {
        "rsync_s": "rsync over ssh, aes128-gcm, unverified",
        "rsync_fsync_s": "the same with --fsync",
        "plain_s": "verified copy in the clear",
        "tls_s": "verified copy, TLS 1.3",
        "openssl_s": "openssl dgst -sha256 of the shards",
        "verify_s": "verification of the shards",
        "nothing_s": "nothing to do, per node",
        "save_load_s": "docker save | ssh docker load",
        "image_s": "image transfer",
        "image_top_layer_s": "image transfer, other top layer",
    }
    for place, times in (("tmpfs", result), ("disk", result.get("disk") or {})):
        for name, text in words.items():
            if middle := _median(times.get(name)):
                rate = (
                    f", {size / middle / 1e9:.2f} GB/s"
                    if name in ("rsync_s", "rsync_fsync_s", "plain_s", "tls_s")
                    else ""
                )
                spread = f"{min(times[name]):.2f} to {max(times[name]):.2f}"
                lines.append(f"  {place:5} {text:40} {middle:7.2f} s ({spread}){rate}")
    said = ", ".join(f"{name} {value}x" for name, value in result["ratios"].items())
    return "\n".join([*lines, f"  times as fast: {said}"])


if __name__ == "__main__":
    sys.exit(main())
