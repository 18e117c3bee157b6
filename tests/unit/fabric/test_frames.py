"""Beacons and ARP probes: their bytes, what is made of them, and an exchange over real packet sockets."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from ansible.module_utils.spark import frames
from ansible.module_utils.spark.frames import Answered, Ask, Beacon, Heard, Talk
from ansible.module_utils.testing import patch_module_args

MAC = bytes.fromhex("525400aa0001")
PEER_MAC = bytes.fromhex("525400aa0002")
PROJECT = Path(__file__).resolve().parents[3]
SPARK = Path(frames.__file__).resolve().parents[1]


def ask(**changed: object) -> Ask:
    fields = {"cluster": "pair_a", "node": "spark-01", "peers": ("spark-02",), "netdevs": ("enp1s0f0np0",)}
    return Ask(**{**fields, **changed})  # type: ignore[arg-type]


def arp(operation: int, mac: bytes, sender: str, target: str) -> bytes:
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + mac + socket.inet_aton(sender)
    return b"\xff" * 6 + mac + b"\x08\x06" + body + bytes(6) + socket.inet_aton(target)


def test_a_beacon_survives_its_padding() -> None:
    beacon = Beacon("pair_a", "spark-01", "enP2p1s0f0np0", "0a1b2c3d", ("ffffffff",))
    frame = frames.encode(beacon, MAC)
    assert frame[:14] == b"\xff" * 6 + MAC + b"\x88\xb5"
    assert len(frame) >= 60
    assert frames.decode(frame) == beacon
    assert frames.decode(frame + bytes(40)) == beacon


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"somebody else's experiment",
        frames.MAGIC,
        frames.MAGIC + b"\xff\xff[",
        frames.MAGIC + struct.pack("!H", 2) + b"[]",
        frames.MAGIC + struct.pack("!H", 19) + b'["a","b","c",1,[2]]',
        frames.MAGIC + struct.pack("!H", 19) + b'["a","b","c","d",2]',
    ],
)
def test_other_peoples_frames_are_none_of_ours(payload: bytes) -> None:
    assert frames.decode(b"\xff" * 6 + MAC + b"\x88\xb5" + payload) is None
    assert frames.decode(b"\xff" * 6 + MAC + b"\x08\x06" + payload) is None


def test_an_arp_probe_names_no_sender_and_claims_nothing() -> None:
    frame = frames.arp_probe("192.168.200.12", MAC)
    assert len(frame) == 60
    assert frame[28:32] == bytes(4)
    assert frame[38:42] == socket.inet_aton("192.168.200.12")
    assert frames.arp_claim(frame) is None


@pytest.mark.parametrize("operation", [1, 2])
def test_a_reply_and_a_request_both_claim_the_senders_address(operation: int) -> None:
    claim = frames.arp_claim(arp(operation, PEER_MAC, "192.168.200.12", "0.0.0.0"))
    assert claim == ("192.168.200.12", "52:54:00:aa:00:02")
    assert frames.arp_claim(arp(operation, PEER_MAC, "192.168.200.12", "0.0.0.0")[:40]) is None


def test_who_answers_for_a_planned_address() -> None:
    talk = Talk(ask(addresses=("192.168.200.12",)), "n1", ["52:54:00:AA:00:01"])
    talk.hear("enp1s0f0np0", arp(2, MAC, "192.168.200.12", "0.0.0.0"))  # this node's other function
    talk.hear("enp1s0f0np0", arp(2, PEER_MAC, "192.168.200.13", "0.0.0.0"))  # somebody else's own business
    assert not talk.answered
    talk.hear("enp1s0f0np0", arp(2, PEER_MAC, "192.168.200.12", "0.0.0.0"))
    assert talk.answered == {Answered("enp1s0f0np0", "192.168.200.12", "52:54:00:aa:00:02")}


def test_to_have_met_is_to_have_heard_and_to_be_heard() -> None:
    talk = Talk(ask(), "n1", [])
    talk.hear("enp1s0f0np0", frames.encode(Beacon("pair_b", "spark-02", "enp1s0f0np0", "n2", ("n1",)), PEER_MAC))
    assert not talk.heard, "another cluster behind the same switch"
    talk.hear("enp1s0f0np0", frames.encode(Beacon("pair_a", "spark-02", "enp1s0f1np1", "n2"), PEER_MAC))
    assert talk.heard == {Heard("enp1s0f0np0", "spark-02", "enp1s0f1np1")}
    assert not talk.met
    assert talk.beacon("enp1s0f0np0").heard == ("n2",)
    # A run of a moment ago heard somebody else.
    talk.hear("enp1s0f0np0", frames.encode(Beacon("pair_a", "spark-02", "enp1s0f1np1", "n2", ("n0",)), PEER_MAC))
    assert not talk.met
    talk.hear("enp1s0f0np0", frames.encode(Beacon("pair_a", "spark-02", "enp1s0f1np1", "n2", ("n1",)), PEER_MAC))
    assert talk.met


def test_a_function_that_hears_its_twin_shares_a_segment_with_it() -> None:
    talk = Talk(ask(), "n1", [])
    talk.hear("enp1s0f0np0", frames.encode(Beacon("pair_a", "spark-01", "enP2p1s0f0np0", "n1"), MAC))
    assert talk.heard == {Heard("enp1s0f0np0", "spark-01", "enP2p1s0f0np0")}
    assert not talk.nonces


class FakeWire:
    """A function whose peer answers from the given second on."""

    mac = MAC

    def __init__(self, world: World, answers_from_s: float) -> None:
        self.world, self.answers_from_s, self.sent = world, answers_from_s, list[bytes]()

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def take(self) -> Iterable[bytes]:
        if self.world.now < self.answers_from_s:
            return []
        mine = [beacon.nonce for beacon in map(frames.decode, self.sent) if beacon]
        return [frames.encode(Beacon("pair_a", "spark-02", "enp1s0f0np0", "n2", tuple(mine[-1:])), PEER_MAC)]


class World:
    now = 0.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def run(self, asked: Ask, answers_from_s: float) -> tuple[frames.Report, FakeWire]:
        wire = FakeWire(self, answers_from_s)
        report = frames.exchange(asked, {"enp1s0f0np0": wire}, [], nonce="n1", clock=self.clock, wait=self.wait)
        return report, wire


@pytest.mark.parametrize(("answers_from_s", "at_least_s", "met"), [(0.0, 1.2, True), (5.0, 6.2, True), (99, 20, False)])
def test_a_late_peer_is_waited_for_and_a_silent_one_is_not(answers_from_s: float, at_least_s: float, met: bool) -> None:
    report, _ = World().run(ask(), answers_from_s)
    assert report.met is met
    assert at_least_s <= report.spent_s < at_least_s + 0.5
    assert bool(report.heard) is met


def test_an_address_is_asked_for_three_times_and_given_a_second() -> None:
    report, wire = World().run(ask(addresses=("192.168.200.12",)), 0.0)
    assert sum(frame[12:14] == b"\x08\x06" for frame in wire.sent) == 3
    assert report.spent_s >= 1.6
    assert report.as_dict()["sent"] == len(wire.sent)


def test_without_a_function_nothing_is_waited_for() -> None:
    assert frames.exchange(ask(), {}, [], nonce="n1", clock=World().clock).met is False


def test_the_module_speaks_in_check_mode_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Ask] = []

    def run(ask: Ask) -> frames.Report:
        asked.append(ask)
        return frames.Report(["enp1s0f0np0"], heard={Heard("enp1s0f0np0", "spark-02", "enp1s0f1np1")}, met=True)

    spec = importlib.util.spec_from_file_location("fabric_frames", PROJECT / "library" / "fabric_frames.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run_exchange", run)
    arguments = {"cluster": "c", "node": "spark-01", "peers": ["spark-02"], "netdevs": ["enp1s0f0np0"]}
    with patch_module_args({**arguments, "_ansible_check_mode": True}), pytest.raises(SystemExit):
        module.main()
    said = json.loads(capsys.readouterr().out)
    assert said["changed"] is False
    assert said["wire"]["heard"] == [{"netdev": "enp1s0f0np0", "peer": "spark-02", "peer_netdev": "enp1s0f1np1"}]
    assert asked[0].limit_s == 20


# Both ends of a cable in one namespace: packet sockets do not care, and the kernel answers ARP as on a real machine.
REAL = """
import json, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from spark import frames
ip = lambda *words: subprocess.run(["ip", *words], check=True)
for name in ("a", "b"):
    ip("link", "add", f"{name}0", "type", "veth", "peer", "name", f"{name}1")
    ip("link", "set", f"{name}0", "up"); ip("link", "set", f"{name}1", "up")
ip("addr", "add", "192.168.200.12/24", "dev", "a1")
frames.local_macs = lambda root=None: []
reports = {}
def one(node, peer, netdevs, addresses):
    asked = frames.Ask("c", node, (peer,), netdevs, addresses, 5.0)
    reports[node] = frames.run_exchange(asked).as_dict()
runs = [threading.Thread(target=one, args=("n0", "n1", ("a0", "b0", "nosuch"), ("192.168.200.12", "192.168.200.99"))),
        threading.Thread(target=one, args=("n1", "n0", ("b1", "a1"), ()))]
[run.start() for run in runs]; [run.join() for run in runs]
print(json.dumps(reports))
"""


def _namespace() -> list[str]:
    for argv in (["unshare", "-n"], ["unshare", "-rn"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*argv, "true"], capture_output=True, check=False).returncode == 0
        ):
            return argv
    pytest.skip("this user may make no network namespace")


def test_real_sockets_find_the_cable_and_the_holder_of_an_address() -> None:
    argv = [*_namespace(), sys.executable, "-c", REAL, str(SPARK)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert [report["met"] for report in reports.values()] == [True, True]
    heard = {(item["netdev"], item["peer"], item["peer_netdev"]) for item in reports["n0"]["heard"]}
    assert heard == {("a0", "n1", "a1"), ("b0", "n1", "b1")}
    # Linux answers for an address of any of its functions, unless arp_ignore says otherwise.
    assert {(item["netdev"], item["address"]) for item in reports["n0"]["answered"]} == {
        ("a0", "192.168.200.12"),
        ("b0", "192.168.200.12"),
    }
    assert list(reports["n0"]["refused"]) == ["nosuch"]
    assert reports["n0"]["spent_s"] < 4
