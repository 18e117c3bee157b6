"""Waiting for a cluster: two hosts' actions at once, as in a play, against ranks that answer as the test says."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.spark.findings import finding

SERVING = {"port": 8000, "api_host": "0.0.0.0", "model": "m"}
Answer = Callable[[int, float], dict[str, Any]]


@pytest.fixture(scope="module")
def plugin(project: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rank_wait", project / "action_plugins" / "rank_wait.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status(phase: str, state: str = "running", **values: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "state": state,
        "phase": phase,
        "phase_text": phase,
        "joined": False,
        "facts": {},
        "log_lines": 1,
        "usage": {"cpu_s": 0, "read_bytes": 0, "memory_bytes": 0},
        "memory_available_bytes": 1,
        "health": None,
        "start": {"environment": {"A": "1", "API_KEY": "s3cret"}},
        "unit": {"active": "inactive"},
    }
    return {**base, **values}


def wait(plugin: ModuleType, tmp_path: Path, answers: dict[str, Answer]) -> dict[str, dict[str, Any]]:
    """Run one action per node; an answer is a function of the poll's number and of the phase known so far."""
    results: dict[str, dict[str, Any]] = {}
    took: dict[str, float] = {}
    names = list(answers)

    def one(rank: int, node: str) -> None:
        task = SimpleNamespace(
            _uuid="u",
            check_mode=False,
            async_val=0,
            args={
                "node": node,
                "rank": rank,
                "cluster": "pair",
                "head": names[0],
                "members": names,
                "serving": SERVING,
                "transport": "tcp",
                "poll_s": 0.05,
            },
        )
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = task
        polls = iter(range(10**6))

        def execute(**_: Any) -> dict[str, Any]:
            time.sleep(0.02)
            return answers[node](next(polls), time.monotonic() - began)

        action._execute_module = execute
        results[node] = action.run(None, {})
        took[node] = time.monotonic() - began

    began = time.monotonic()
    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert max(took.values()) < 5
    return results


@pytest.fixture(autouse=True)
def _quiet(plugin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(plugin.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(plugin.display, "display", lambda *_: None)


def codes(result: dict[str, Any]) -> list[str]:
    return [item["code"] for item in result["findings"]]


def up(poll: int, _: float) -> dict[str, Any]:
    return {"status": status("serving", health=200) if poll > 3 else status("loading", log_lines=poll)}


def loaded(_poll: int, _: float) -> dict[str, Any]:
    return {"status": status("loaded")}


def test_all_are_up_when_the_head_serves(plugin: ModuleType, tmp_path: Path) -> None:
    results = wait(plugin, tmp_path, {"head": up, "worker": loaded})
    assert not any(result.get("failed") for result in results.values())
    head = results["head"]
    assert head["module_executions"]["modules"] == 0
    assert head["module_executions"]["polls"] >= 4
    assert list(head["measurements"]["readiness"]["phases_s"]) == ["loading", "serving"]
    assert head["configuration"]["environment"] == {"A": "1", "API_KEY": "(not recorded)"}
    assert "s3cret" not in str(results)


def test_a_dead_worker_ends_the_heads_wait(plugin: ModuleType, tmp_path: Path) -> None:
    killed = finding("RANK_KILLED", node="worker", found="rank 1 ended", expected="it stays up").as_dict()

    def dying(poll: int, _: float) -> dict[str, Any]:
        return {"status": status("loading", "dead", death=killed) if poll > 1 else status("loading")}

    results = wait(plugin, tmp_path, {"head": lambda *_: {"status": status("rendezvous")}, "worker": dying})
    assert codes(results["worker"]) == ["RANK_KILLED"]
    assert codes(results["head"]) == ["PEER_RANK_DEAD"]
    assert "worker: RANK_KILLED" in results["head"]["findings"][0]["found"]
    assert all(result["failed"] for result in results.values())


def test_a_rank_that_is_not_there_is_named(plugin: ModuleType, tmp_path: Path) -> None:
    gone = {"status": status("starting", "absent")}
    results = wait(plugin, tmp_path, {"head": up, "worker": lambda *_: gone})
    assert codes(results["worker"]) == ["RANK_VANISHED"]


def test_silence_of_all_ranks_ends_with_the_one_that_is_behind(
    plugin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, base = time.time(), time.monotonic()
    monkeypatch.setattr(plugin.time, "time", lambda: started + (time.monotonic() - base) * 400)
    results = wait(
        plugin,
        tmp_path,
        {
            "head": lambda *_: {"status": status("rendezvous")},
            "worker": lambda *_: {"status": status("loaded", joined=True)},
        },
    )
    assert codes(results["head"]) == ["STALE_RANK"]
    assert codes(results["worker"]) == ["PEER_RANK_DEAD"]


def test_a_blink_of_the_connection_is_borne(plugin: ModuleType, tmp_path: Path) -> None:
    def blinking(poll: int, at: float) -> dict[str, Any]:
        if poll in (1, 2):
            raise AnsibleConnectionFailure("gone")
        return up(poll, at)

    results = wait(plugin, tmp_path, {"head": blinking})
    assert not results["head"].get("failed")
