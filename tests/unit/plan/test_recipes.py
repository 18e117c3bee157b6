"""Recipes of other launchers: what they mean, what has no place here, and what is refused rather than run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.findings import Finding
from ansible.module_utils.spark.plan.recipe import Recipe
from ansible.module_utils.spark.plan.recipes.command import ShellError, fill, words
from ansible.module_utils.spark_controller import recipe_for

from .conftest import Pair, cluster_of, codes, plan_for

CASES = yaml.safe_load((Path(__file__).parent / "recipes.yml").read_text())


def load(folder: Path, text: str, name: str = "theirs.yaml") -> tuple[Recipe | None, list[Finding]]:
    (folder / name).write_text(text)
    return recipe_for(cluster_of(recipe=str(folder / name)))


@pytest.mark.parametrize("case", CASES["read"], ids=lambda case: case["name"])
def test_a_recipe_is_read_as_it_is(tmp_path: Path, case: dict[str, Any]) -> None:
    recipe, found = load(tmp_path, case["recipe"])
    assert recipe is not None, found
    wanted = case["is"]
    assert {key: getattr(recipe, key) for key in wanted if key not in ("flags", "environment", "served_names")} == {
        key: value for key, value in wanted.items() if key not in ("flags", "environment", "served_names")
    }
    assert list(recipe.flags) == wanted["flags"]
    assert recipe.environment == wanted.get("environment", {})
    assert list(recipe.served_names) == wanted["served_names"]
    assert [width.nodes for width in recipe.widths if width.verdict == "fails"] == case.get("fails", [])
    lines = [line.partition(": ")[0] for item in found for line in item.evidence]
    assert lines == case.get("unmapped", [])
    assert [item.code for item in found] == (["RECIPE_KEYS_UNMAPPED"] if lines else [])


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_what_cannot_be_mapped_is_refused_with_file_line_field_and_cure(tmp_path: Path, case: dict[str, Any]) -> None:
    recipe, found = load(tmp_path, case["recipe"])
    assert recipe is None
    assert [item.code for item in found] == [case.get("code", "RECIPE_UNMAPPABLE")]
    assert found[0].found.startswith(f"{tmp_path / 'theirs.yaml'}:{case['line']}")
    assert case["says"] in found[0].found
    assert str(tmp_path / "theirs.yaml") in found[0].remedy


def test_an_imported_recipe_is_planned_like_any_other(tmp_path: Path, pair: Pair) -> None:
    recipe, _found = load(tmp_path, CASES["read"][0]["recipe"])
    assert recipe is not None
    for facts in pair.values():
        facts["weights"] = {"path": "x", "present": True, "files": 3, "bytes": 60 * 2**30, "config": None}
    plan = plan_for(cluster_of(), pair, recipe)
    assert "IMAGE_UNPINNED" in codes(plan)
    serving = plan["nodes"][1]["serving"]
    assert serving is not None
    assert serving["argv"].count("--tensor-parallel-size") == 1
    assert plan["serving"] is not None
    assert plan["serving"]["weights"]["bytes"] == 60 * 2**30


@pytest.mark.parametrize(("asked", "said"), [("2", False), ("4", True), ("{spare}", False)])
def test_more_ranks_than_nodes_are_remarked_on_before_anything_starts(
    tmp_path: Path, pair: Pair, asked: str, said: bool
) -> None:
    text = CASES["read"][0]["recipe"]
    recipe, _found = load(tmp_path, text.replace("tensor_parallel: 2", f'tensor_parallel: "{asked}"'))
    assert recipe is not None
    plan = plan_for(cluster_of(), pair, recipe)
    assert ("RANKS_FEWER_THAN_RECIPE" in codes(plan, "warn")) == said
    assert plan["serving"] is not None
    assert plan["serving"]["tensor_parallel"] == 2


def test_a_recipe_of_ours_may_be_a_file_too_and_a_missing_file_is_named(tmp_path: Path) -> None:
    recipe, found = recipe_for(cluster_of(recipe="models/lab-tiny.yml"))
    assert recipe is not None
    assert recipe.name == "lab-tiny"
    assert found == []
    recipe, found = recipe_for(cluster_of(recipe="models/lab-tiny.yml", model="gemma-4-31b"))
    assert recipe is not None
    assert [(item.code, item.severity) for item in found] == [("RECIPE_INSTEAD_OF_MODEL", "note")]
    assert (recipe.name, "gemma-4-31b" in found[0].found) == ("lab-tiny", True)
    recipe, (item,) = recipe_for(cluster_of(recipe=str(tmp_path / "nowhere.yaml")))
    assert recipe is None
    assert (item.code, "nowhere.yaml" in item.found) == ("RECIPE_INVALID", True)


@pytest.mark.parametrize("command", CASES["shell"])
def test_what_needs_a_shell_is_refused(command: str) -> None:
    with pytest.raises(ShellError):
        words(command)


@pytest.mark.parametrize(("command", "expected"), CASES["words"])
def test_what_needs_none_arrives_as_words(command: str, expected: list[str]) -> None:
    assert words(command) == expected


def test_a_default_cannot_smuggle_in_a_command() -> None:
    with pytest.raises(ShellError):
        words(fill("vllm serve '{x}'", {"x": "a'; reboot; '"}, doubled=True))


def test_braces_are_doubled_in_one_form_and_plain_in_the_other() -> None:
    assert fill("'{{\"n\":{n}}}'", {"n": "3"}, doubled=True) == "'{\"n\":3}'"
    assert fill('\'{"a":{"n":{n}}}\' {b}', {"n": "3", "b": "{n}"}, doubled=False) == '\'{"a":{"n":3}}\' 3'
    with pytest.raises(ShellError, match="no default"):
        fill("{x}", {}, doubled=True)
