"""The controller's side: two hosts' actions at once, against jobs that answer as the test says, and the judgement."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.spark.findings import finding

SETTINGS = {
    "port": 29511,
    "largest_mib": 1,
    "calls": 5,
    "seconds": 1.0,
    "join_s": 5.0,
    "silence_s": 5.0,
    "while_serving": False,
}
Answer = Callable[[int], dict[str, Any]]


def load(project: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, project / "action_plugins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugin(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(project, "collective_run")
    monkeypatch.setattr(module.ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(module.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(module.display, "display", lambda *_: None)
    monkeypatch.setattr(module, "CONNECTION_PAUSE_S", 0.01)
    return module


def member(node: str, rank: int) -> dict[str, Any]:
    planned = {
        "schema": 1,
        "cluster": "pair",
        "model": "m",
        "node": node,
        "rank": rank,
        "role": "head",
        "transport": "tcp",
        "address_range": None,
        "rails": [],
        "resolve": {"gids": []},
        "image": {},
        "argv": [],
        "environment": {"TOKENIZERS_PARALLELISM": "false"},
        "config_sha256": "c",
        "api_key_file": "/etc/key",
        "ranks": [{"address": "192.168.200.12"}],
    }
    return {"node": node, "rank": rank, "serving": {"plan_file": planned}}


def plan_of(*nodes: str) -> dict[str, Any]:
    return {
        "name": "pair",
        "head": nodes[0],
        "transport": "tcp",
        "nodes": [{"node": node} for node in nodes],
        "serving": {"gpu": False, "collective": {"activations": []}, "config_sha256": "c"},
    }


def running(_: int) -> dict[str, Any]:
    return {"job": {"state": "running", "progress": {"stage": "meeting of the ranks"}}}


def done_after(polls: int) -> Answer:
    report = {"argv": ["docker"], "environment": {"A": "1", "API_KEY": "s3cret"}}
    return lambda poll: {"job": {"state": "done", "result": report}} if poll >= polls else running(poll)


def run(plugin: ModuleType, answers: dict[str, Answer], *, check_mode: bool = False) -> dict[str, dict[str, Any]]:
    """One action per node; an answer is a function of the call's number. ``asked`` keeps the arguments of all calls."""
    results: dict[str, dict[str, Any]] = {}
    names = list(answers)

    def one(rank: int, node: str) -> None:
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        args = {"plan": plan_of(*names), "me": member(node, rank), "settings": SETTINGS, "poll_s": 0.05}
        action._task = SimpleNamespace(_uuid="u", check_mode=check_mode, async_val=0, args=args)
        asked: list[dict[str, Any]] = []

        def execute(module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
            asked.append(module_args)
            time.sleep(0.02)
            return answers[node](len(asked) - 1)

        action._execute_module = execute
        try:
            results[node] = action.run(None, {})
        except AnsibleConnectionFailure as error:
            results[node] = {"unreachable": True, "msg": str(error), "findings": []}
        results[node]["asked"] = asked

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert set(results) == set(names), "an action still waits"
    return results


def codes(result: dict[str, Any]) -> list[str]:
    return [item["code"] for item in result["findings"]]


def test_every_rank_runs_and_reports(plugin: ModuleType) -> None:
    results = run(plugin, {"head": done_after(3), "worker": done_after(4)})
    assert not any(result.get("failed") for result in results.values())
    start = results["worker"]["asked"][0]
    assert (start["action"], start["kind"], start["spec"]["plan"]["rank"]) == ("start", "collective", 1)
    assert start["spec"]["environment"] == ["TOKENIZERS_PARALLELISM=false"]
    assert "/etc/key" not in str(start)
    assert results["head"]["configuration"]["collective_rank_0"]["environment"]["API_KEY"] == "(not recorded)"
    assert results["head"]["module_executions"] == {"modules": 1, "polls": 3}


def test_a_dead_rank_ends_the_other_within_one_poll(plugin: ModuleType) -> None:
    killed = finding("RANK_KILLED", node="worker", found="it ended", expected="a result").as_dict()

    def dying(poll: int) -> dict[str, Any]:
        return running(poll) if poll < 2 else {"failed": True, "findings": [killed], "job": {"state": "failed"}}

    results = run(plugin, {"head": running, "worker": dying})
    assert codes(results["worker"]) == ["RANK_KILLED"]
    assert codes(results["head"]) == ["PEER_RANK_DEAD"]
    assert "worker: RANK_KILLED" in results["head"]["findings"][0]["found"]
    assert results["head"]["asked"][-1]["action"] == "cancel"
    assert all(result["failed"] for result in results.values())


def test_a_lost_connection_ends_the_other_too(plugin: ModuleType) -> None:
    def lost(poll: int) -> dict[str, Any]:
        if poll:
            raise AnsibleConnectionFailure("gone")
        return running(poll)

    results = run(plugin, {"head": running, "worker": lost})
    assert results["worker"]["unreachable"]
    assert codes(results["head"]) == ["PEER_RANK_DEAD"]


def test_a_blink_of_the_connection_is_borne(plugin: ModuleType) -> None:
    def blinking(poll: int) -> dict[str, Any]:
        if poll in (1, 2):
            raise AnsibleConnectionFailure("gone")
        return done_after(4)(poll)

    assert not run(plugin, {"head": blinking, "worker": done_after(2)})["head"].get("failed")


def test_a_start_that_is_refused_without_a_finding_is_no_success(plugin: ModuleType) -> None:
    results = run(plugin, {"head": lambda _: {"failed": True, "msg": "systemd-run exited 1"}})
    assert codes(results["head"]) == ["UNKNOWN_CAUSE"]
    assert "systemd-run exited 1" in results["head"]["findings"][0]["found"]


def test_check_mode_proves_nothing_and_says_so(plugin: ModuleType) -> None:
    results = run(plugin, {"head": running}, check_mode=True)
    assert codes(results["head"]) == ["NOT_PROVEN_IN_CHECK_MODE"]
    assert results["head"]["asked"] == []


def test_the_last_completion_counts_only_for_the_same_configuration(project: Path, tmp_path: Path) -> None:
    judge = load(project, "collective_judge")
    plan = plan_of("head")
    assert judge.last_completion(tmp_path, plan) is None
    latest = tmp_path / "results" / "latest" / "pair"
    latest.mkdir(parents=True)
    (latest / "cluster-up.json").write_text(json.dumps({"result": "results/r.json"}))
    result = {
        "configuration": {"config_sha256": "c"},
        "measurements": {"head": {"completion": {"decode_tokens_per_s": 35.0}}, "worker": {}},
    }
    (tmp_path / "results" / "r.json").write_text(json.dumps(result))
    assert judge.last_completion(tmp_path, plan) == {"decode_tokens_per_s": 35.0}
    plan["serving"]["config_sha256"] = "another"
    assert judge.last_completion(tmp_path, plan) is None
