"""A recipe that changes another: what is merged, where an error is, and what is no base."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.spark.plan.recipe import Recipe, extended, flag_value
from ansible.module_utils.spark_controller import load_recipe, recipe_for

from .conftest import MODELS, cluster_of

HEAD = "schema: 1\nname: {name}\nextends: {base}\n"


def write(folder: Path, name: str, base: str, more: str = "title: Mine\n") -> Path:
    path = folder / f"{name}.yml"
    path.write_text(HEAD.format(name=name, base=base) + more)
    return path


def load(folder: Path, name: str) -> tuple[Recipe | None, list[str]]:
    recipe, errors = load_recipe(folder / f"{name}.yml", [folder, MODELS])
    return recipe, [f"{error.place(folder)}: {error.problem}" for error in errors]


def test_fields_are_merged_lists_replaced_and_null_removes() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": "x", "e": {"f": 1}}
    own = {"a": {"b": 2, "c": [3]}, "d": None, "e": None, "g": {"h": None, "i": 1}}
    assert extended(base, own) == {"a": {"b": 2, "c": [3]}, "g": {"i": 1}}
    assert base["d"] == "x"


def test_a_recipe_of_ones_own_on_top_of_ours(tmp_path: Path) -> None:
    more = "title: Short\nserve:\n  max_model_len: 131072\n  more_flags: [--disable-log-requests]\n"
    write(tmp_path, "short", "deepseek-v4-flash", more + "  environment: {VLLM_NO_USAGE_STATS: null, MINE: 'a b'}\n")
    recipe, found = recipe_for(cluster_of(model="short", spark_models_path=[str(tmp_path)]))
    assert found == []
    assert recipe is not None
    assert (recipe.name, recipe.title, recipe.file) == ("short", "Short", str(tmp_path / "short.yml"))
    assert (recipe.max_model_len, recipe.max_num_seqs) == (131072, 6)
    assert "--disable-log-requests" in recipe.flags
    assert flag_value(recipe.flags, "--moe-backend") == "flashinfer_b12x"
    assert "VLLM_NO_USAGE_STATS" not in recipe.environment
    assert recipe.environment["MINE"] == "a b"
    assert recipe.digest is not None


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    more = "default_profile: MINE\nprofiles:\n  MINE: {values: {SEQS: 2, GMU: 0.6}}\n"
    write(tmp_path, "mine", "qwen3.8-flash-next", more)
    recipe, errors = load(tmp_path, "mine")
    assert errors == []
    assert recipe is not None
    assert recipe.profiles == ("SPEED", "CONTEXT", "STAGED", "MINE")
    assert (recipe.profile, recipe.max_num_seqs, recipe.title) == ("MINE", 2, "Qwen3.8-Flash-Next NVFP4")


def test_the_same_name_changes_the_next_one_in_the_path(tmp_path: Path) -> None:
    write(tmp_path, "lab-tiny", "lab-tiny", "serve: {max_num_seqs: 4}\n")
    recipe, errors = load(tmp_path, "lab-tiny")
    assert errors == []
    assert recipe is not None
    assert (recipe.max_num_seqs, recipe.max_model_len) == (4, 512)


def test_over_two_steps(tmp_path: Path) -> None:
    write(tmp_path, "one", "lab-tiny", "title: One\nserve: {max_num_seqs: 4}\n")
    write(tmp_path, "two", "one", "serve: {max_model_len: 256}\n")
    recipe, errors = load(tmp_path, "two")
    assert errors == []
    assert recipe is not None
    assert (recipe.title, recipe.max_num_seqs, recipe.max_model_len) == ("One", 4, 256)


@pytest.mark.parametrize(
    ("more", "verdicts"),
    [
        ("serve: {max_num_seqs: 4}\n", {2: "serves", 1: "fails"}),
        ("image: {reference: 'x/y:1'}\n", {}),
        ("weights: {format: NVFP4}\n", {}),
        ("image: {reference: 'x/y:1'}\nwidths: [{nodes: 2, verdict: serves, source: us}]\n", {2: "serves"}),
    ],
)
def test_a_verdict_is_not_inherited_by_another_build(tmp_path: Path, more: str, verdicts: dict[int, str]) -> None:
    write(tmp_path, "mine", "deepseek-v4-flash", more)
    recipe, errors = load(tmp_path, "mine")
    assert errors == []
    assert recipe is not None
    assert {width.nodes: width.verdict for width in recipe.widths} == verdicts


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("serve: {max_num_seqs: many}\n", "mine.yml:4, serve.max_num_seqs"),
        ("weights:\n  size: {unit: Gb}\n", "mine.yml:5, weights.size.unit"),
        ("weights: {sise: 1}\n", "mine.yml:4, weights.sise"),
        ("serve: null\n", "mine.yml:4, serve"),
    ],
)
def test_an_error_is_where_it_was_written(tmp_path: Path, more: str, place: str) -> None:
    write(tmp_path, "mine", "lab-tiny", more)
    recipe, (error,) = load(tmp_path, "mine")
    assert recipe is None
    assert error.startswith(str(tmp_path / place))


def test_an_error_of_the_base_is_in_the_base(tmp_path: Path) -> None:
    base = (MODELS / "lab-tiny.yml").read_text().replace("name: lab-tiny", "name: base")
    (tmp_path / "base.yml").write_text(base.replace("unit: MB", "unit: Mb"))
    write(tmp_path, "mine", "base")
    line = next(number for number, row in enumerate(base.splitlines(), 1) if "unit: MB" in row)
    _, (item,) = recipe_for(cluster_of(model="mine", spark_models_path=[str(tmp_path)]))
    assert item.found.startswith(f"{tmp_path}/base.yml:{line}, weights.size.unit")
    assert item.remedy == f"Edit {tmp_path}/base.yml: write for example unit: GiB"
    (tmp_path / "base.yml").write_text("schema: 1\nname: base\n title: x\n")
    assert load(tmp_path, "mine")[1][0].startswith(f"{tmp_path}/base.yml:3: it is no YAML")


def test_what_is_no_base(tmp_path: Path) -> None:
    write(tmp_path, "mine", "nothing")
    (error,) = load(tmp_path, "mine")[1]
    assert error == f"{tmp_path}/mine.yml:3, extends: there is no recipe nothing"
    write(tmp_path, "alone", "alone")
    (error,) = load(tmp_path, "alone")[1]
    assert error == f"{tmp_path}/alone.yml:3, extends: there is no other recipe alone"
    write(tmp_path, "a", "b")
    write(tmp_path, "b", "a")
    (error,) = load(tmp_path, "a")[1]
    assert error == f"{tmp_path}/b.yml:3, extends: it extends itself: a -> b -> a"
    (tmp_path / "inner").mkdir()
    write(tmp_path, "path", "../a")
    (found,) = load_recipe(tmp_path / "path.yml", [tmp_path / "inner", MODELS])[1]
    assert found.problem == "there is no recipe ../a"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    _, (item,) = recipe_for(cluster_of(model="mine", spark_models_path=[str(tmp_path / "none")]))
    assert (item.code, item.evidence) == ("MODEL_UNKNOWN", (f"there is no folder {tmp_path / 'none'}",))


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "it has more than 20000 values"),
        ("&a {x: *a}\n", "contains itself"),
        ("x: &a [*a]\n", "contains itself"),
        ("x: " + "[" * 20000 + "\n", "nested without end"),
        ("name: 2020-13-45\n", "cannot be read"),
    ],
    ids=["aliases of aliases", "a mapping in itself", "a list in itself", "deep", "no date"],
)
def test_hostile_yaml_has_one_clear_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.yml").write_text(text)
    (error,) = load(tmp_path, "mine")[1]
    assert error.startswith(f"{tmp_path}/mine.yml:1: ")
    assert says in error
