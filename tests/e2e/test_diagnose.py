"""diagnose.yml on a pair that is broken in several ways, and on one that is not: it tells, and changes nothing."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .virtual_pair import PROJECT, Outcome, VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HEAD, WORKER = "spark-01", "spark-02"
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
CLUSTER = "bare"


def diagnosis(outcome: Outcome) -> dict[str, Any]:
    assert outcome.rc == 0, outcome.output[-6000:]
    measured = outcome.result(CLUSTER)["measurements"]
    found: dict[str, Any] = next(values["diagnosis"] for values in measured.values() if "diagnosis" in values)
    return found


def causes(outcome: Outcome) -> list[tuple[str, str]]:
    return [(cause["code"], cause["node"]) for cause in diagnosis(outcome)["causes"]]


def bundle(outcome: Outcome) -> dict[str, str]:
    """Every file of the bundle that lies beside the result."""
    shown = re.search(r"attach +(\S+\.tar\.gz)", outcome.output)
    assert shown, outcome.output[-3000:]
    with tarfile.open(PROJECT / shown[1]) as opened:
        members = [item for item in opened.getmembers() if item.isfile()]
        texts = {item.name: opened.extractfile(item) for item in members}
        return {name: stream.read().decode() for name, stream in texts.items() if stream}


@contextmanager
def nothing_changes(pair: VirtualPair) -> Iterator[None]:
    before = pair.snapshot()
    yield
    assert changed_paths(before, pair.snapshot()) == {}
    for node in pair.nodes:
        left = pair.sh(node, "systemctl list-units --all --no-legend 'spark-link*'; ss -Hltn '( sport >= :12000 )'")
        assert "spark-link" not in left
        assert ":120" not in left


def up(pair: VirtualPair) -> None:
    """The fabric as site.yml would have left it, by hand: what is tested is what reads it."""
    for position, node in enumerate(pair.nodes):
        for rail, netdev in enumerate(RAILS):
            address = f"192.168.{200 + rail}.{12 + position}/24"
            pair.sh(node, f"ip addr replace {address} dev {netdev}; ip link set {netdev} up")


def test_on_factory_state_every_step_that_cannot_run_says_why(bare_pair: VirtualPair) -> None:
    with nothing_changes(bare_pair):
        outcome = bare_pair.play("diagnose.yml")
    assert causes(outcome) == [("CAUSE_SWITCHED_OFF", node) for node in (HEAD, HEAD, WORKER, WORKER)]
    runs = diagnosis(outcome)["runs"]
    assert len(runs) == 4
    assert all("is switched off and lacks 192.168.20" in run["skipped"] for run in runs)
    assert not any(outcome.changed.values())


def test_a_healthy_pair_is_measured_within_a_minute_and_its_bundle_names_nobody(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    with nothing_changes(bare_pair):
        outcome = bare_pair.play("diagnose.yml")
    found = diagnosis(outcome)
    assert (found["state"], found["causes"]) == ("healthy", []), found
    assert outcome.result(CLUSTER)["verdict"] == "ok"
    assert [run["kind"] for run in found["runs"]] == ["loopback", "loopback", "tcp", "tcp"]
    assert all(run["sum_gbps"] > 0 and len(run["rails"]) == 2 for run in found["runs"])
    assert sum(run["seconds"] for run in found["runs"]) < 60
    texts = bundle(outcome)
    assert {Path(name).name for name in texts} >= {"report.md", "evidence.json", "kernel.txt"}
    told = "\n".join(texts.values())
    for node in bare_pair.nodes:
        macs = bare_pair.sh(node, "cat /sys/class/net/*/address").split()
        keys = bare_pair.sh(node, "cut -d' ' -f2 /etc/ssh/ssh_host_*_key.pub").split()
        ids = bare_pair.sh(node, "cat /etc/machine-id /proc/sys/kernel/random/boot_id").split()
        for secret in [*(mac for mac in macs if mac != "00:00:00:00:00:00"), *keys, *ids, "10.76.0."]:
            assert secret not in told, secret
    assert "192.168.200.12" in told, "the fabric's own addresses are the subject"


def test_a_node_that_does_not_answer_is_the_first_cause_and_the_rest_goes_on(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    # A connection that is open already would serve the play.
    bare_pair.sh(WORKER, "systemctl stop ssh.service; pgrep ^sshd | xargs -r kill")
    try:
        outcome = bare_pair.play("diagnose.yml")
    finally:
        bare_pair.sh(WORKER, "systemctl start ssh.service")
    found = diagnosis(outcome)
    assert causes(outcome) == [("CAUSE_NODE_SILENT", WORKER)]
    assert any("reaches it at 192.168.200.13" in line for line in found["causes"][0]["evidence"])
    runs = {(run["kind"], run["from"]): run for run in found["runs"]}
    assert runs["loopback", HEAD]["sum_gbps"] > 0
    assert "spark-02 was not asked" in runs["tcp", HEAD]["skipped"]
    assert outcome.result(CLUSTER)["verdict"] == "failed"


@pytest.mark.long
def test_a_rail_that_was_cut_is_named_and_the_other_one_measured(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    bare_pair.sh(WORKER, f"ip link set {RAILS[0]} down")
    try:
        with nothing_changes(bare_pair):
            outcome = bare_pair.play("diagnose.yml")
    finally:
        up(bare_pair)
    assert causes(outcome)[0] == ("CAUSE_SWITCHED_OFF", WORKER)
    measured = [run for run in diagnosis(outcome)["runs"] if run["kind"] == "tcp" and not run["skipped"]]
    assert measured, diagnosis(outcome)["runs"]
    assert {rail["netdev"] for run in measured for rail in run["rails"]} == {RAILS[1]}


@pytest.mark.long
def test_a_shaped_rail_is_found_by_its_queue(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    bare_pair.sh(HEAD, f"tc qdisc add dev {RAILS[1]} root tbf rate 20mbit burst 32kb latency 400ms")
    try:
        outcome = bare_pair.play("diagnose.yml", link_check_min_gbps=2)
    finally:
        bare_pair.sh(HEAD, f"tc qdisc del dev {RAILS[1]} root")
    assert causes(outcome)[0] == ("CAUSE_SHAPED", HEAD)


@pytest.mark.long
def test_while_a_rank_serves_nothing_is_loaded(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    bare_pair.sh(HEAD, "systemd-run -q --unit=spark-rank.service sleep 300")
    try:
        outcome = bare_pair.play("diagnose.yml")
    finally:
        bare_pair.sh(HEAD, "systemctl stop spark-rank.service")
    runs = {(run["kind"], run["from"]): run["skipped"] for run in diagnosis(outcome)["runs"]}
    served = "spark-01: spark-rank.service is active"
    assert runs["loopback", HEAD] == runs["tcp", HEAD] == runs["tcp", WORKER] == served
    assert "DIAGNOSIS_NOT_LOADED" in outcome.codes(CLUSTER)


@pytest.mark.long
def test_check_mode_reads_and_runs_nothing(bare_pair: VirtualPair) -> None:
    up(bare_pair)
    with nothing_changes(bare_pair):
        outcome = bare_pair.play("diagnose.yml", check=True)
    assert {run["skipped"] for run in diagnosis(outcome)["runs"]} == {"nothing is run in check mode"}
    assert diagnosis(outcome)["state"] == "unmeasured"
