"""A launch script of the recipe's author, and variables that an image bakes in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import bundle
from ansible.module_utils.spark.plan.recipe import read_recipe
from ansible.module_utils.spark_controller import overlays_of, recipe_for

from .conftest import MODELS, Pair, cluster_of, codes, plan_for, recipe_of


def scripted(data: Any) -> None:
    data["serve"].update(launcher="script", script="overlays/mine/serve.sh")


def test_the_script_is_what_the_container_runs_with_the_arguments_of_each_rank(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", scripted))
    plain = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    for rank in (0, 1):
        serving, usual = plan["nodes"][rank]["serving"], plain["nodes"][rank]["serving"]
        assert serving is not None
        assert usual is not None
        argv = serving["argv"]
        entry = argv.index("--entrypoint")
        assert argv[entry + 1] == "bash"
        assert argv[entry + 3] == "/opt/spark-cluster/launch.sh"
        assert argv[entry + 4 :] == usual["argv"][usual["argv"].index("--entrypoint") + 3 :]
        assert f"{bundle.OVERLAYS}/mine/serve.sh:/opt/spark-cluster/launch.sh:ro" in argv
        assert serving["environment"]["SPARK_RANK"] == str(rank)
        assert serving["environment"]["SPARK_ENGINE"] == "vllm"
        assert "SPARK_RANK" in argv
        assert "SPARK_RANK" not in usual["environment"]
    assert "OVERLAY_MISSING" in codes(plan)


def test_the_script_is_part_of_the_manifest(project: Path, tmp_path: Path) -> None:
    script = tmp_path / "overlays" / "mine" / "serve.sh"
    script.parent.mkdir(parents=True)
    script.write_bytes(b'exec "$SPARK_ENGINE" "$@"\n')
    cluster = cluster_of(spark_models_path=[str(tmp_path)])
    found = overlays_of(cluster, recipe_of("deepseek-v4-flash", scripted))
    manifest = bundle.read_manifest(bundle.build_bundle(project, found)[-1].content)
    assert manifest[f"{bundle.OVERLAYS}/mine/serve.sh"] == hashlib.sha256(script.read_bytes()).hexdigest()


def test_what_lies_beside_a_recipe_file_is_found_there_first(tmp_path: Path) -> None:
    for folder in ("beside", "shared"):
        script = tmp_path / folder / "overlays" / "mine" / "serve.sh"
        script.parent.mkdir(parents=True)
        script.write_text(f"# {folder}\n")
    data: Any = yaml.safe_load((MODELS / "lab-tiny.yml").read_text())
    scripted(data)
    file = tmp_path / "beside" / "lab-tiny.yml"
    file.write_text(yaml.safe_dump(data))
    cluster = cluster_of(recipe=str(file), spark_models_path=[str(tmp_path / "shared")])
    recipe, found = recipe_for(cluster)
    assert recipe is not None, found
    assert overlays_of(cluster, recipe) == [("mine/serve.sh", b"# beside\n")]
    (tmp_path / "beside" / "overlays" / "mine" / "serve.sh").unlink()
    assert overlays_of(cluster, recipe) == [("mine/serve.sh", b"# shared\n")]


@pytest.mark.parametrize("half", [{"launcher": "script"}, {"script": "a.sh"}, {"launcher": "engine", "script": "a.sh"}])
def test_launcher_and_script_belong_together(half: dict[str, str]) -> None:
    data = yaml.safe_load((MODELS / "deepseek-v4-flash.yml").read_text())
    data["serve"].update(half)
    schema = json.loads((MODELS / "schema.json").read_text())
    recipe, (error,) = read_recipe(data, schema, name="deepseek-v4-flash", file="x.yml")
    assert recipe is None
    assert (error.field, error.expected) == ("serve.launcher", "both or neither")


def test_what_the_image_bakes_in_against_the_plan_is_removed_by_name(pair: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash")
    baked = ["NCCL_TOPO_FILE=/x", "MASTER_ADDR=10.0.0.1", "NCCL_IB_MERGE_NICS=0", "PATH=/usr/bin", "NCCL_VERSION=2.30"]
    for facts in pair.values():
        facts["image"] = {**(facts["image"] or {}), "reference": recipe.image_reference, "env": baked}
    serving = plan_for(cluster_of(), pair, recipe)["nodes"][1]["serving"]
    assert serving is not None
    named = {serving["argv"][i + 1] for i, part in enumerate(serving["argv"]) if part == "--env"}
    assert {"NCCL_TOPO_FILE", "MASTER_ADDR"} <= named
    assert not {"PATH", "NCCL_IB_MERGE_NICS", "NCCL_VERSION"} & named
    assert not {"NCCL_TOPO_FILE", "MASTER_ADDR"} & set(serving["environment"])
