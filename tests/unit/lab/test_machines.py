"""Machines files: the good ones load, and each broken one is refused with the place and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import machines
from lab.errors import LabError

GOOD = """
name: pair
kind: container
nodes:
  - {name: a, ssh_port: 22012, management_address: 10.77.0.12}
  - {name: b, ssh_port: 22013, management_address: 10.77.0.13}
forwards:
  - {listen: 18000, node: a, port: 8000}
"""


@pytest.mark.parametrize("name", machines.available())
def test_every_shipped_file_loads(name: str) -> None:
    found = machines.load(name)
    assert found.name == name
    assert found.head.name == "spark-01"


def test_no_two_shipped_pairs_share_a_port() -> None:
    pairs = [machines.load(name) for name in machines.available()]
    ports = [node.ssh_port for pair in pairs for node in pair.nodes]
    ports += [forward.listen for pair in pairs for forward in pair.forwards]
    assert len(set(ports)) == len(ports)


def test_defaults_and_head() -> None:
    found = machines.parse(GOOD, "x.yml")
    assert found.head.name == "a"
    assert found.engine == "none"
    assert found.forwards[0].port == 8000
    assert found.vm.memory_mib > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: pair", "name: Pair", "name 'Pair' must be"),
        ("name: pair\n", "", "key 'name' is missing"),
        ("kind: container", "kind: pod", "kind 'pod' is not one of container, vm"),
        ("kind: container", "kind: 3", "kind: expected str, found int 3"),
        ("name: b", "name: a", "two nodes have the same name"),
        ("name: b", "name: b.c", "node name 'b.c'"),
        ("22013", "22012", "two listeners have the same port"),
        ("22013", "70000", "port 70000 is not between"),
        ("22013", "true", "nodes[1]: ssh_port: expected int, found bool True"),
        ("22013", "'22013'", "expected int, found str '22013'"),
        ("10.77.0.13", "10.77.0.12", "two nodes have the same management_address"),
        ("10.77.0.13", "10.77.0.333", "management_address '10.77.0.333' is not an IPv4 address"),
        ("node: a", "node: c", "forward 18000 names an unknown node 'c'"),
        ("ssh_port: 22013", "sshport: 22013", "nodes[1]: unknown key 'sshport'"),
        ("kind: container", "kind: container\nengine: gpu", "engine 'gpu' is not one of"),
        ("kind: container", "kind: container\nvm: []", "vm: expected a mapping, found list"),
        ("nodes:", "nodes: {}\nothers:", "unknown key 'others'"),
        ("kind: container", "kind: [container", "is not YAML"),
        ("kind: container", 'kind: container\nuser: "root; rm"', "user 'root; rm' must be"),
        ("kind: container", 'kind: container\nuser: "a\\n"', "user 'a\\n' must be"),
        ("kind: container", "kind: container\nuser: root", "and not root"),
        ("kind: container", 'kind: container\nsuite: "$(reboot)"', "suite '$(reboot)' is no name"),
        ("kind: container", "kind: container\nmanagement_prefix: 0", "management_prefix 0 is not between"),
        ("kind: container", "kind: container\nvm: {memory_mib: 0}", "vm: memory_mib 0 is not between"),
        ("kind: container", "kind: 2026-13-45", "a value cannot be read: month must be in 1..12"),
        ("kind: container", f"kind: {'[' * 3000}", "nested too deeply"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(LabError) as refusal:
        machines.parse(GOOD.replace(old, new, 1), "x.yml")
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("x.yml")


@pytest.mark.parametrize("text", ["", "[]", "just words"])
def test_a_file_that_is_no_mapping(text: str) -> None:
    with pytest.raises(LabError, match="expected a mapping"):
        machines.parse(text, "x.yml")


def test_no_such_file_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no machines file") as refusal:
        machines.load("nothing")
    assert "molecule" in refusal.value.remedy
    with pytest.raises(LabError, match="no machines file"):
        machines.load(str(tmp_path / "x.yml"))


def test_an_unknown_node_is_refused_by_name() -> None:
    with pytest.raises(LabError, match="pair pair has no node c"):
        machines.parse(GOOD, "x.yml").node("c")
