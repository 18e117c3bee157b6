"""The schema, its checker, and the recipes that are shipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible.module_utils.spark.plan.recipe import RecipeError, read_recipe, to_bytes
from ansible.module_utils.spark.plan.schema import check
from ansible.module_utils.spark_controller import load_recipe

from .conftest import MODELS

SCHEMA = json.loads((MODELS / "schema.json").read_text())
SHIPPED = sorted(path.stem for path in MODELS.glob("*.yml"))


def text_of(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((MODELS / f"{name}.yml").read_text())
    return data


def errors_after(edit: Callable[[Any], object], name: str = "deepseek-v4-flash") -> list[RecipeError]:
    data = text_of(name)
    edit(data)
    errors = read_recipe(data, SCHEMA, name=name, file="x.yml")[1]
    # A checker of our own must agree with the reference about what is right and what is wrong.
    valid = jsonschema.Draft202012Validator(SCHEMA).is_valid(data)
    assert valid == (check(data, SCHEMA) == [])
    return errors


def test_what_is_shipped() -> None:
    assert SHIPPED == [
        "deepseek-v4-flash",
        "devstral-2-123b",
        "gemma-4-31b",
        "lab-tiny",
        "nemotron-3-super-120b",
        "qwen3-235b-a22b",
        "qwen3-coder-480b",
        "qwen3.8-flash-next",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_valid(name: str) -> None:
    assert errors_after(lambda data: None, name) == []
    recipe, errors = load_recipe(MODELS / f"{name}.yml")
    assert errors == []
    assert recipe is not None
    assert recipe.digest or recipe.image_missing or (recipe.image_reference or "").startswith("spark-lab/")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("edit", "field", "problem", "cure"),
    [
        (lambda d: d.pop("weights"), "weights", "it is missing", "add weights as"),
        (lambda d: d["weights"].pop("size"), "weights.size", "it is missing", "add for example size: {value: 156"),
        (lambda d: d["weights"]["size"].update(unit="Gb"), "weights.size.unit", "'Gb' is none of", "unit: GiB"),
        (lambda d: d["weights"]["size"].pop("source"), "weights.size.source", "it is missing", "add source"),
        (lambda d: d["weights"]["size"].update(value="156"), "weights.size.value", "wrong type", "value: 156"),
        (lambda d: d["weights"]["size"].update(value=-1), "weights.size.value", "out of range", "value: 156"),
        (lambda d: d["weights"].update(folder="../x"), "weights.folder", "wrong form", "folder: deepseek"),
        (lambda d: d["weights"].update(revison="x"), "weights.revison", "no such field", "rename it to revision"),
        (lambda d: d.update(zzz=1), "zzz", "no such field", "remove it; known here: schema, name"),
        (lambda d: d.update(schema=2), "schema", "it is 2", "set it to 1"),
        (lambda d: d.update(title=""), "title", "it is empty", "title: DeepSeek"),
        (lambda d: d["image"].update(reference="x@sha256:12"), "image.reference", "wrong form", "reference: ghcr.io"),
        (lambda d: d["serve"].update(served_names=[]), "serve.served_names", "too few", "served_names: ["),
        (lambda d: d["serve"].update(served_names=["a", "a"]), "serve.served_names", "twice", "remove"),
        (lambda d: d["serve"].update(gpu=1), "serve.gpu", "wrong type", "gpu: true"),
        (lambda d: d["serve"].update(gpu_memory_utilization=1.2), "serve.gpu_memory_utilization", "out of", "0.8"),
        (lambda d: d["serve"]["environment"].update(A=1), "serve.environment.A", "wrong type", "A: "),
        (lambda d: d["serve"]["flags"].append(7), "serve.flags[", "wrong type", "flags"),
        (lambda d: d["widths"][0].update(verdict="ok"), "widths[0].verdict", "none of", "verdict: serves"),
        (lambda d: d.update(weights=[]), "weights", "wrong type", "weights"),
    ],
)
def test_a_broken_recipe_names_field_problem_and_cure(
    edit: Callable[[Any], object], field: str, problem: str, cure: str
) -> None:
    (error,) = errors_after(edit)
    assert error.field.startswith(field)
    assert problem in error.problem
    assert cure in error.cure


def test_a_tokenizer_is_no_secret() -> None:
    assert errors_after(lambda d: d["serve"]["environment"].update(TOKENIZERS_PARALLELISM="false")) == []


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda d: d.update(name="other"), "name"),
        (lambda d: d["serve"]["flags"].append("--tensor-parallel-size=4"), "serve.flags["),
        (lambda d: d["serve"]["environment"].update(NCCL_IB_HCA="x"), "serve.environment.NCCL_IB_HCA"),
        (lambda d: d["serve"]["environment"].update(EMPTY=""), "serve.environment.EMPTY"),
        (lambda d: d["serve"]["environment"].update(HF_TOKEN="x"), "serve.environment.HF_TOKEN"),
        (lambda d: d.pop("serve"), "serve"),
    ],
)
def test_what_a_schema_cannot_say(edit: Callable[[Any], object], field: str) -> None:
    (error,) = errors_after(edit)
    assert error.field.startswith(field)


def test_an_error_has_its_file_and_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(
        "schema: 1\nname: broken\ntitle: Broken\nweights:\n  folder: broken\n  size:\n    value: 1\n    unit: GB\n"
    )
    (error,) = load_recipe(broken)[1]
    assert error.place(broken) == f"{broken}:6, weights.size.source"
    broken.write_text("schema: 1\nname: broken\nschema: 1\n")
    (error,) = load_recipe(broken)[1]
    assert error.place(broken) == f"{broken}:3, schema"
    assert error.cure == "remove this one or that of line 1"
    broken.write_text("schema: 1\nname: broken\n title: x\n")
    (error,) = load_recipe(broken)[1]
    assert error.line == 3
    assert "no YAML" in error.problem
    broken.write_text("")
    assert [error.problem for error in load_recipe(broken)[1]] == ["None is of the wrong type"]


def test_a_name_that_yaml_reads_as_a_number() -> None:
    """JSON knows no such name, so the reference checker does not either."""
    data = text_of("lab-tiny")
    data["serve"]["environment"][1] = "x"
    (error,) = check(data, SCHEMA)
    assert (error.field, error.cure) == ("serve.environment.1", "quote it: '1'")


def test_a_schema_keyword_that_is_not_known_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="oneOf"):
        check({}, {"oneOf": []})


def test_gb_and_gib_are_different_units() -> None:
    assert to_bytes({"value": 273, "unit": "GB"}) == 273_000_000_000
    assert to_bytes({"value": 156, "unit": "GiB"}) == 167_503_724_544
    assert to_bytes({"value": 2.9, "unit": "MB"}) == 2_900_000
    assert to_bytes({"value": 132.7, "unit": "GB"}) == 132_700_000_000


def fields_of(schema: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, part in schema.get("properties", {}).items():
        field = f"{prefix}{name}"
        inner = fields_of(part, f"{field}.") + fields_of(part.get("items", {}), f"{field}[].")
        found += inner or [field]
    return found


def test_every_field_is_described(project: Path) -> None:
    page = (project / "docs" / "models.md").read_text()
    assert [field for field in fields_of(SCHEMA) if f"`{field}`" not in page] == []


def test_every_model_is_listed(project: Path) -> None:
    page = (project / "docs" / "models.md").read_text()
    assert [name for name in SHIPPED if f"| `{name}` |" not in page] == []
