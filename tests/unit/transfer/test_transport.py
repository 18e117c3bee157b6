"""The transport between two real ends: what arrives, what happens to an end that is killed, lied to or full."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.transport import channel, files, sender

from tests.unit.transfer import rails
from tests.unit.transfer.rails import RECEIVER, SECRET, SENDER, End

PROJECT = Path(__file__).resolve().parents[3]


def load_keys() -> Any:
    spec = importlib.util.spec_from_file_location("transport_keys", PROJECT / "action_plugins/transport_keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KEYS = load_keys()
PLAIN = KEYS.make("spark-01", "spark-02", encrypt=False)
TLS = KEYS.make("spark-01", "spark-02", encrypt=True)


class Bench:
    """A source folder, and a target with its staging folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ends: list[End] = []
        self.source, self.staging, self.real = root / "source", root / "staging", root / "real"
        for folder in (self.source, self.staging, self.real):
            folder.mkdir()
        self.keys = TLS
        self.items_override: list[list[Any]] | None = None

    def write(self, path: str, content: bytes) -> None:
        (self.source / path).parent.mkdir(parents=True, exist_ok=True)
        (self.source / path).write_bytes(content)

    def items(self) -> list[list[Any]]:
        if self.items_override is not None:
            return self.items_override
        return [
            [str(path.relative_to(self.source)), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
            for path in sorted(self.source.rglob("*"))
            if path.is_file()
        ]

    def _end(self, asked: dict[str, Any]) -> End:
        number = len(self.ends)
        end = End(asked, self.root / f"said-{number}", self.root / "openssl.cnf")
        self.ends.append(end)
        return end

    def receiver(self, *, before: str = "", idle_s: float = 30, **other: Any) -> End:
        asked = {
            "end": "receiver",
            "before": before,
            "secrets": self.keys["receiver"],
            "items": self.items(),
            "root": str(self.staging),
            "real": str(self.real),
            "addresses": RECEIVER,
            "allowed": SENDER,
            "idle_s": idle_s,
            **other,
        }
        return self._end(asked)

    def sender(self, ports: list[int], *, before: str = "", streams: int = 2, **other: Any) -> End:
        asked = {
            "end": "sender",
            "before": before,
            "secrets": self.keys["sender"],
            "items": self.items(),
            "root": str(self.source),
            "rails": list(zip(RECEIVER, ports, SENDER, strict=True)),
            "streams": streams,
            "identity": {},
            "last": [],
            "stall_s": 20,
            **other,
        }
        return self._end(asked)

    def copy(self, **other: Any) -> tuple[End, End]:
        receiver = self.receiver()
        sender = self.sender(receiver.word("ports"), **other)
        sender.wait()
        receiver.wait()
        return receiver, sender

    def left(self) -> list[str]:
        """Files that the staging folder still holds."""
        return [str(path.relative_to(self.staging)) for path in self.staging.rglob("*") if path.is_file()]

    def same(self) -> bool:
        return contents(self.source) == contents(self.real)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    for end in made.ends:
        end.close()


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - the same bytes in each run


def tree(bench: Bench, seed: int, large: int = 6 << 20) -> None:
    """A random tree: empty, tiny and large files, folders in folders, names that are awkward."""
    chance = random.Random(seed)  # noqa: S311 - the same tree in each run
    names = ["a b", "ü", "#x", "-n", "näme'\"", "x.safetensors", "deep/er/still"]
    for number in range(chance.randint(20, 60)):
        folder = chance.choice(["", "blobs/", "snapshots/0123/", "a/b/c/"])
        size = chance.choice([0, 1, chance.randint(2, 5000), chance.randint(5000, 90_000)])
        bench.write(f"{folder}{chance.choice(names)}-{number}", chance.randbytes(size))
    for number in range(chance.randint(2, 4)):
        bench.write(f"shard-{number}", chance.randbytes(chance.randint(1 << 20, large)))


# Nothing is handed out before each rail is connected: on a busy machine one could have done all of it.
TOGETHER = """
hand_out = sender._Sender._hand_out
sender._Sender._hand_out = lambda self: hand_out(self) if len(self.reached) == 2 else None
"""

# The first stream that has moved something dies there.
DIES_ONCE = """
import signal
from spark.transport import workers
real_add = workers.Slots.add
def add(self, slot, count):
    real_add(self, slot, count)
    try:
        os.close(os.open(os.path.dirname(asked["root"]) + "/died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
workers.Slots.add = add
"""

# Streams move a little and stop.
STANDS_STILL = """
import time
from spark.transport import workers
real_add = workers.Slots.add
workers.Slots.add = lambda self, slot, count: (real_add(self, slot, count), time.sleep(600))
"""


class TestWhole:
    @pytest.mark.parametrize("keys", [TLS, PLAIN], ids=["tls", "plain"])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_a_random_tree(self, bench, keys, seed):
        bench.keys = keys
        tree(bench, seed)
        receiver, sender = bench.copy()
        assert bench.same()
        assert receiver.last()["complete"]
        assert sender.last()["sent"] == receiver.last()["rails"]
        assert bench.left() == []

    @pytest.mark.parametrize("keys", [TLS, PLAIN], ids=["tls", "plain"])
    def test_both_rails_carry(self, bench, keys):
        """Nothing is handed out before each rail is connected: on a busy machine one can have done all of it."""
        bench.keys = keys
        for number in range(2):
            bench.write(f"shard-{number}", noise(2 << 20, number))
        receiver, sent = bench.copy(before=TOGETHER, streams=1)
        assert bench.same()
        assert sent.last()["sent"] == receiver.last()["rails"] == [2 << 20, 2 << 20]

    def test_the_largest_goes_first_and_the_last_wait(self):
        sizes = {"config.json": 2, "shard-0": 3 << 20, "shard-1": 1 << 20, "shard-2": 5 << 20, "small": 1}
        items = [files.Item(path, size, "0" * 64) for path, size in sizes.items()]
        first, last = sender.tasks_of(items, frozenset({"config.json"}))
        paths = [[item.path for item in task.items] for task in (*first, *last)]
        assert paths == [["shard-2"], ["shard-0"], ["shard-1", "small"], ["config.json"]]

    def test_the_last_arrives_last(self, bench):
        bench.write("config.json", b"{}")
        bench.write("shard", noise(3 << 20))
        bench.write("small", b"x")
        receiver, _ = bench.copy(last=["config.json"])
        assert bench.same()
        assert receiver.words("arrived")[-1] == "config.json"

    def test_a_file_whose_hash_nobody_knows(self, bench):
        bench.write("unknown", noise(3 << 20))
        bench.write("tiny", b"x")
        bench.items_override = [["unknown", 3 << 20, None], ["tiny", 1, None]]
        receiver, _ = bench.copy()
        assert bench.same()
        assert receiver.last()["complete"]

    def test_nothing_to_send(self, bench):
        receiver = bench.receiver()
        assert receiver.last() == {"complete": True, "failed": None, "rails": [0, 0], "ended": False}

    def test_memory_stays_small_and_the_cache_is_given_back(self, bench):
        bench.write("shard", noise(80 << 20))
        bench.write("other", noise(40 << 20, 2))
        receiver = bench.receiver()
        most = 0.0
        sender = bench.sender(receiver.word("ports"))
        while sender.process.poll() is None:
            most = max(most, rails.memory_mb(sender.process.pid), rails.memory_mb(receiver.process.pid))
            time.sleep(0.02)
        receiver.wait()
        assert bench.same()
        assert 0 < most < 300


class TestTls:
    def test_the_suite_that_was_asked_for(self):
        import ssl

        assert "TLS_AES_128_GCM_SHA256" in channel.OPENSSL_CONF
        context = channel.tls_context(channel.Credentials.of(TLS["sender"]), server=False)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED

    def test_certificates_live_for_a_day(self):
        from cryptography import x509

        made = x509.load_pem_x509_certificate(TLS["sender"]["certificate"].encode())
        assert (made.not_valid_after_utc - made.not_valid_before_utc).total_seconds() == 86400

    def test_another_sender_certificate_is_refused(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver()
        stranger = KEYS.make("spark-01", "spark-02", encrypt=True)["sender"]
        forged = {**stranger, "peer": TLS["sender"]["peer"]}
        sender = bench.sender(receiver.word("ports"), secrets=forged)
        assert sender.last()["error"] == "refused"
        assert receiver.word("warn") == "refused"
        assert contents(bench.real) == {}

    def test_another_receiver_certificate_is_refused(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver(secrets=KEYS.make("a", "b", encrypt=True)["receiver"])
        sender = bench.sender(receiver.word("ports"))
        assert sender.last()["error"] == "refused"
        assert contents(bench.real) == {}

    def test_another_secret_is_refused(self, bench):
        bench.write("x", b"x")
        bench.keys = PLAIN
        receiver = bench.receiver()
        sender = bench.sender(receiver.word("ports"), secrets={"secret": SECRET})
        assert sender.last()["error"] == "refused"
        assert contents(bench.real) == {}

    @pytest.mark.parametrize("secrets", [{}, {"secret": "short"}, {**TLS["sender"], "secret": SECRET}, {"key": "k"}])
    def test_half_of_what_is_needed_is_none(self, secrets):
        with pytest.raises(ValueError, match="neither or both"):
            channel.Credentials.of(secrets)


class TestDoor:
    def test_it_listens_on_the_rails_only_and_only_while_it_runs(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver()
        ports = receiver.word("ports")
        for address, port in zip(RECEIVER, ports, strict=True):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=2)
            assert listens(address, port)
        bench.sender(ports).wait()
        receiver.wait()
        assert not any(listens(address, port) for address, port in zip(RECEIVER, ports, strict=True))

    def test_a_foreign_address_is_turned_away(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver()
        ports = receiver.word("ports")
        with socket.create_connection((RECEIVER[0], ports[0]), source_address=("127.0.0.9", 0), timeout=5) as stranger:
            assert stranger.recv(1) == b""
        assert receiver.word("text") == "a connection from 127.0.0.9"
        bench.sender(ports).wait()
        receiver.wait()
        assert bench.same()

    def test_who_connects_and_says_nothing_holds_nobody_up(self, bench):
        bench.write("x", noise(2 << 20))
        receiver = bench.receiver(before="channel.HANDSHAKE_S = 3600")
        ports = receiver.word("ports")
        with socket.create_connection((RECEIVER[0], ports[0]), source_address=(SENDER[0], 0), timeout=5):
            bench.sender(ports).wait()
            receiver.wait()
        assert bench.same()

    def test_garbage_is_not_a_stream(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver()
        ports = receiver.word("ports")
        with socket.create_connection((RECEIVER[0], ports[0]), source_address=(SENDER[0], 0), timeout=5) as odd:
            odd.sendall(b"GET / HTTP/1.0\r\n\r\n")
            odd.settimeout(20)
            while odd.recv(4096):
                pass
        bench.sender(ports).wait()
        assert bench.same()


def listens(address: str, port: int) -> bool:
    wanted = f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}:{port:04X}"
    return any(line.split()[1] == wanted and line.split()[3] == "0A" for line in open("/proc/net/tcp").readlines()[1:])


class TestDamage:
    def test_a_flipped_bit_on_the_way_is_sent_again(self, bench):
        bench.write("shard", noise(4 << 20))
        flip = (
            "real = channel.TlsClient.write\n"
            "flips = []\n"
            "def write(self, data):\n"
            "    if len(data) > 100000 and not os.path.exists(asked['root'] + '/../flipped'):\n"
            "        open(asked['root'] + '/../flipped', 'w').close()\n"
            "        data = bytearray(data); data[5] ^= 1\n"
            "    real(self, data)\n"
            "channel.TlsClient.write = write"
        )
        _, sender = bench.copy(before=flip)
        assert bench.same()
        assert sender.words("warn") == ["repeated"]

    def test_bits_that_flip_each_time_end_the_copy(self, bench):
        bench.write("shard", noise(2 << 20))
        flip = (
            "real = channel.TlsClient.write\n"
            "def write(self, data):\n"
            "    if len(data) > 100000: data = bytearray(data); data[5] ^= 1\n"
            "    real(self, data)\n"
            "channel.TlsClient.write = write"
        )
        receiver, sender = bench.copy(before=flip)
        assert sender.last()["error"] == "differs"
        assert not receiver.last()["complete"]
        assert contents(bench.real) == {}

    @pytest.mark.parametrize("size", [5, 3 << 20], ids=["small", "large"])
    def test_a_source_that_is_not_what_its_hash_says(self, bench, size):
        bench.write("x", noise(size))
        bench.items_override = [["x", size, "0" * 64]]
        _, sender = bench.copy()
        assert (sender.last()["error"], sender.last()["path"]) == ("damaged", "x")
        assert contents(bench.real) == {}

    @pytest.mark.parametrize("size", [5, 3 << 20], ids=["small", "large"])
    def test_a_source_that_became_shorter(self, bench, size):
        bench.write("x", noise(size))
        items = bench.items()
        bench.write("x", noise(size - 1))
        bench.items_override = items
        _, sender = bench.copy()
        assert sender.last()["error"] == "changed"

    def test_a_source_that_is_cut_while_it_is_read(self, bench):
        bench.write("x", noise(8 << 20))
        cut = (
            "real = os.preadv\n"
            "def preadv(fd, views, at):\n"
            "    if at > 2 << 20: os.truncate(asked['root'] + '/x', 2 << 20)\n"
            "    return real(fd, views, at)\n"
            "os.preadv = preadv"
        )
        _, sender = bench.copy(before=cut)
        assert sender.last()["error"] == "changed"
        assert contents(bench.real) == {}

    def test_a_source_that_was_replaced_since_its_hash_was_made(self, bench):
        bench.write("x", noise(100))
        _, sender = bench.copy(identity={"x": [100, 1, 1]})
        assert sender.last()["error"] == "changed"

    def test_a_source_that_is_gone(self, bench):
        bench.write("x", b"x")
        items = bench.items()
        (bench.source / "x").unlink()
        bench.items_override = items
        _, sender = bench.copy()
        assert (sender.last()["error"], sender.last()["path"]) == ("unreadable", "x")

    def test_a_link_in_the_place_of_a_file_is_not_followed(self, bench):
        secret = bench.root / "secret"
        secret.write_bytes(b"12345")
        bench.items_override = [["x", 5, hashlib.sha256(b"12345").hexdigest()]]
        (bench.source / "x").symlink_to(secret)
        _, sender = bench.copy()
        assert sender.last()["error"] == "unreadable"

    def test_a_link_in_the_staging_folder_is_not_followed(self, bench):
        outside = bench.root / "outside"
        outside.mkdir()
        bench.write("a/x", noise(2 << 20))
        (bench.staging / "a").symlink_to(outside)
        receiver, sender = bench.copy()
        assert sender.last()["error"] == "write"
        assert receiver.last()["failed"][0] == "write"
        assert list(outside.iterdir()) == []

    def test_a_file_that_nobody_announced_is_not_taken(self, bench):
        bench.write("x", b"x")
        receiver = bench.receiver()
        bench.write("y", b"y")
        sender = bench.sender(receiver.word("ports"))
        assert sender.last()["error"] == "rails"
        assert "y" not in contents(bench.real)

    @pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "", ".", "a//b", "x\0", "./x", "a\nb"])
    def test_a_path_that_leaves_the_folder(self, path, tmp_path):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(OSError, match="not a path below"):
                files.open_below(descriptor, path, os.O_RDONLY)
        finally:
            os.close(descriptor)


class TestKilled:
    """Either end dies at any moment; the same command again ends right."""

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
    def test_and_repeated(self, bench, seed):
        chance = random.Random(seed)  # noqa: S311 - the same moments in each run
        bench.keys = PLAIN if seed % 2 else TLS
        tree(bench, seed + 10, large=24 << 20)
        for _ in range(3):
            receiver = bench.receiver(idle_s=5)
            sender = bench.sender(receiver.word("ports"))
            time.sleep(chance.uniform(0.1, 0.5))
            chance.choice([receiver, sender]).kill()
            for end in (receiver, sender):
                end.kill()
            real = contents(bench.real)
            source = contents(bench.source)
            assert all(source[name] == content for name, content in real.items()), "no half file under a real name"
            bench.items_override = [item for item in bench.items() if item[0] not in real]
        receiver, sender = bench.copy()
        assert receiver.last()["complete"]
        assert bench.same()
        assert bench.left() == []

    def test_it_goes_on_at_the_offset(self, bench):
        bench.write("shard", noise(9 << 20))
        (bench.staging / "shard").write_bytes(noise(9 << 20)[: 7 << 20])
        receiver, sender = bench.copy()
        assert bench.same()
        assert sum(sender.last()["sent"]) == 2 << 20
        assert sender.words("resumed") == [7 << 20]
        assert sum(receiver.last()["rails"]) == 2 << 20

    def test_all_of_it_was_there_already(self, bench):
        bench.write("shard", noise(3 << 20))
        shutil.copy(bench.source / "shard", bench.staging / "shard")
        _, sender = bench.copy()
        assert bench.same()
        assert sum(sender.last()["sent"]) == 0

    @pytest.mark.parametrize("there", [noise(2 << 20, 9), noise(3 << 20, 9), noise(4 << 20, 9)])
    def test_a_partial_file_with_other_contents(self, bench, there):
        bench.write("shard", noise(3 << 20))
        (bench.staging / "shard").write_bytes(there)
        bench.copy()
        assert bench.same()
        assert bench.left() == []

    def test_one_stream_of_the_sender_dies(self, bench):
        bench.write("shard", noise(8 << 20))
        bench.write("other", noise(6 << 20, 2))
        receiver = bench.receiver()
        sender = bench.sender(receiver.word("ports"), streams=1, before=DIES_ONCE)
        sender.wait()
        receiver.wait()
        assert bench.same()
        assert sender.words("warn") == ["broken"]

    def test_one_stream_of_the_receiver_dies(self, bench):
        bench.write("shard", noise(8 << 20))
        bench.write("other", noise(6 << 20, 2))
        receiver = bench.receiver(before=DIES_ONCE)
        sender = bench.sender(receiver.word("ports"), streams=1)
        sender.wait()
        receiver.wait()
        assert bench.same()
        assert sender.words("warn") == ["broken"]

    def test_a_parent_that_dies_takes_its_streams_along(self, bench):
        bench.write("shard", noise(8 << 20))
        receiver = bench.receiver(idle_s=3)
        sender = bench.sender(receiver.word("ports"), before=STANDS_STILL)
        a_child(sender)
        streams = rails.children(sender.process.pid)
        os.kill(sender.process.pid, signal.SIGKILL)
        sender.process.wait(20)
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}/exe").exists() for pid in streams) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(Path(f"/proc/{pid}/exe").exists() for pid in streams)
        assert receiver.last()["failed"][0] == "idle"


def a_child(end: End) -> int:
    deadline = time.monotonic() + 20
    while not (found := rails.children(end.process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found[0]


class TestRails:
    def test_a_stream_that_stands_still_goes_on_over_the_other_rail(self, bench):
        bench.write("shard", noise(12 << 20))
        bench.write("other", noise(10 << 20, 2))
        # The receiver's end of rail 1 stops reading once, as a rail that died does.
        stop = (
            "import signal\n"
            "real = channel.TlsServer.fill\n"
            "def fill(self, view):\n"
            "    if self.socket.getsockname()[0] == '127.0.11.2' and len(view) > 100000:\n"
            "        os.kill(os.getpid(), signal.SIGSTOP)\n"
            "    real(self, view)\n"
            "channel.TlsServer.fill = fill"
        )
        receiver = bench.receiver(before=stop)
        sender = bench.sender(receiver.word("ports"), before=TOGETHER, streams=1, stall_s=4)
        sender.wait()
        assert bench.same()
        assert sender.words("warn") == ["stalled"]
        assert re.search(r"stream \d on rail 1 \(127\.0\.11\.2\) stalled in (shard|other)", sender.words("text")[0])
        assert receiver.last()["complete"]

    def test_a_rail_on_which_nobody_listens(self, bench):
        bench.write("shard", noise(4 << 20))
        bench.write("other", noise(2 << 20))
        receiver = bench.receiver()
        ports = receiver.word("ports")
        dead = [[RECEIVER[0], ports[0], SENDER[0]], [RECEIVER[1], free_port(RECEIVER[1]), SENDER[1]]]
        told = (
            "import time\n"
            "real_bytes, real_failed = sender._Hand._bytes, sender._Sender._failed\n"
            "def failed(self, *rest):\n"
            "    open(asked['root'] + '/../failed', 'w').close()\n"
            "    real_failed(self, *rest)\n"
            "def late(self, *rest):\n"
            "    while not os.path.exists(asked['root'] + '/../failed'):\n"
            "        self.ticks.add(self.slot, 1); time.sleep(0.01)\n"
            "    real_bytes(self, *rest)\n"
            "sender._Hand._bytes, sender._Sender._failed = late, failed"
        )
        sender = bench.sender(ports, rails=dead, before=told)
        sender.wait()
        assert bench.same()
        assert set(sender.words("warn")) == {"unreachable"}
        receiver.wait()

    def test_a_rail_on_which_connections_hang(self, bench):
        """A firewall that drops: nothing fails before the other rail has done all the work."""
        bench.write("shard", noise(4 << 20))
        bench.write("other", noise(2 << 20))
        hang = (
            "import time\n"
            "sender.REACHED_AFTER_S = 0.0\n"
            "real = channel.dial\n"
            "def dial(address, *rest):\n"
            "    if address == '127.0.11.2': time.sleep(600)\n"
            "    return real(address, *rest)\n"
            "channel.dial = dial"
        )
        _, sender = bench.copy(before=hang, stall_s=60)
        assert bench.same()
        assert sender.words("text") == ["stream 1 on rail 1 (127.0.11.2): no connection until all was sent"]

    def test_no_rail_at_all(self, bench):
        bench.write("shard", noise(2 << 20))
        dead = [[address, free_port(address), local] for address, local in zip(RECEIVER, SENDER, strict=True)]
        sender = bench.sender([0, 0], rails=dead)
        assert sender.last()["error"] == "rails"
        assert "Connection refused" in " ".join(sender.last()["evidence"])

    def test_a_slow_reader_is_not_a_stall(self, bench):
        bench.write("shard", noise(4 << 20))
        slow = (
            "import time\n"
            "receiver.BUSY_EVERY_S = 0.1\n"
            "real = os.pwrite\n"
            "def pwrite(fd, data, at):\n"
            "    time.sleep(0.4)\n"
            "    return real(fd, data, at)\n"
            "os.pwrite = pwrite"
        )
        receiver = bench.receiver(before=slow)
        sender = bench.sender(receiver.word("ports"), stall_s=4)
        sender.wait()
        receiver.wait()
        assert bench.same()
        assert sender.words("warn") == []

    def test_a_disk_that_takes_long_to_sync_is_not_a_stall(self, bench):
        bench.write("shard", noise(2 << 20))
        slow = (
            "import time\nreceiver.BUSY_EVERY_S = 0.1\nreal = os.fsync\nos.fsync = lambda fd: (time.sleep(6), real(fd))"
        )
        receiver = bench.receiver(before=slow)
        sender = bench.sender(receiver.word("ports"), stall_s=4)
        sender.wait()
        receiver.wait()
        assert bench.same()
        assert sender.words("warn") == []

    def test_streams_by_cores(self):
        assert [sender.streams_for(cores, 2, targets) for cores, targets in ((2, 1), (20, 1), (20, 3), (72, 1))] == [
            2,
            5,
            2,
            6,
        ]


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB, in a place of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class TestFullDisk:
    @pytest.mark.parametrize("keys", [TLS, PLAIN], ids=["tls", "plain"])
    def test_both_ends_say_so(self, bench, keys, small_disk):
        bench.keys, bench.staging = keys, small_disk
        bench.write("shard", noise(24 << 20))
        receiver, sender = bench.copy()
        assert sender.last()["error"] == "disk"
        assert os.strerror(errno.ENOSPC) in sender.last()["text"]
        assert receiver.last()["failed"][0] == "disk"
        assert contents(bench.real) == {}
