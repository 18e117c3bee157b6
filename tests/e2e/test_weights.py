"""Weights from one node to the other by the play: whole, interrupted, over one rail, and where a firewall is in the
way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .virtual_pair import PROJECT, Outcome, VirtualPair

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HEAD, WORKER, CLUSTER = "spark-01", "spark-02", "bare"
PLAY = "tests/e2e/weights.yml"
FOLDER = "/home/spark/models/lab-tiny"
# A shard that takes seconds to copy, so that there is something to interrupt.
MAKE = f"""
import json, os, struct
size = 400 << 20
header = json.dumps({{"w": {{"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}}}).encode()
for name in ("extra-1", "extra-2"):
    with open("{FOLDER}/" + name + ".safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        block = os.urandom(1 << 20)
        for _ in range(400):
            out.write(block)
os.system("chown -R spark:spark {FOLDER}")
"""
LISTING = f"""
import hashlib, json, os
found = {{}}
for folder, _, names in os.walk("{FOLDER}"):
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "rb") as opened:
            found[path] = [hashlib.file_digest(opened, "sha256").hexdigest(), os.stat(path).st_uid]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def pair(bare_pair: VirtualPair) -> VirtualPair:
    outcome = bare_pair.play("tests/e2e/fabric_alone.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    return bare_pair


@pytest.fixture(scope="module")
def large(pair: VirtualPair) -> VirtualPair:
    pair.sh(HEAD, f"python3 -c '{MAKE}'")
    return pair


def contents(pair: VirtualPair, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pair.sh(node, f"python3 -c '{LISTING}'"))
    return found


def forget(pair: VirtualPair) -> None:
    pair.sh(WORKER, f"rm -rf {FOLDER} /home/spark/models/.spark-incoming-lab-tiny")


def copied(pair: VirtualPair, outcome: Outcome) -> dict[str, Any]:
    """What the result says of the copy, after the copy was looked at."""
    assert outcome.rc == 0, outcome.output[-6000:]
    assert contents(pair, HEAD) == contents(pair, WORKER)
    assert pair.sh(WORKER, "ls -A /home/spark/models").split() == ["lab-tiny"]
    assert "WEIGHTS_VERIFIED" in outcome.codes(CLUSTER)
    assert pair.sh(WORKER, "ls -A /run/spark-cluster/jobs | grep secrets || true") == ""
    measured = outcome.result(CLUSTER)["measurements"]
    return next((values["weights_copy"] for values in measured.values() if "weights_copy" in values), {})


def test_over_both_rails_and_then_nothing_to_do(pair: VirtualPair) -> None:
    outcome = pair.play(PLAY, model="lab-tiny")
    copy = copied(pair, outcome)
    assert (copy["transport"], copy["verified"]) == ("tls", True)
    assert len(copy["rails"]) == 2
    listeners = pair.sh(WORKER, "ss -Hltn 'src 192.168.200.0/23'")
    assert not [line for line in listeners.splitlines() if ":22 " not in line]
    again = pair.play(PLAY, model="lab-tiny")
    assert (again.rc, sum(again.changed.values())) == (0, 0), again.output[-6000:]


def running(pair: VirtualPair) -> subprocess.Popen[bytes]:
    """The play, from outside, at a moment when bytes move."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    argv = ["ansible-playbook", "-i", str(pair.inventory), PLAY, "-e", "model=lab-tiny"]
    play = subprocess.Popen(argv, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    ends = time.monotonic() + 120
    size = "du -sb /home/spark/models/.spark-incoming-lab-tiny 2>/dev/null | cut -f1"
    while int(pair.sh(WORKER, size).strip() or 0) < 50_000_000:
        assert play.poll() is None
        assert time.monotonic() < ends
    return play


@pytest.mark.long
@pytest.mark.parametrize("victim", ["controller", HEAD, WORKER])
def test_whoever_is_killed_the_same_command_goes_on(large: VirtualPair, victim: str) -> None:
    forget(large)
    play = running(large)
    if victim == "controller":
        os.killpg(play.pid, signal.SIGKILL)
    else:
        job = "weights-send-spark-02" if victim == HEAD else "weights-arrive"
        large.sh(victim, f"systemctl kill -s KILL spark-job-{job}.service")
    play.wait(300)
    assert "config.json" not in large.sh(WORKER, f"ls {FOLDER} 2>/dev/null || true").split()
    copied(large, large.play(PLAY, model="lab-tiny"))


@contextmanager
def firewall(pair: VirtualPair, rule: str) -> Iterator[None]:
    chain = "add chain inet e2e in { type filter hook input priority 0; }"
    pair.sh(WORKER, f"nft add table inet e2e && nft '{chain}' && nft add rule inet e2e in {rule}")
    try:
        yield
    finally:
        pair.sh(WORKER, "nft delete table inet e2e")


@pytest.mark.long
def test_a_rail_that_is_blocked_is_named_and_the_other_one_carries(large: VirtualPair) -> None:
    forget(large)
    with firewall(large, "ip daddr 192.168.201.0/24 tcp dport 1024-65535 drop"):
        outcome = large.play(PLAY, model="lab-tiny")
    copy = copied(large, outcome)
    assert [rail["bytes"] > 0 for rail in copy["rails"]] == [True, False]
    assert "COPY_RAIL_CHANGED" in outcome.codes(CLUSTER, "warn")


@pytest.mark.long
def test_rsync_takes_over_where_no_rail_carries_and_the_result_says_so(pair: VirtualPair) -> None:
    forget(pair)
    with firewall(pair, "ip daddr 192.168.200.0/23 tcp dport 1024-65535 drop"):
        outcome = pair.play(PLAY, model="lab-tiny")
    copied(pair, outcome)
    assert "COPY_FALLBACK" in outcome.codes(CLUSTER, "warn")
