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

from .conftest import Pair

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
        msg: "through {{ me.node }} {{ me.rank }} of {{ cluster.name }}, {{ cluster.nodes | length }}"
"""


def settings(folder: Path) -> Path:
    """The project's ansible.cfg, less the callback that would write results of these plays."""
    parser = configparser.ConfigParser()
    parser.read(PROJECT / "ansible.cfg")
    del parser["defaults"]["callbacks_enabled"]
    for name in ("inventory", "roles_path", "library", "module_utils", "action_plugins", "filter_plugins"):
        parser["defaults"][name] = str(PROJECT / parser["defaults"][name])
    path = folder / "ansible.cfg"
    with path.open("w") as stream:
        parser.write(stream)
    return path


class Run:
    def __init__(self, argv: list[str], tmp_path: Path) -> None:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(settings(tmp_path)),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
        }
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        done = subprocess.run(
            [program, *argv], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        self.rc, self.text = done.returncode, done.stdout + done.stderr

    def through(self) -> list[str]:
        return sorted(line.split()[2] for line in self.text.splitlines() if "msg: through" in line)


@pytest.fixture
def play(tmp_path: Path, pair: Pair) -> Any:
    """Runs PLAY on two pairs, of which the second may be changed."""

    def run(*arguments: str, second: dict[str, Any] | None = None, facts: Pair | None = None) -> Run:
        hosts = {}
        for name, seen in (facts or pair).items():
            hosts[name] = {"preflight_node": {"node": seen}}
            hosts[name.replace("spark", "other")] = {"preflight_node": {"node": seen}}
        shared = {"ansible_connection": "local", "ansible_user": "nvidia", "model": "lab-tiny"}
        inventory = {
            "spark": {
                "vars": shared,
                "children": {
                    name: {
                        "vars": {"cluster_name": name, **more},
                        "hosts": {host: values for host, values in hosts.items() if host.startswith(prefix)},
                    }
                    for name, prefix, more in (("pair_a", "spark", {}), ("pair_b", "other", second or {}))
                },
            }
        }
        (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
        (tmp_path / "play.yml").write_text(PLAY)
        return Run(["-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"), *arguments], tmp_path)

    return run


def test_two_healthy_pairs_go_through(play: Any) -> None:
    done = play()
    assert done.rc == 0, done.text
    assert done.through() == ["other-01", "other-02", "spark-01", "spark-02"]
    assert "through spark-02 1 of pair_a, 2" in done.text
    assert done.text.count("pair_a: 2 nodes, rdma over") == 1, "a plan is shown once"


def test_one_bad_pair_never_fails_the_other(play: Any) -> None:
    done = play(second={"fabric_mtu": 900})
    assert done.rc == 2
    assert done.through() == ["spark-01", "spark-02"]
    assert "VARIABLE_INVALID on pair_b" in done.text


def test_a_member_that_fails_takes_its_peer_along_and_is_named_with_its_words(play: Any) -> None:
    done = play("-e", "burning=other-02")
    assert done.through() == ["spark-01", "spark-02"]
    assert "MEMBER_STOPPED on other-02" in done.text
    assert "found:    the cable is on fire" in done.text
    assert "Cure what other-02 reported" in done.text


def test_half_a_pair_is_refused_and_a_whole_one_is_not(play: Any) -> None:
    done = play("-l", "pair_a,other-01")
    assert done.through() == ["spark-01", "spark-02"]
    assert "CLUSTER_INCOMPLETE on other-02" in done.text


def test_half_a_pair_can_be_stopped(play: Any) -> None:
    done = play("-l", "spark-01", "-e", "purpose=stop")
    assert done.rc == 0, done.text
    assert done.through() == ["spark-01"]


def test_a_model_is_planned_and_shown_with_its_command_lines(play: Any, pair: Pair) -> None:
    for facts in pair.values():
        facts["weights"]["bytes"] = 2_900_000
        facts["weights"]["present"] = True
    done = play("-e", "purpose=serve", "-l", "pair_a", "-e", "fabric_transport=tcp", facts=pair)
    assert done.rc == 0, done.text
    assert "rank 1 runs: GLOO_SOCKET_IFNAME=enp1s0f0np0" in done.text
    assert "--entrypoint vllm spark-lab/vllm-cpu:0.32.0 serve /models/lab-tiny" in done.text


def test_a_model_that_is_too_large_is_refused_with_the_sum(play: Any) -> None:
    done = play("-e", "purpose=serve", "-e", "model=qwen3-coder-480b", "-l", "pair_a")
    assert done.through() == []
    assert "273 GB = 254.3 GiB of weights / 2 = 127.1 GiB per node" in done.text


# What is checked before any of this


@pytest.fixture
def boilerplate(tmp_path: Path) -> Any:
    def run(inventory: Any, *arguments: str) -> Run:
        path = tmp_path / "hosts.yml"
        if inventory is not None:
            path.write_text(yaml.safe_dump(inventory))
        return Run(["-i", str(path), str(PROJECT / "playbooks" / "boilerplate.yml"), *arguments], tmp_path)

    return run


def pair_with(**variables: Any) -> dict[str, Any]:
    return {"spark": {"hosts": {"a": None, "b": None}, "vars": {"cluster_name": "pair", **variables}}}


def test_the_inventory_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    if (PROJECT / "inventory" / "cluster").exists():
        pytest.skip("this clone has an inventory of its own")
    done = Run([str(PROJECT / "playbooks" / "boilerplate.yml")], tmp_path)
    assert done.rc != 0
    assert "no inventory/cluster\n" in done.text
    assert "cp -r inventory/sample inventory/cluster" in done.text


def test_an_inventory_without_the_group(boilerplate: Any) -> None:
    done = boilerplate({"all": {"hosts": {"a": None}}})
    assert done.rc != 0
    assert "GROUP_EMPTY" in done.text


def test_the_sample_passes(tmp_path: Path) -> None:
    sample = str(PROJECT / "inventory" / "sample")
    done = Run(["-i", sample, str(PROJECT / "playbooks" / "boilerplate.yml")], tmp_path)
    assert done.rc == 0, done.text
    assert "INVENTORY_MISSING" not in done.text
    assert "GROUP_EMPTY" not in done.text


def test_bad_variables_are_named_all_at_once(boilerplate: Any) -> None:
    done = boilerplate(pair_with(fabric_mtu="{{ nobody_knows }}", api_port=80, fabric_mtus=1), "-e", "gid_mode=three")
    assert done.rc != 0
    assert "fabric_mtu is a template that fails (" in done.text
    assert "api_port is 80" in done.text
    assert "gid_mode is 'three'" in done.text
    assert "VARIABLE_UNKNOWN on pair" in done.text


def test_a_host_without_a_cluster_is_named(boilerplate: Any) -> None:
    done = boilerplate({"spark": {"hosts": {"lonely": None}}})
    assert done.rc != 0
    assert "VARIABLE_INVALID on lonely" in done.text
    assert "cluster_name is not set" in done.text
