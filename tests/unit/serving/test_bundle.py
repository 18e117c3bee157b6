"""What is installed on the nodes: reproducible bytes that run without Ansible."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.spark import bundle


def test_two_builds_are_the_same_bytes(project: Path) -> None:
    first, second = bundle.build_bundle(project), bundle.build_bundle(project)
    assert [(f.path, f.mode, f.sha256) for f in first] == [(f.path, f.mode, f.sha256) for f in second]


def test_times_and_compiled_files_of_the_checkout_do_not_matter(tmp_path: Path) -> None:
    package = tmp_path / "spark"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "rankctl.py").write_text("def main(argv):\n    return 0\n")
    first = bundle.build_rankctl(package)
    (package / "__pycache__" / "rankctl.pyc").write_bytes(b"x")
    (package / "rankctl.py").touch()
    assert bundle.build_rankctl(package) == first


def test_the_manifest_names_every_other_file_and_comes_last(project: Path) -> None:
    files = bundle.build_bundle(project, overlays=[("patch/model.py", b"x = 1\n")])
    manifest = bundle.read_manifest(files[-1].content)
    assert files[-1].path == bundle.MANIFEST
    assert manifest == {f.path: hashlib.sha256(f.content).hexdigest() for f in files[:-1]}
    assert f"{bundle.OVERLAYS}/patch/model.py" in manifest


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/../../b", ""])
def test_an_overlay_cannot_leave_its_folder(project: Path, name: str) -> None:
    with pytest.raises(ValueError, match="overlay"):
        bundle.build_bundle(project, overlays=[(name, b"")])


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"schema": 1}', b"\0\0"])
def test_what_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        bundle.read_manifest(raw)


def test_stored_files_are_named_by_their_content(project: Path, tmp_path: Path) -> None:
    stored = bundle.store(bundle.build_bundle(project), tmp_path)
    again = bundle.store(bundle.build_bundle(project), tmp_path)
    assert stored == again
    for item in stored:
        assert hashlib.sha256(Path(item["source"]).read_bytes()).hexdigest() == item["sha256"]
    assert len(list(tmp_path.iterdir())) == len(stored)


@pytest.fixture(scope="module")
def rankctl(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rankctl") / "rankctl.pyz"
    path.write_bytes(bundle.build_rankctl(project / "module_utils" / "spark"))
    return path


def call(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -I: nothing of this process's paths, so that only what is in the archive can be imported.
    argv = [sys.executable, "-I", str(path), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_every_verb_can_be_loaded_from_the_archive_alone(rankctl: Path) -> None:
    script = (
        "import sys, importlib, json; sys.path.insert(0, sys.argv[1]); from spark import rankctl\n"
        "for module, function, _ in rankctl.VERBS.values():\n"
        "    assert callable(getattr(importlib.import_module('spark.' + module), function)), (module, function)\n"
        "print(json.dumps(sorted(rankctl.VERBS)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(rankctl)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["job", "peer", "prestart", "run", "status", "stop"]


def test_help_and_a_wrong_verb(rankctl: Path) -> None:
    assert call(rankctl, "--help").returncode == 0
    wrong = call(rankctl, "reformat")
    assert wrong.returncode == 2
    assert "no verb 'reformat'" in wrong.stderr
