"""The container pair, from factory state to a completion by real vLLM, and what happens when something is amiss.

The tests of this file are one story, told in order on one pair.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pexpect
import pytest

from .virtual_pair import PROJECT, VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HEAD, WORKER = "spark-01", "spark-02"
BUNDLE = "/usr/local/lib/spark-cluster"
API = "http://127.0.0.1:18000"
KEY_FILE = "/etc/spark-cluster/api-key"
KEY = "sk-e2e-5f1c0b7a9d"


def with_typed_password(pair: VirtualPair, scratch: Path, password: str) -> tuple[int, str]:
    """Run a command as root through ``-K``, on an inventory that knows no password."""
    inventory = scratch / "hosts.yml"
    known = (
        (pair.inventory / "hosts.yml").read_text(encoding="utf-8").replace("{{ inventory_dir }}/../..", str(PROJECT))
    )
    inventory.write_text("".join(x for x in known.splitlines(True) if "ansible_become_password" not in x))
    child = pexpect.spawn(
        "ansible",
        ["-i", str(inventory), "spark", "-K", "-b", "-m", "ansible.builtin.command", "-a", "id -un"],
        cwd=str(PROJECT),
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
        encoding="utf-8",
        timeout=60,
    )
    child.expect("BECOME password:")
    child.sendline(password)
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, child.before


def test_sudo_wants_the_owners_password(container_pair: VirtualPair, tmp_path: Path) -> None:
    password = (PROJECT / ".lab" / "lab" / "become_password").read_text(encoding="utf-8").strip()
    rc, said = with_typed_password(container_pair, tmp_path, password)
    assert (rc, said.count("root")) == (0, 2), said
    rc, said = with_typed_password(container_pair, tmp_path, "not the password")
    assert rc != 0, said


def ask(path: str, body: dict[str, Any] | None = None, timeout_s: float = 20, key: str = "") -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(API + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_model_that_does_not_fit_is_refused_before_anything_is_changed(container_pair: VirtualPair) -> None:
    before = container_pair.snapshot()
    outcome = container_pair.play("cluster-up.yml", model="deepseek-v4-flash")
    assert outcome.rc != 0
    assert outcome.result("lab")["verdict"] == "failed"
    fatal = [item for item in outcome.result("lab")["findings"] if item["severity"] == "fatal"]
    codes = {item["code"] for item in fatal}
    assert codes & {"DISK_TOO_SMALL", "MEMORY_TOO_SMALL", "MODEL_TOO_LARGE"}, codes
    assert all(item["remedy"] for item in fatal)
    assert changed_paths(before, container_pair.snapshot()) == {}


def test_site_takes_the_pair_from_factory_state_to_a_proven_fabric(container_pair: VirtualPair) -> None:
    outcome = container_pair.play("site.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab")
    assert result["verdict"] == "ok"
    assert "TRANSPORT_TCP" in outcome.codes("lab", "warn")
    link = result["measurements"][HEAD]["link"]
    assert len(link["rails"]) == 2
    assert link["overlap_share"] >= 0.9
    assert link["sum_gbps"] >= link["min_gbps"]
    for node in container_pair.nodes:
        host = container_pair.host(node)
        assert {"192.168.200.12", "192.168.200.13"} & set(host.interface("enp1s0f0np0").addresses)
        assert host.file("/etc/netplan/40-spark-fabric.yaml").mode == 0o600
        assert result["module_executions"][node]["modules"] <= 40
    unit = container_pair.sh(HEAD, "systemctl list-unit-files --no-legend --type=service --state=enabled").split()
    assert not [name for name in unit if "vllm" in name], "the single-node unit would take over at the next boot"


def test_one_command_brings_up_the_model_and_proves_it_with_a_completion(container_pair: VirtualPair) -> None:
    outcome = container_pair.play("cluster-up.yml", model="lab-tiny")
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab")
    assert result["verdict"] == "ok"
    completion = result["measurements"][HEAD]["completion"]
    assert completion["completion_tokens"] > 0
    serving = result["configuration"]
    for key in ("image", "tensor_parallel", "max_num_seqs", "base_url", "served_names", "environment"):
        assert serving.get(key), key
    status, body = ask(
        "/v1/chat/completions",
        {"model": serving["served_names"][0], "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 8},
    )
    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] > 0
    started = {
        node: container_pair.sh(node, "docker inspect -f '{{.State.StartedAt}}' spark-rank").strip()
        for node in container_pair.nodes
    }
    assert started[WORKER] < started[HEAD], "the worker starts first"
    sums = {
        node: container_pair.sh(node, f"sha256sum {BUNDLE}/rankctl.pyz {BUNDLE}/launch {BUNDLE}/manifest.json")
        for node in container_pair.nodes
    }
    assert sums[HEAD] == sums[WORKER]
    for node in container_pair.nodes:
        assert result["module_executions"][node]["modules"] <= 35


def test_the_second_run_of_both_changes_nothing_and_keeps_serving(container_pair: VirtualPair) -> None:
    before = container_pair.snapshot()
    plays: tuple[tuple[str, dict[str, Any]], ...] = (("site.yml", {}), ("cluster-up.yml", {"model": "lab-tiny"}))
    for playbook, variables in plays:
        outcome = container_pair.play(playbook, **variables)
        assert outcome.rc == 0, outcome.output[-6000:]
        assert not any(outcome.changed.values()), (playbook, outcome.result("lab")["changed"])
        for node, count in outcome.result("lab")["module_executions"].items():
            assert count["modules"] <= 12, (playbook, node, count)
    assert changed_paths(before, container_pair.snapshot()) == {}


def test_an_all_reduce_is_refused_while_the_ranks_serve(container_pair: VirtualPair) -> None:
    before = container_pair.snapshot()
    outcome = container_pair.play("collective.yml", model="lab-tiny")
    assert outcome.rc != 0
    assert outcome.codes("lab", "fatal") == {"COLLECTIVE_WHILE_SERVING"}
    assert changed_paths(before, container_pair.snapshot()) == {}
    assert ask("/health")[0] == 200


def test_a_dead_worker_fails_the_probe_although_health_says_200(container_pair: VirtualPair) -> None:
    container_pair.sh(WORKER, "docker kill spark-rank")
    assert ask("/health")[0] == 200
    began = time.monotonic()
    probe = container_pair.module(
        HEAD, "completion_probe", base_url="http://127.0.0.1:8000", served_names=["lab-tiny"], deadline_s=30
    )
    assert time.monotonic() - began < 45
    assert probe["failed"]
    codes = {item["code"] for item in probe["findings"] if item["severity"] == "fatal"}
    assert codes & {"COMPLETION_FAILED", "COMPLETION_HANGS"}, codes
    assert container_pair.play("cluster-down.yml").rc == 0


def nothing_of_the_all_reduce(pair: VirtualPair) -> None:
    for node in pair.nodes:
        assert pair.sh(node, "docker ps -aq").strip() == ""
        assert pair.sh(node, "ls -d /run/spark-cluster/collective 2>&1 || true").endswith("No such file or directory\n")
        assert pair.sh(node, "ss -ltnH '( sport = :29511 )'").strip() == ""


def test_the_ranks_reduce_in_the_serving_image(container_pair: VirtualPair) -> None:
    """Real PyTorch over gloo, with the variables and the image that served a moment ago."""
    before = container_pair.snapshot()
    predicted = container_pair.play("collective.yml", check=True, model="lab-tiny")
    assert predicted.rc == 0, predicted.output[-6000:]
    assert "NOT_PROVEN_IN_CHECK_MODE" in predicted.codes("lab")
    outcome = container_pair.play("collective.yml", model="lab-tiny", collective_seconds=0.3)
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab")
    measured = result["measurements"][HEAD]["collective"]
    assert measured["transport"] == ["gloo on enp1s0f0np0"]
    assert [row["bytes"] for row in measured["sizes"]][:3] == [1024, 8192, 16384]
    assert measured["sizes"][-1]["bytes"] == 64 * 2**20
    assert all(row["correct"] and row["bus_gbps"] > 0 for row in measured["sizes"])
    # What gloo says it moved, the interface has carried: each rank sends the whole buffer at least once a call.
    least = sum(row["bytes"] * row["calls"] for row in measured["sizes"])
    assert all(rank["rails"][0]["sent"] >= least for rank in measured["ranks"])
    assert all(rank["memory"]["process_peak_bytes"] < 2**30 for rank in measured["ranks"])
    # Served with this very configuration a moment ago, so its own rate counts.
    assert measured["budget"]["source"] == "the last completion of this cluster"
    assert 0 < measured["budget"]["share"] < 1
    assert measured["latency"]["expected_us"] == "unknown"
    started = result["configuration"]["collective_rank_1"]
    assert started["environment"]["VLLM_HOST_IP"] == "192.168.200.13"
    nothing_of_the_all_reduce(container_pair)
    assert changed_paths(before, container_pair.snapshot()) == {}


def test_a_rank_that_is_killed_ends_the_other_one(container_pair: VirtualPair) -> None:
    wait = "until docker inspect spark-collective >/dev/null 2>&1; do sleep 0.2; done; sleep 4"
    container_pair.sh(WORKER, f"systemd-run --collect --quiet sh -c '{wait}; docker kill spark-collective'")
    began = time.monotonic()
    outcome = container_pair.play(
        "collective.yml", model="lab-tiny", collective_seconds=50, collective_calls=1000000, collective_largest_mib=1
    )
    assert outcome.rc != 0
    # All eight sizes would take 400 s.
    assert time.monotonic() - began < 200
    fatal = {item["node"]: item["code"] for item in outcome.result("lab")["findings"] if item["severity"] == "fatal"}
    assert fatal[WORKER] == "RANK_KILLED", fatal
    # Whichever comes first: gloo's own error, or the other node's word.
    assert fatal[HEAD] in ("PEER_LOST", "PEER_RANK_DEAD"), fatal
    nothing_of_the_all_reduce(container_pair)


def test_a_launcher_altered_on_one_node_is_caught_before_any_container_starts(container_pair: VirtualPair) -> None:
    container_pair.sh(WORKER, f"printf '# tuned by hand\\n' >> {BUNDLE}/launch")
    altered = hashlib.sha256(container_pair.host(WORKER).file(f"{BUNDLE}/launch").content).hexdigest()
    outcome = container_pair.play("cluster-up.yml", model="lab-tiny")
    assert outcome.rc != 0
    fatal = [item for item in outcome.result("lab")["findings"] if item["severity"] == "fatal"]
    assert [(item["code"], item["node"]) for item in fatal] == [("LAUNCHER_ALTERED", WORKER)]
    assert altered in json.dumps(fatal[0])
    for node in container_pair.nodes:
        assert container_pair.sh(node, "docker ps -aq -f name=spark-rank").strip() == ""


def test_a_worker_that_dies_at_once_keeps_the_head_from_being_created(container_pair: VirtualPair) -> None:
    dropin = "/etc/systemd/system/spark-rank.service.d"
    container_pair.sh(
        WORKER,
        f"mkdir -p {dropin}; printf '[Service]\\nExecStartPost=/bin/sh -c \"sleep 2; docker kill spark-rank\"\\n' "
        f"> {dropin}/fault.conf; systemctl daemon-reload",
    )
    try:
        outcome = container_pair.play("cluster-up.yml", model="lab-tiny", launcher_restore=True)
    finally:
        container_pair.sh(WORKER, f"rm -r {dropin}; systemctl daemon-reload")
    assert outcome.rc != 0
    fatal = [item for item in outcome.result("lab")["findings"] if item["severity"] == "fatal"]
    assert {item["node"] for item in fatal} == {WORKER}, fatal
    assert container_pair.sh(HEAD, "docker ps -aq -f name=spark-rank").strip() == ""


def test_a_recipe_of_another_launcher_is_served_as_it_is(container_pair: VirtualPair) -> None:
    recipe = Path(__file__).with_name("lab-tiny.eugr.yaml")
    outcome = container_pair.play("cluster-up.yml", recipe=str(recipe))
    assert outcome.rc == 0, outcome.output[-6000:]
    result = outcome.result("lab")
    unmapped = [item for item in result["findings"] if item["code"] == "RECIPE_KEYS_UNMAPPED"]
    assert "mods" in json.dumps(unmapped)
    assert result["measurements"][HEAD]["completion"]["completion_tokens"] > 0
    assert ask("/v1/models")[0] == 200


def test_an_authors_own_script_starts_the_engine_and_the_key_shows_nowhere(container_pair: VirtualPair) -> None:
    recipe = str(Path(__file__).parent / "scripted" / "lab-tiny-script.yml")
    container_pair.sh(HEAD, f"install -m 0600 /dev/null {KEY_FILE}; printf '%s\\n' {KEY} > {KEY_FILE}")
    try:
        before = container_pair.snapshot()
        shown = container_pair.play("cluster-up.yml", check=True, recipe=recipe, api_key_file=KEY_FILE)
        assert shown.rc == 0, shown.output[-6000:]
        assert changed_paths(before, container_pair.snapshot()) == {}
        # One argument a line, for each node, against those of the rank that runs there.
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.output)
        lines = [line.removeprefix("+").strip() for line in plain.splitlines() if line.startswith("+")]
        for argument in ("'/opt/spark-cluster/launch.sh'", "'WHERE'"):
            assert lines.count(argument) == len(container_pair.nodes), (argument, lines)
        outcome = container_pair.play("cluster-up.yml", recipe=recipe, api_key_file=KEY_FILE)
        assert outcome.rc == 0, outcome.output[-6000:]
        result = outcome.result("lab")
        assert result["measurements"][HEAD]["completion"]["completion_tokens"] > 0
        assert ask("/v1/models")[0] == 401
        assert ask("/v1/models", key=KEY)[0] == 200
        for rank, node in enumerate(container_pair.nodes):
            log = container_pair.sh(node, "journalctl --unit spark-rank --boot --output cat --no-pager")
            assert f"author's script: rank {rank} on {node} of 2" in log
            running = "pid=$(docker inspect -f '{{.State.Pid}}' spark-rank); tr '\\0' '\\n' < /proc/$pid"
            assert f"LAUNCHED_AS=it's rank {rank}" in container_pair.sh(node, f"{running}/environ")
            assert "--seed\n7\n" in container_pair.sh(node, f"{running}/cmdline")
            # What anybody on the node, and what root may see of the processes and of the container.
            seen = container_pair.sh(
                node, "ps auxww; docker inspect spark-rank; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>&- || :"
            )
            assert KEY not in seen + log
        assert KEY not in shown.output + outcome.output + json.dumps(result)
    finally:
        container_pair.sh(HEAD, f"rm {KEY_FILE}")


def test_down_leaves_nothing_of_the_ranks(container_pair: VirtualPair) -> None:
    outcome = container_pair.play("cluster-down.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    assert outcome.result("lab")["verdict"] == "ok"
    for node in container_pair.nodes:
        assert container_pair.sh(node, "docker ps -aq -f name=spark-rank").strip() == ""
        assert container_pair.sh(node, "ss -ltnH '( sport = :8000 or sport = :29501 )'").strip() == ""
