"""What the facts say against the planned fabric."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.checks.fabric import fabric_findings

CASES = yaml.safe_load(Path(__file__).with_name("checks.yml").read_text())
FUNCTIONS = ("enp1s0f0np0", "enP2p1s0f0np0")


def netdev(name: str, *addresses: str) -> dict[str, Any]:
    return {
        "name": name,
        "operstate": "up",
        "admin_up": True,
        "carrier": True,
        "mtu": 1500,
        "speed_mbps": 200_000,
        "addresses": list(addresses),
        "master": None,
    }


def pair() -> dict[str, Any]:
    """Two nodes as delivered, and the plan for them."""
    facts = {}
    nodes = []
    for rank, name in enumerate(("spark-01", "spark-02")):
        facts[name] = {
            "netdevs": [netdev("enP7s7", f"10.77.0.{12 + rank}/24"), *(netdev(function) for function in FUNCTIONS)],
            "routes": [{"dst": "10.77.0.0/24", "dev": "enP7s7", "gateway": None, "metric": 0}],
            "netplan": {"files": [], "renderer": ""},
            "networkmanager": {"running": True, "uuids": [], "profiles": [], "error": None},
            "networkd": {"running": False, "files": []},
        }
        rails = [
            {"rail": rail, "netdev": function, "address": f"192.168.{200 + rail}.{12 + rank}", "prefix": 24}
            for rail, function in enumerate(FUNCTIONS)
        ]
        nodes.append({"node": name, "rails": rails, "orphans": []})
    rails = [{"rail": rail, "subnet": f"192.168.{200 + rail}.0/24"} for rail in (0, 1)]
    return {**facts, "plan": {"name": "pair_a", "rails": rails, "nodes": nodes}}


def step(whole: Any, key: str) -> Any:
    return whole[int(key)] if isinstance(whole, list) else whole[key]


def put(whole: Any, path: str, value: Any, *, pop: bool = False) -> None:
    *parents, last = path.split(".")
    for key in parents:
        whole = step(whole, key)
    if pop:
        whole.pop(int(last))
    else:
        whole[int(last) if isinstance(whole, list) else last] = copy.deepcopy(value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_fabric_is_judged_on_facts(case: dict[str, Any]) -> None:
    world = pair()
    for path, value in case.get("set", {}).items():
        put(world, path, value)
    for path in case.get("pop", ()):
        put(world, path, None, pop=True)
    plan = world.pop("plan")
    found = fabric_findings(world, plan, {"fabric_netdevs": [], "fabric_subnets": [], **case.get("policy", {})})
    assert [item.code for item in found] == case["codes"]
    if "severities" in case:
        assert [item.severity for item in found] == case["severities"]
    for item in found:
        assert case.get("remedy", "") in item.remedy
        assert "{" not in item.remedy


def test_a_node_without_facts_is_somebody_elses_finding() -> None:
    world = pair()
    plan = world.pop("plan")
    assert fabric_findings({"spark-01": world["spark-01"]}, plan) == []
