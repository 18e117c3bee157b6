"""Logs of real ranks, healthy and dead: how far each came and why it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import engine_log
from ansible.module_utils.spark.engine_log import Sign

HERE = Path(__file__).parent
CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load((HERE / "logs.yml").read_text())
NAMED = {
    "ENGINE_FLAGS_WRONG",
    "IMAGE_NOT_ON_NODE",
    "DEVICE_NOT_IN_DOCKER",
    "SHM_TOO_SMALL",
    "RANK_PORT_TAKEN",
    "RDMA_REGISTRATION_FAILED",
    "QP_NOT_CONNECTED",
    "ADDRESS_NOT_RESOLVED",
    "INTERFACE_WRONG",
    "ENGINE_OUT_OF_MEMORY",
    "KERNEL_DOES_NOT_FIT",
    "ENGINE_WEIGHTS_UNREADABLE",
    "RANK_NEVER_JOINED",
    "SHM_BROADCAST_FATAL",
    "PEER_LOST",
}


def lines(name: str) -> list[str]:
    return engine_log.split((HERE / "fixtures" / name).read_text())


@pytest.mark.parametrize("case", CASES["progress"], ids=lambda case: case["log"])
def test_the_phase_is_the_latest_milestone(case: dict[str, Any]) -> None:
    now = engine_log.progress(lines(case["log"]))
    assert (now.phase, now.joined) == (case["phase"], case["joined"])
    assert {key: now.facts.get(key) for key in case["facts"]} == case["facts"]


@pytest.mark.parametrize("case", CASES["lines"], ids=lambda case: case["line"][:40])
def test_single_lines(case: dict[str, Any]) -> None:
    now = engine_log.progress([case["line"]])
    assert (now.phase, now.percent) == (case["phase"], case["percent"])


def test_a_progress_bar_is_read_up_to_its_last_state() -> None:
    shown = "Loading safetensors checkpoint shards: {:>3}% Completed | {}/2"
    bar = "\r".join([shown.format(0, 0), shown.format(50, 1), ""])
    assert engine_log.progress(engine_log.split(bar)).percent == 50


@pytest.mark.parametrize("case", CASES["captured_causes"], ids=lambda case: case["log"])
def test_captured_logs_name_their_cause_and_the_line_that_shows_it(case: dict[str, Any]) -> None:
    named = engine_log.cause(lines(case["log"]))
    assert (named.code if named else None) == case["code"]
    if named:
        assert case["line"] in named.line


@pytest.mark.parametrize("case", CASES["causes"], ids=lambda case: case["code"])
def test_each_cause_and_its_near_miss(case: dict[str, Any]) -> None:
    named = engine_log.cause(["INFO before", case["line"], "INFO after"])
    assert named is not None
    assert (named.code, named.line) == (case["code"], case["line"])
    assert engine_log.cause([case["near"]]) is None


def test_the_table_is_complete() -> None:
    assert {case["code"] for case in CASES["causes"]} == NAMED


def test_a_key_that_the_engine_prints_is_masked() -> None:
    line = "INFO non-default args: {'model': 'm', 'api_key': ['s3cret', 'b'], 'port': 8000}"
    assert engine_log.split(line) == ["INFO non-default args: {'model': 'm', 'api_key': (redacted), 'port': 8000}"]


def test_the_root_comes_before_its_consequence() -> None:
    log = [
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "RuntimeError: std::bad_alloc",
        "RuntimeError: Read error: Connection reset by peer.",
    ]
    named = engine_log.cause(log)
    assert named is not None
    assert named.code == "RDMA_REGISTRATION_FAILED"


def test_an_unknown_death_is_not_guessed() -> None:
    said = engine_log.death(["INFO up", "ValueError: the moon is full"], node="n", what="rank 1", exit_status=1)
    assert said.code == "UNKNOWN_CAUSE"
    assert "ValueError: the moon is full" in said.evidence
    assert "journalctl" in said.remedy


@pytest.mark.parametrize(
    ("status", "killed", "code"),
    [(137, False, "RANK_KILLED"), (137, True, "ENGINE_OUT_OF_MEMORY"), (0, False, "UNKNOWN_CAUSE")],
)
def test_a_signal_is_told_from_a_lack_of_memory(status: int, killed: bool, code: str) -> None:
    said = engine_log.death(
        ["INFO up"], node="n", what="rank 1", exit_status=status, memory_killed=killed, phase="loading"
    )
    assert said.code == code
    assert "loading weights" in said.found


def test_evidence_is_the_error_and_the_end_and_no_frames() -> None:
    shown = engine_log.tail(lines("head-alone.log"))
    assert len(shown) <= 12
    assert any("DistStoreError" in line for line in shown)
    assert not any("^^^^" in line for line in shown[:-4])


def test_the_tolerated_wait_is_a_note_and_sockets_matter_only_with_rdma() -> None:
    said = engine_log.remarks(lines("head-link-cut.log"), node="n", transport="rdma")
    assert [(item.code, item.severity) for item in said] == [("SHM_BROADCAST_WAIT", "note")]
    log = ["NCCL INFO NET/IB : No device found.", "NCCL INFO Using network Socket"]
    assert [item.code for item in engine_log.remarks(log, node="n", transport="rdma")] == ["SOCKET_FALLBACK"]
    assert engine_log.remarks(log, node="n", transport="tcp") == []
    rendezvous = ["world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://192.168.200.12:29501 backend=nccl"]
    assert engine_log.remarks(rendezvous, node="n", transport="rdma") == []


def sign(phase: str, **values: Any) -> Sign:
    base: dict[str, Any] = {"at_s": 0, "joined": False, "log_lines": 10, "cpu_s": 5, "read_bytes": 0, "memory_bytes": 0}
    return Sign(phase=phase, **{**base, **values})


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (sign("loading"), sign("loading", read_bytes=1 << 24), True),
        (sign("loading"), sign("loading", cpu_s=9), True),
        (sign("loading"), sign("loading", cpu_s=5.2, memory_bytes=1 << 20), False),
        (sign("rendezvous"), sign("rendezvous", cpu_s=60), False),
        (sign("rendezvous"), sign("rendezvous", log_lines=11), True),
        (sign("loading"), sign("loaded"), True),
    ],
)
def test_spinning_is_no_progress_where_a_rank_only_waits(before: Sign, now: Sign, moved: bool) -> None:
    assert engine_log.progressed(before, now) is moved


def test_the_rank_that_is_behind_names_the_stall() -> None:
    loading = {"head": sign("loading"), "worker": sign("loaded")}
    assert engine_log.stall(loading, 599, head="head", transport="tcp") is None
    late = engine_log.stall(loading, 601, head="head", transport="tcp")
    assert late is not None
    assert (late.code, late.node) == ("RANK_STALLED", "head")
    waiting = {"head": sign("rendezvous"), "worker": sign("starting")}
    alone = engine_log.stall({**waiting, "worker": sign("rendezvous")}, 200, head="head", transport="tcp")
    assert alone is not None
    assert alone.code == "RANK_NEVER_JOINED"
    stale = engine_log.stall(
        {"head": sign("rendezvous"), "worker": sign("loaded", joined=True)}, 200, head="head", transport="tcp"
    )
    assert stale is not None
    assert (stale.code, stale.node) == ("STALE_RANK", "worker")
