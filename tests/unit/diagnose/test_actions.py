"""The last word of a diagnosis in a real play: no module runs, what the phases returned is given on the hosts."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plan.test_actions import Run

from .pair import NODES, evidence

PLAY = """
- hosts: spark
  gather_facts: false
  tasks:
    - diagnose_tell:
        registered: {facts: preflight_node, look: looked, run: ran_head ran_worker, end: ended}
      register: told
    - ansible.builtin.copy: {content: "{{ told | to_json }}", dest: "DEST/{{ inventory_hostname }}.json", mode: "0600"}
"""


def told(folder: Path, hosts: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    shared = {"ansible_connection": "local", "cluster": plan}
    inventory = {"spark": {"vars": shared, "hosts": hosts}}
    (folder / "hosts.yml").write_text(json.dumps(inventory))
    (folder / "play.yml").write_text(PLAY.replace("DEST", str(folder)))
    done = Run(["-i", str(folder / "hosts.yml"), str(folder / "play.yml")], folder)
    assert done.rc == 0, done.text
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in hosts}


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    return {
        "name": f"unit-{tmp_path.name}",
        "transport": "rdma",
        "link_check": {"min_gbps": 170, "min_both_ways_gbps": 300},
        "rails": [{"rail": 0, "subnet": "192.168.200.0/24"}, {"rail": 1, "subnet": "192.168.201.0/24"}],
        "nodes": [
            {"node": node, "role": "head", "management_address": f"203.0.113.{12 + number}"}
            for number, node in enumerate(NODES)
        ],
        "findings": [],
    }


def test_one_host_speaks_for_the_cluster_and_packs_what_it_says(tmp_path: Path, plan: dict[str, Any]) -> None:
    made = evidence({"rates": {"write": [6.7, 6.7], "back": [6.7, 6.7]}})
    hosts: dict[str, Any] = {}
    for node in NODES:
        own = [run for run in made["runs"] if run["from"] == node]
        alone = [run for run in own if run["kind"] == "loopback"]
        hosts[node] = {
            "preflight_node": {"node": {"kernel": "6.17"}},
            "looked": {"read": made["nodes"][node]["read"], "runs": alone, "not_listening": ""},
            ("ran_head" if node == NODES[0] else "ran_worker"): {"runs": [run for run in own if run not in alone]},
            "ended": {"after": made["nodes"][node]["after"]},
        }
    said = told(tmp_path, hosts, plan)
    assert "measurements" not in said["spark-02"]
    codes = [item["code"] for item in said["spark-01"]["findings"]]
    assert codes[0] == "CAUSE_DEGRADED"
    diagnosis = said["spark-01"]["measurements"]["diagnosis"]
    assert (diagnosis["state"], len(diagnosis["runs"])) == ("sick", 7)
    text, bundle = map(Path, said["spark-01"]["attachments"])
    assert "in the degraded state" in text.read_text()
    with tarfile.open(bundle) as opened:
        assert any(name.endswith("evidence.json") for name in opened.getnames())
    for made_file in (text, bundle):
        made_file.unlink()
    text.parent.rmdir()


def test_where_no_node_answers_that_is_what_is_said(tmp_path: Path, plan: dict[str, Any]) -> None:
    away = {"preflight_node": {"unreachable": True, "msg": "Connection timed out", "changed": False}}
    said = told(tmp_path, {node: dict(away) for node in NODES}, plan)["spark-01"]
    assert [item["code"] for item in said["findings"]] == ["CAUSE_NODE_SILENT", "CAUSE_NODE_SILENT"]
    for made_file in map(Path, said["attachments"]):
        made_file.unlink()
        folder = made_file.parent
    folder.rmdir()
