"""What must agree between files that no linter compares."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.codes import REGISTRY

PROJECT = Path(__file__).resolve().parents[2]
SPARK = PROJECT / "module_utils" / "spark"
SHIM = 'ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))'
# Assembled here, so that this file does not name what it forbids.
FORBIDDEN = ("/" + "work" + "/", "shared" + "/", "contracts" + ".md")
ROLES = sorted(path.name for path in (PROJECT / "roles").iterdir() if path.is_dir())
TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "path": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
}


def sources() -> list[Path]:
    """Every file of the project that git tracks or would track."""
    argv = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def load(path: Path) -> Any:
    return yaml.safe_load(text_of(path)) if path.exists() else None


def test_no_file_names_a_place_outside_the_project() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:100]}"
        for path in sources()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if any(re.search(rf"(?<![\w/.-]){re.escape(name)}", line) for name in FORBIDDEN)
    ]
    assert not found, "\n".join(found)


def test_the_shim_is_one_identical_line_in_each_controller_side_entry() -> None:
    entries = [path for path in sources() if path.suffix == ".py" and path != Path(__file__)]
    lines = {path: [x for x in text_of(path).splitlines() if "module_utils.__path__" in x] for path in entries}
    wrong = {str(path.relative_to(PROJECT)): found for path, found in lines.items() if found and found != [SHIM]}
    assert not wrong
    lacking = []
    for folder in ("action_plugins", "callback_plugins", "filter_plugins"):
        for path in (PROJECT / folder).glob("*.py"):
            if "ansible.module_utils.spark" in text_of(path) and not lines[path]:
                lacking.append(str(path.relative_to(PROJECT)))
    assert not lacking


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Absolute imports as (line, module)."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""


def test_what_runs_on_the_nodes_needs_nothing_but_the_standard_library() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for path in sorted(SPARK.rglob("*.py"))
        for line, name in imports(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not found, "\n".join(found)


def test_modules_are_glue() -> None:
    """A module of more than 150 lines does work that belongs into module_utils, where it can be tested."""
    long = {path.name: n for path in (PROJECT / "library").glob("*.py") if (n := len(text_of(path).splitlines())) > 200}
    assert not long


@pytest.mark.parametrize("path", sorted(PROJECT.glob("*.yml")), ids=lambda path: path.name)
def test_entry_playbooks_only_import(path: Path) -> None:
    if path.name == "requirements.yml":
        return
    plays = load(path)
    assert [set(play) for play in plays] == [{"name", "ansible.builtin.import_playbook"}]


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_say_what_the_defaults_are(role: str) -> None:
    folder = PROJECT / "roles" / role
    specs = load(folder / "meta" / "argument_specs.yml")
    assert specs, f"roles/{role}/meta/argument_specs.yml is missing"
    defaults = load(folder / "defaults" / "main.yml") or {}
    options: dict[str, Any] = {}
    for entry in specs["argument_specs"].values():
        assert entry.get("short_description"), "an entry point says what it does"
        options.update(entry.get("options") or {})
    for name, option in options.items():
        assert option.get("description"), f"{name} has no description"
        assert name.startswith(f"{role}_") or name in ("cluster", "me"), f"{name} lacks the role's prefix"
    assert {name: option["default"] for name, option in options.items() if "default" in option} == defaults
    for name, value in defaults.items():
        expected = TYPES[options[name].get("type", "str")]
        assert isinstance(value, expected), f"{name}: {value!r} is not of type {options[name].get('type', 'str')}"
    mains = {path.stem for path in (folder / "tasks").glob("*.yml")}
    assert set(specs["argument_specs"]) <= mains, "an entry point without a task file"


@pytest.mark.parametrize("role", ROLES)
def test_roles_know_no_inventory(role: str) -> None:
    """A role reads the plan (cluster, me) and its own defaults; of other hosts only what it registered there itself."""
    allowed = re.compile(rf"""hostvars, ['"]{role}_|hostvars\[[\w.]+\]\.{role}_""")
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path in sorted((PROJECT / "roles" / role).rglob("*"))
        if path.suffix in (".yml", ".yaml", ".j2")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"\bhostvars\b|\bgroups\b\[|\bgroups\.|\bgroup_names\b|inventory_hostname in", line)
        and not allowed.search(line)
    ]
    assert not found, "\n".join(found)


def test_facts_are_never_injected_variables() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path in sources()
        if path.suffix in (".yml", ".yaml", ".j2") and path.relative_to(PROJECT).parts[0] in ("roles", "playbooks")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(
            r"\bansible_(distribution|os_family|architecture|memtotal_mb|hostname|kernel|default_ipv4|mounts)", line
        )
    ]
    assert not found, "\n".join(found)


def test_each_code_is_raised_and_tested() -> None:
    raised: set[str] = set()
    tested: set[str] = set()
    for path in sources():
        part = path.relative_to(PROJECT).parts
        if path.suffix in (".py", ".yml") and path != Path(__file__) and part[:3] != ("module_utils", "spark", "codes"):
            (tested if part[0] == "tests" else raised).update(re.findall(r"\b[A-Z][A-Z0-9_]+\b", text_of(path)))
    assert not sorted(set(REGISTRY) - raised), "registered and never raised"
    assert not sorted(set(REGISTRY) - tested), "no test names them"


def test_generated_documents_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_locks_name_no_index() -> None:
    for lock in sorted((PROJECT / "requirements").glob("py*.txt")):
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text_of(lock)), lock.name


def test_locks_pin_what_the_input_files_ask_for() -> None:
    wanted = {
        re.split(r"[=<>~ ]", line)[0].lower()
        for path in (PROJECT / "requirements").glob("*.in")
        for line in text_of(path).splitlines()
        if line and not line.startswith(("#", "-"))
    }
    for lock in sorted((PROJECT / "requirements").glob("py*.txt")):
        pinned = {line.split("==")[0] for line in text_of(lock).splitlines() if "==" in line}
        assert wanted <= pinned, lock.name
