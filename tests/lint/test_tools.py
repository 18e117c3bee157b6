"""The linters, each over all sources that are its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*argv: str, cwd: Path = PROJECT, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {**os.environ, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        argv,
        cwd=cwd,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def clean(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, done.args))}\n{done.stdout}{done.stderr}", pytrace=False)


def ansible_lint(*arguments: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    # scripts/ holds the sitecustomize by which the args rule can import what our modules import.
    settings = {"PYTHONPATH": str(PROJECT / "scripts"), "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    return run("ansible-lint", "--nocolor", "-q", *arguments, cwd=cwd, **settings)


def test_ruff() -> None:
    clean(run("ruff", "check", "--quiet", "--output-format=concise", "."))
    clean(run("ruff", "format", "--quiet", "--check", "."))


def test_mypy() -> None:
    folders = ("lab", "library", "action_plugins", "callback_plugins", "filter_plugins", "scripts", "tests")
    # A folder without Python in it is an error to mypy.
    paths = [name for name in folders if any((PROJECT / name).rglob("*.py"))]
    clean(run("mypy", "--no-error-summary", ".config/typings/ansible", *paths))


def test_yamllint() -> None:
    clean(run("yamllint", "--strict", "-f", "parsable", "."))


def test_shellcheck() -> None:
    tracked = run("git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard").stdout.splitlines()
    scripts = [name for name in tracked if is_shell(PROJECT / name)]
    assert scripts
    clean(run("shellcheck", *scripts))


def is_shell(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    if path.suffix or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(80)
    return first.startswith(b"#!") and first.rstrip().endswith((b"/sh", b"bash", b"/dash"))


def test_ansible_lint() -> None:
    clean(ansible_lint())


def test_ansible_lint_knows_the_arguments_of_our_own_modules(tmp_path: Path) -> None:
    """Without the sitecustomize the rule is silent about them, and nobody would notice."""
    # An action plugin of the same name takes the arguments first, so the rule leaves them to it.
    ours = {path.stem for path in (PROJECT / "library").glob("*.py")}
    modules = sorted(ours - {path.stem for path in (PROJECT / "action_plugins").glob("*.py")})
    head = "---\n- name: Wrong arguments\n  hosts: all\n  gather_facts: false\n  tasks:\n"
    tasks = [f"    - name: Call {name}\n      {name}:\n        no_such_argument: true\n" for name in modules]
    play = tmp_path / "play.yml"
    play.write_text(head + "".join(tasks))
    said = ansible_lint("-f", "pep8", "-c", str(PROJECT / ".ansible-lint"), str(play)).stdout
    wrong = {int(line) for line in re.findall(r"play\.yml:(\d+): args\[module\]", said)}
    silent = [name for number, name in enumerate(modules) if 6 + 3 * number not in wrong]
    assert modules
    assert not silent, said
