"""What the controller's side finds: recipes in folders, versions of Ansible and Python."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.codes.model import CODES
from ansible.module_utils.spark_controller import catalogue, recipe_for

from .conftest import MODELS, cluster_of

HERE = Path(__file__).parent


def said(**variables: Any) -> list[tuple[str, str]]:
    return [(item.code, item.remedy) for item in recipe_for(cluster_of(**variables))[1]]


def test_a_recipe_of_the_catalogue() -> None:
    recipe, found = recipe_for(cluster_of(model="lab-tiny"))
    assert found == []
    assert recipe is not None
    assert recipe.file == str(MODELS / "lab-tiny.yml")


def test_no_model_and_an_unknown_one_list_what_there_is() -> None:
    ((code, remedy),) = said()
    assert code == "MODEL_UNNAMED"
    assert "gemma-4-31b, lab-tiny" in remedy
    ((code, remedy),) = said(model="gpt-5")
    assert code == "MODEL_UNKNOWN"
    assert "gemma-4-31b, lab-tiny" in remedy


def test_a_folder_of_the_users_own_comes_first(tmp_path: Path) -> None:
    mine = tmp_path / "lab-tiny.yml"
    shutil.copy(MODELS / "lab-tiny.yml", mine)
    cluster = cluster_of(model="lab-tiny", spark_models_path=[str(tmp_path)])
    assert catalogue(cluster)["lab-tiny"] == mine
    assert "deepseek-v4-flash" in catalogue(cluster)


def test_a_broken_recipe_is_a_finding_with_file_line_and_cure(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    text = (MODELS / "lab-tiny.yml").read_text().replace("name: lab-tiny", "name: mine").replace("MB", "Mb")
    mine.write_text(text)
    recipe, (item,) = recipe_for(cluster_of(model="mine", spark_models_path=[str(tmp_path)]))
    assert recipe is None
    assert (item.code, item.severity) == ("RECIPE_INVALID", "fatal")
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "Mb" in row)
    assert item.found.startswith(f"{mine}:{line}, weights.size.unit: 'Mb' is none of the choices")
    assert item.remedy == f"Edit {mine}: write for example unit: GiB"


def test_a_recipe_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe name: binary\n")
    (tmp_path / "folder.yml").mkdir()
    for name, reason in (("binary", "'utf-8' codec"), ("folder", "Is a directory")):
        recipe, (item,) = recipe_for(cluster_of(model=name, spark_models_path=[str(tmp_path)]))
        assert recipe is None
        assert item.code == "RECIPE_INVALID"
        assert f"it cannot be read: {reason}" in item.found


def plugin(project: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("under_test", project / "action_plugins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ansible", "python", "fine"),
    [
        ("2.19.0", (3, 11, 0), True),
        ("2.21.5", (3, 13, 0), True),
        ("2.18.9", (3, 11, 0), False),
        ("2.19.0", (3, 10, 9), False),
    ],
)
def test_versions(project: Path, monkeypatch: pytest.MonkeyPatch, ansible: str, python: Any, fine: bool) -> None:
    module = plugin(project, "cluster_inventory")
    monkeypatch.setattr(module, "ansible_version", ansible)
    monkeypatch.setattr(sys, "version_info", python)
    assert [item.code for item in module._versions("localhost")] == ([] if fine else ["CONTROLLER_UNSUPPORTED"])


def test_what_a_stopped_member_found_is_said_and_not_recorded_again(project: Path) -> None:
    gate = plugin(project, "cluster_gate")
    plan = {"name": "pair_a", "nodes": [{"node": "a"}, {"node": "b"}, {"node": "c"}]}
    found = {"code": "DOCKER_DOWN", "severity": "fatal", "found": "no answer"}
    hostvars = {
        "a": {},
        "b": {"first": {"failed": True, "msg": "old"}, "second": {"failed": True, "findings": [found], "msg": "new"}},
        "c": {"only": {"unreachable": True, "msg": "no route\nto host"}},
    }
    variables = {"ansible_play_hosts": ["a"], "ansible_play_hosts_all": ["a", "b", "c"], "hostvars": hostvars}
    missing, told = gate._missing(plan, variables)
    assert [(item.node, item.found, item.evidence) for item in missing] == [
        ("b", "DOCKER_DOWN: no answer", ()),
        ("c", "no route", ("to host",)),
    ]
    assert told == {"b"}
    assert gate._missing(plan, {**variables, "ansible_play_hosts": ["a", "b", "c"]}) == ([], set())


def test_every_code_of_the_plan_is_raised_by_a_test() -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    assert [code.code for code in CODES if f'"{code.code}' not in tests] == []
