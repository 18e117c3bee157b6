"""Hostile values on the whole way: recipe, plan file, launcher, archive, and the docker that is executed at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import bundle
from ansible.module_utils.spark.plan.build import add_serving, build_plan
from ansible.module_utils.spark.plan.inventory import read_cluster
from ansible.module_utils.spark.plan.recipe import read_recipe
from ansible.module_utils.spark.plan.serving import configuration, plan_serving
from ansible.module_utils.spark.plan.types import NodeServing, Plan

HERE = Path(__file__).parent
CASES: list[dict[str, str]] = yaml.safe_load((HERE / "launcher.yml").read_text(encoding="utf-8"))
FACTS = HERE.parent / "plan" / "fixtures" / "spark-pair.json"
SECRET = "sk-only-root-may-see-this"

# What stands in for docker: it writes down what it was given, byte for byte, and answers like an empty host.
FAKE = """#!{python}
import json, os, sys
with open({record!r}, "w", encoding="utf-8", errors="surrogateescape") as out:
    json.dump({{"argv": sys.argv, "environment": dict(os.environ)}}, out)
"""

# The node's own entry with its places moved below a folder. Everything from the plan file to execve is the real code.
NODE = """
import sys
sys.path.insert(0, {archive!r})
from pathlib import Path
from spark import rank, rankctl
rank.HERE = rank.Place(root=Path({root!r}), run=rank.run)
plan = rank.read_plan(rank.HERE)
rank.ready_to_run = lambda: ([], rank.start_record(plan, {{}}, {{}}, {{}}, rank.HERE))
rank.remove_own = lambda place: False
rank.hand_over_key = (lambda real: lambda path: real(path, rank.HERE))(rank.hand_over_key)
sys.exit(rankctl.main(["run"]))
"""


def planned(project: Path, value: str) -> tuple[Plan, NodeServing]:
    data: Any = yaml.safe_load((project / "models" / "deepseek-v4-flash.yml").read_text(encoding="utf-8"))
    data["serve"]["flags"] += ["--chat-template", value, "--hf-overrides", json.dumps({"deep": {"text": value}})]
    data["serve"]["environment"]["HOSTILE"] = value
    schema = json.loads((project / "models" / "schema.json").read_text(encoding="utf-8"))
    recipe, errors = read_recipe(data, schema, name="deepseek-v4-flash", file="x.yml")
    assert recipe is not None, errors
    shared = {"cluster_name": "pair_a", "ansible_user": "nvidia", "api_key_file": "/etc/spark-cluster/api-key"}
    cluster = read_cluster("pair_a", [(f"spark-0{n}", {**shared, "ansible_host": f"192.0.2.1{n}"}) for n in (1, 2)])
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    plan = build_plan(cluster, facts, {"rankctl_sha256": "f" * 64, "files": []}, purpose="serve")
    plan = add_serving(plan, *plan_serving(cluster, plan, recipe, facts))
    serving = plan["nodes"][0]["serving"]
    assert serving is not None
    return plan, serving


def executed(project: Path, folder: Path, serving: NodeServing) -> dict[str, Any]:
    """Starts the head's rank from its plan file, and returns what docker was given."""
    root, programs, record = folder / "root", folder / "bin", folder / "docker.json"
    for name, content, mode in (
        ("proc/meminfo", "MemAvailable: 1000 kB\n", 0o644),
        (bundle.PLAN.lstrip("/"), json.dumps(serving["plan_file"]), 0o600),
        ("etc/spark-cluster/api-key", f"{SECRET}\n", 0o600),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        path.chmod(mode)
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(FAKE.format(python=sys.executable, record=str(record)))
    docker.chmod(0o755)
    archive = folder / "rankctl.pyz"
    archive.write_bytes(bundle.build_rankctl(project / "module_utils" / "spark"))
    done = subprocess.run(
        [sys.executable, "-c", NODE.format(archive=str(archive), root=str(root))],
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "LEAKED": "from the caller"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(record.read_text(encoding="utf-8")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_value_arrives_intact_and_does_nothing_on_its_way(
    project: Path, tmp_path: Path, case: dict[str, str]
) -> None:
    marker = tmp_path / "injected"
    value = case["value"].replace("MARKER", str(marker))
    plan, serving = planned(project, value)
    got = executed(project, tmp_path, serving)
    argv, environment = got["argv"], got["environment"]
    assert argv[1:] == serving["argv"][1:]
    assert argv[argv.index("--chat-template") + 1] == value
    assert json.loads(argv[argv.index("--hf-overrides") + 1]) == {"deep": {"text": value}}
    assert environment["HOSTILE"] == value
    assert "HOSTILE" in argv
    assert "LEAKED" not in environment
    assert not marker.exists()
    assert argv[argv.index("--entrypoint") + 1] == "vllm"
    # Neither ps, nor docker inspect, nor a result shows the key: only the file does, on the head.
    assert SECRET not in json.dumps([got, configuration(plan)])
    held = [path for path in (tmp_path / "root").rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert len(held) == 2
    assert {path.stat().st_mode & 0o777 for path in held} == {0o600}
