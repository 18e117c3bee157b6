"""The three actions in real plays: no module runs, since the facts are given as variables of the hosts."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import MODELS, Pair

PROJECT = Path(__file__).resolve().parents[3]
PLAY = """
- hosts: spark
  gather_facts: false
  tasks:
    - cluster_plan: {purpose: "{{ purpose | default('fabric') }}"}
      register: planned
    - ansible.builtin.set_fact:
        cluster: "{{ planned.cluster }}"
        me: "{{ planned.me }}"
    - cluster_gate:
    - ansible.builtin.fail: {msg: "the cable is on fire"}
      when: inventory_hostname == burning | default('')
      register: first_step
    - cluster_gate:
    - ansible.builtin.debug:
        msg:
          - "through {{ me.node }} {{ me.rank }} of {{ cluster.name }}, {{ cluster.nodes | length }}"
          - "last argument: {{ me.serving.argv[-1] if me.serving else 'none' }}"
"""


PLUGINS = ("action", "filter", "callback")


def settings(folder: Path, *, recording: bool = False) -> Path:
    """The project's ansible.cfg, less the callback that would write results of these plays."""
    parser = configparser.ConfigParser()
    parser.read(PROJECT / "ansible.cfg")
    if not recording:
        del parser["defaults"]["callbacks_enabled"]
    for name in (
        "inventory",
        "roles_path",
        "library",
        "module_utils",
        "action_plugins",
        "filter_plugins",
        "callback_plugins",
    ):
        parser["defaults"][name] = str(PROJECT / parser["defaults"][name])
    path = folder / "ansible.cfg"
    with path.open("w") as stream:
        parser.write(stream)
    return path


class Run:
    def __init__(self, argv: list[str], tmp_path: Path, *, recording: bool = False) -> None:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(settings(tmp_path, recording=recording)),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
        }
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        done = subprocess.run(
            [program, *argv], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        self.rc, self.text = done.returncode, done.stdout + done.stderr

    def through(self) -> list[str]:
        return sorted(line.split()[2] for line in self.text.splitlines() if "- through" in line)


def play(folder: Path, facts: Pair, clusters: dict[str, dict[str, Any]], *arguments: str) -> Run:
    """Runs PLAY on one pair per cluster, with the variables of each. ``pair_a`` has the hosts ``a-01`` and ``a-02``."""
    children = {
        name: {
            "vars": {"cluster_name": name, **variables},
            "hosts": {
                host.replace("spark", name[-1]): {"preflight_node": {"node": seen}} for host, seen in facts.items()
            },
        }
        for name, variables in clusters.items()
    }
    shared = {"ansible_connection": "local", "ansible_user": "nvidia"}
    (folder / "hosts.yml").write_text(json.dumps({"spark": {"vars": shared, "children": children}}))
    (folder / "play.yml").write_text(PLAY)
    return Run(["-i", str(folder / "hosts.yml"), str(folder / "play.yml"), *arguments], folder)


def test_one_bad_pair_never_fails_another(tmp_path: Path, pair: Pair) -> None:
    """Of four pairs one is healthy, one has a bad variable, one member fails later, and one is there by half."""
    clusters: dict[str, dict[str, Any]] = {
        "pair_a": {},
        "pair_b": {"fabric_mtu": 900},
        "pair_c": {"burning": "c-02"},
        "pair_d": {},
    }
    done = play(tmp_path, pair, clusters, "-l", "pair_a,pair_b,pair_c,d-01")
    assert done.rc == 2
    assert done.through() == ["a-01", "a-02"]
    assert "through a-02 1 of pair_a, 2" in done.text
    assert done.text.count("pair_a: 2 nodes, rdma over") == 1, "a plan is shown once"
    assert "VARIABLE_INVALID on pair_b" in done.text
    assert "MEMBER_STOPPED on c-02" in done.text
    assert "found:    the cable is on fire" in done.text
    assert "Cure what c-02 reported" in done.text
    assert "pair_b stops: VARIABLE_INVALID on pair_b (in full on b-01)" in done.text
    assert "CLUSTER_INCOMPLETE on d-02" in done.text


def test_half_a_pair_can_be_stopped(tmp_path: Path, pair: Pair) -> None:
    done = play(tmp_path, pair, {"pair_a": {}}, "-l", "a-01", "-e", "purpose=stop")
    assert done.rc == 0, done.text
    assert done.through() == ["a-01"]


def test_half_a_pair_can_be_diagnosed_whatever_its_plan_finds(tmp_path: Path, pair: Pair) -> None:
    clusters: dict[str, dict[str, Any]] = {"pair_a": {}}
    assert play(tmp_path, pair, clusters, "-l", "a-01").rc == 2
    done = play(tmp_path, pair, clusters, "-l", "a-01", "-e", "purpose=diagnose")
    assert done.rc == 0, done.text
    assert done.through() == ["a-01"]


def test_a_model_is_shown_with_its_command_lines_or_refused_with_its_sum(tmp_path: Path, ready: Pair) -> None:
    recipe = yaml.safe_load((MODELS / "lab-tiny.yml").read_text())
    recipe["name"] = "mine"
    recipe["serve"]["flags"] += ["--chat-template", "{{ 7 * 7 }} $(id)"]
    recipe["image"]["overlays"] = [{"file": "overlays/patch/a.py", "target": "/opt/a.py"}]
    recipe["variables"] = {"SEQS": {"about": "requests", "kind": "integer", "sets": "max_num_seqs"}}
    recipe["profiles"] = {"BIG": {"values": {"SEQS": 32}}}
    (tmp_path / "mine.yml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "overlays" / "patch").mkdir(parents=True)
    (tmp_path / "overlays" / "patch" / "a.py").write_text("x = 1\n")
    own = {"model": "mine", "spark_models_path": [str(tmp_path)], "profile": "BIG"}
    clusters: dict[str, dict[str, Any]] = {
        "pair_a": {**own, "fabric_transport": "tcp"},
        "pair_b": {"model": "qwen3-coder-480b"},
        "pair_c": {"model": "gpt-5"},
    }
    done = play(tmp_path, ready, clusters, "-e", "purpose=serve")
    assert done.through() == ["a-01", "a-02"]
    assert "rank 1 runs: GLOO_SOCKET_IFNAME=enp1s0f0np0" in done.text
    assert "--entrypoint vllm spark-lab/vllm-cpu:0.32.0 serve /models/lab-tiny" in done.text
    assert "mine [BIG: SEQS=32] as lab-tiny" in done.text
    assert "--volume /usr/local/lib/spark-cluster/overlays/patch/a.py:/opt/a.py:ro" in done.text
    assert "--max-num-seqs 32" in done.text
    assert "last argument: {{ 7 * 7 }} $(id)" in done.text, "no text of a recipe is a template"
    assert "273 GB = 254.3 GiB of weights / 2 = 127.1 GiB per node" in done.text
    assert "MODEL_UNKNOWN on pair_c" in done.text
    assert "Use -e model= with one of: deepseek-v4-flash, devstral-2-123b, gemma-4-31b" in done.text


# What is checked before any of this


def boilerplate(folder: Path, inventory: Any, *arguments: str) -> Run:
    path = folder / "inventory.yml"
    path.write_text(yaml.safe_dump(inventory))
    return Run(["-i", str(path), str(PROJECT / "playbooks" / "boilerplate.yml"), *arguments], folder)


def test_the_inventory_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    if (PROJECT / "inventory" / "cluster").exists():
        pytest.skip("this clone has an inventory of its own")
    done = Run([str(PROJECT / "playbooks" / "boilerplate.yml")], tmp_path)
    assert done.rc != 0
    assert "no inventory/cluster\n" in done.text
    assert "cp -r inventory/sample inventory/cluster" in done.text


def test_an_inventory_without_the_group(tmp_path: Path) -> None:
    done = boilerplate(tmp_path, {"all": {"hosts": {"a": None}}})
    assert done.rc != 0
    assert "GROUP_EMPTY" in done.text


ENTRIES = sorted(path.name for path in PROJECT.glob("*.yml") if (PROJECT / "playbooks" / path.name).exists())


def refused(folder: Path, inventory: Any, *arguments: str, entry: str = "diagnose.yml") -> str:
    """What a play says that must not end well: it has no machine to work on, and so no result either."""
    path = folder / "inventory.yml"
    path.write_text(yaml.safe_dump(inventory))
    done = Run(["-i", str(path), str(PROJECT / entry), *arguments], folder, recording=True)
    assert done.rc == 1, done.text
    return done.text


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_limit_without_an_inventory_never_ends_well(tmp_path: Path, entry: str) -> None:
    if (PROJECT / "inventory" / "cluster").exists():
        pytest.skip("this clone has an inventory of its own")
    done = Run(["-l", "pair_a", str(PROJECT / entry)], tmp_path, recording=True)
    assert done.rc == 1, done.text
    assert done.text.count("INVENTORY_MISSING on localhost") == 1
    assert "no inventory/cluster\n" in done.text


def test_a_limit_that_names_none_of_the_machines(tmp_path: Path) -> None:
    others = {"hosts": {"web": {"ansible_connection": "local"}}}
    text = refused(tmp_path, {"all": others, "spark": {"hosts": {"a-01": None, "a-02": None}}}, "-l", "web")
    assert "LIMIT_EMPTY on localhost" in text
    assert "none of them matches -l web\n" in text
    assert "hosts of: a-01, a-02\n" in text
    assert "GROUP_EMPTY on localhost" in refused(tmp_path, {"all": others}, "-l", "web")


def test_the_controller_as_an_ordinary_host_does_not_hide_an_empty_limit(tmp_path: Path) -> None:
    here = {"hosts": {"localhost": {"ansible_connection": "local"}}}
    done = boilerplate(tmp_path, {"all": here, "spark": {"hosts": {"a-01": None}}}, "-l", "localhost")
    assert done.rc == 2, done.text
    assert "LIMIT_EMPTY on localhost" in done.text


def test_a_limit_that_names_a_machine_passes(tmp_path: Path) -> None:
    sample = str(PROJECT / "inventory" / "sample")
    play_file = str(PROJECT / "playbooks" / "boilerplate.yml")
    done = Run(["-i", sample, play_file, "-l", "spark-01"], tmp_path)
    assert done.rc == 0, done.text
    assert "LIMIT_EMPTY" not in done.text


def test_the_sample_passes(tmp_path: Path) -> None:
    sample = str(PROJECT / "inventory" / "sample")
    done = Run(["-i", sample, str(PROJECT / "playbooks" / "boilerplate.yml")], tmp_path)
    assert done.rc == 0, done.text
    assert "INVENTORY_MISSING" not in done.text
    assert "GROUP_EMPTY" not in done.text


def test_bad_variables_are_named_all_at_once(tmp_path: Path) -> None:
    variables = {"cluster_name": "pair", "fabric_mtu": "{{ nobody_knows }}", "api_port": 80, "fabric_mtus": 1}
    inventory = {
        "spark": {
            "hosts": {"lonely": None},
            "children": {"pair": {"hosts": {"a": None, "b": None}, "vars": variables}},
        }
    }
    done = boilerplate(tmp_path, inventory, "-e", "gid_mode=three")
    assert done.rc != 0
    assert "fabric_mtu is a template that fails (" in done.text
    assert "api_port is 80" in done.text
    assert "gid_mode is 'three'" in done.text
    assert "VARIABLE_UNKNOWN on pair" in done.text
    assert "VARIABLE_INVALID on lonely" in done.text
    assert "cluster_name is not set" in done.text


def test_a_failure_names_the_command_with_the_inventory_and_the_limit_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"spark": {"hosts": {"a": {"ansible_connection": "local"}, "b": None}}}))
    (tmp_path / "play.yml").write_text(
        "- hosts: spark\n  gather_facts: false\n  tasks:\n    - ansible.builtin.fail: {msg: Run site.yml first.}\n"
    )
    done = Run(["-i", str(path), "-l", "a", str(tmp_path / "play.yml")], tmp_path)
    assert f"msg: Run ansible-playbook -i {path} -l a site.yml first." in " ".join(done.text.split()), done.text
    assert "ailed: Run site.yml" not in done.text, "the bare name would be tried"


def test_a_refusal_is_said_once(tmp_path: Path) -> None:
    inventory = {"spark": {"hosts": {"a": {"cluster_name": "pair", "api_port": 80}}}}
    done = boilerplate(tmp_path, inventory)
    assert done.text.count("FATAL VARIABLE_INVALID") == 1, done.text


def test_the_remedy_of_a_finding_is_the_command_of_this_run(tmp_path: Path, pair: Pair) -> None:
    clusters: dict[str, dict[str, Any]] = {"pair_a": {"model": "lab-tiny"}, "pair_b": {"model": "lab-tiny"}}
    done = play(tmp_path, pair, clusters, "-e", "purpose=serve", "-l", "pair_a")
    shown = " ".join(done.text.split())
    assert "FATAL FABRIC_NOT_SET_UP on a-02" in shown, done.text
    assert f"Run ansible-playbook -i {tmp_path / 'hosts.yml'} -l pair_a site.yml for this cluster first." in shown
    assert "Run site.yml" not in shown
