"""The controller's side of installing: what crosses the network, and the comparison afterwards."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SUM = hashlib.sha256(b"launcher").hexdigest()


class Node:
    """A node that lacks what it is not given, and installs what it is."""

    def __init__(self, has: dict[str, str], spoils: bool = False) -> None:
        self.has, self.spoils = dict(has), spoils
        self.calls: list[dict[str, Any]] = []

    def execute(self, module_args: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.calls.append(dict(module_args))
        contents = module_args.get("contents") or {}
        for path, text in contents.items():
            raw = zlib.decompress(base64.b64decode(text)) + (b"!" if self.spoils else b"")
            self.has[path] = hashlib.sha256(raw).hexdigest()
        paths = [item["path"] for item in module_args["files"]]
        need = [] if contents else [p for p in paths if self.has.get(p) != SUM]
        return {
            "changed": bool(need or contents),
            "need": need,
            "installed": {p: self.has.get(p) for p in paths},
            "findings": [],
        }


@pytest.fixture
def install(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("node_bundle", project / "action_plugins" / "node_bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.ActionBase, "run", lambda *_: {})
    source = tmp_path / "launch"
    source.write_bytes(b"launcher")

    def run(node: Node, check_mode: bool = False) -> dict[str, Any]:
        action = module.ActionModule.__new__(module.ActionModule)
        files = [{"path": "/l", "mode": "0755", "sha256": SUM, "source": str(source)}]
        action._task = SimpleNamespace(args={"node": "spark-02", "files": files}, check_mode=check_mode)
        action._execute_module = node.execute
        return dict(action.run(None, {}))

    run.source = source  # type: ignore[attr-defined]
    return run


def test_nothing_to_do_is_one_execution_without_contents(install: Any) -> None:
    node = Node({"/l": SUM})
    result = install(node)
    assert result["module_executions"] == {"modules": 1, "polls": 0}
    assert "source" not in node.calls[0]["files"][0]
    assert result["configuration"]["launcher"] == {"/l": SUM}


def test_only_what_differs_crosses_the_network(install: Any) -> None:
    node = Node({})
    result = install(node)
    assert result["module_executions"]["modules"] == 2
    assert not result.get("failed")
    assert node.has == {"/l": SUM}


def test_a_file_that_arrives_otherwise_is_found_out(install: Any) -> None:
    result = install(Node({}, spoils=True))
    assert result["failed"]
    assert [(item["code"], item["node"]) for item in result["findings"]] == [("LAUNCHER_NOT_EQUAL", "spark-02")]


def test_a_source_that_is_not_what_was_planned_is_not_sent(install: Any) -> None:
    install.source.write_bytes(b"edited meanwhile")
    node = Node({})
    result = install(node)
    assert result["failed"]
    assert "run the command again" in result["msg"]
    assert len(node.calls) == 1
