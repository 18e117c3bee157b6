"""Two Sparks as node_info sees them after factory setup, and short ways to plan them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.plan.build import add_serving, build_plan
from ansible.module_utils.spark.plan.inventory import Cluster, read_cluster
from ansible.module_utils.spark.plan.recipe import Recipe, read_recipe
from ansible.module_utils.spark.plan.serving import plan_serving
from ansible.module_utils.spark.plan.types import Bundle, Plan

GIB = 2**30
FIXTURES = Path(__file__).parent / "fixtures"
MODELS = Path(__file__).resolve().parents[3] / "models"
BUNDLE: Bundle = {"rankctl_sha256": "f" * 64, "files": []}

Pair = dict[str, dict[str, Any]]


@pytest.fixture
def pair() -> Pair:
    """Facts of two 121 GiB nodes: NUL orphan, no addresses, weights and image on the head only."""
    facts: Pair = json.loads((FIXTURES / "spark-pair.json").read_text())
    return copy.deepcopy(facts)


@pytest.fixture
def ready(pair: Pair) -> Pair:
    """The same two nodes after site.yml: the rails have their addresses, the orphan is gone."""
    for index, facts in enumerate(pair.values()):
        for device in facts["netdevs"]:
            subnet = {"enp1s0f0np0": 200, "enP2p1s0f0np0": 201}.get(device["name"])
            if subnet:
                device["addresses"] = [f"192.168.{subnet}.{12 + index}/24"]
        files = facts["netplan"]["files"]
        facts["netplan"]["files"] = [file for file in files if file["class"] != "orphan_nul"]
    return pair


def cluster_of(**variables: Any) -> Cluster:
    """The sample inventory's pair with other variables."""
    return cluster_with(("spark-01", "spark-02"), **variables)


def cluster_with(nodes: tuple[str, ...], *, own: dict[str, dict[str, Any]] | None = None, **variables: Any) -> Cluster:
    shared = {"cluster_name": "pair_a", "ansible_user": "nvidia", **variables}
    hosts = [
        (name, {**shared, "ansible_host": f"192.0.2.{11 + index}", **(own or {}).get(name, {})})
        for index, name in enumerate(nodes)
    ]
    return read_cluster("pair_a", hosts)


def recipe_of(name: str, edit: Callable[[Any], None] | None = None) -> Recipe:
    data = yaml.safe_load((MODELS / f"{name}.yml").read_text())
    if edit:
        edit(data)
    schema = json.loads((MODELS / "schema.json").read_text())
    recipe, errors = read_recipe(data, schema, name=name, file=f"models/{name}.yml")
    assert recipe is not None, errors
    return recipe


def plan_for(cluster: Cluster, facts: Pair, recipe: Recipe | None = None, wire: Any = None) -> Plan:
    gpu = recipe is None or recipe.gpu
    plan = build_plan(cluster, facts, BUNDLE, purpose="serve" if recipe else "fabric", gpu=gpu, wire=wire)
    return add_serving(plan, *plan_serving(cluster, plan, recipe, facts)) if recipe else plan


def codes(plan: Plan, severity: str | None = None) -> list[str]:
    return [item["code"] for item in plan["findings"] if severity in (None, item["severity"])]


def said(plan: Plan, code: str) -> dict[str, Any]:
    return next(item for item in plan["findings"] if item["code"] == code)
