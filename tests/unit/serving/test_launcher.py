"""Hostile values on the whole way: recipe, plan file, launcher, checks before the start, and the docker at its end.

Nothing of ours is replaced. The launcher that is installed runs in a mount namespace that shows a folder in the place
of the node; only docker, and what a node has and this machine has not (GIDs, memory, an image), is stood in for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import bundle, gids
from ansible.module_utils.spark.plan.build import add_serving, build_plan
from ansible.module_utils.spark.plan.inventory import read_cluster
from ansible.module_utils.spark.plan.recipe import read_recipe
from ansible.module_utils.spark.plan.serving import configuration, plan_serving
from ansible.module_utils.spark.plan.types import RANK_PATH, NodeServing, Plan
from ansible.module_utils.spark.rank import REFUSAL_PATH, REFUSED

HERE = Path(__file__).parent
CASES: list[dict[str, str]] = yaml.safe_load((HERE / "launcher.yml").read_text(encoding="utf-8"))
FACTS = HERE.parent / "plan" / "fixtures" / "spark-pair.json"
SECRET = "sk-only-root-may-see-this"
KEY_FILE = "/etc/spark-cluster/api-key"
MODELS_DIR = "/home/somebody/my models; $(id) 'ü'"

# Answers about image and containers as on a node before its first start, and writes down what it is to run.
DOCKER = """#!/usr/bin/python3
import json, os, sys
image = {image!r}
if sys.argv[1:3] == ["image", "inspect"]:
    print(json.dumps([image]))
elif sys.argv[1:3] == ["container", "inspect"]:
    sys.exit("Error response from daemon: No such container: " + sys.argv[3])
else:
    with open({record!r}, "w", encoding="utf-8", errors="surrogateescape") as out:
        json.dump({{"argv": sys.argv, "environment": dict(os.environ)}}, out)
"""

# From here on the paths of the node lead into the folder. A network of its own has no listeners on our ports.
NODE = """set -eu
root=$1
for pair in "$root/usr/local/lib:/usr/local/lib" "$root/sys:/sys" "$root/home:/home" "$root/run:/run" "$root/etc:/etc" \
    "$root/proc/meminfo:/proc/meminfo"; do
    mount --bind "${pair%%:*}" "${pair##*:}"
done
exec /usr/local/lib/spark-cluster/launch
"""
NAMESPACES = ["unshare", "--mount", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def namespaces() -> bool:
    tried = [*NAMESPACES, "mount", "--bind", "/usr", "/usr"]
    return bool(shutil.which("unshare")) and subprocess.run(tried, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces(), reason="no mount namespaces for this user")


def planned(project: Path, value: str) -> Plan:
    data: Any = yaml.safe_load((project / "models" / "deepseek-v4-flash.yml").read_text(encoding="utf-8"))
    data["serve"]["flags"] += ["--chat-template", value, "--hf-overrides", json.dumps({"deep": {"text": value}})]
    data["serve"]["environment"]["HOSTILE"] = value
    schema = json.loads((project / "models" / "schema.json").read_text(encoding="utf-8"))
    recipe, errors = read_recipe(data, schema, name="deepseek-v4-flash", file="x.yml")
    assert recipe is not None, errors
    shared = {"cluster_name": "pair_a", "ansible_user": "nvidia", "api_key_file": KEY_FILE, "models_dir": MODELS_DIR}
    cluster = read_cluster("pair_a", [(f"spark-0{n}", {**shared, "ansible_host": f"192.0.2.1{n}"}) for n in (1, 2)])
    assert not cluster.findings
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    plan = build_plan(cluster, facts, {"rankctl_sha256": "f" * 64, "files": []}, purpose="serve")
    return add_serving(plan, *plan_serving(cluster, plan, recipe, facts))


def serving_of(plan: Plan, rank: int) -> NodeServing:
    serving = plan["nodes"][rank]["serving"]
    assert serving is not None
    return serving


@dataclass
class Machine:
    """A folder that is a node to whoever looks from inside."""

    root: Path

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        target.chmod(mode)
        return target

    def install(self, project: Path, plan: Plan, rank: int) -> None:
        """As node_bundle and the roles before it leave a node."""
        serving = serving_of(plan, rank)
        for item in bundle.build_bundle(project):
            self.write(item.path, item.content, int(item.mode, 8))
        self.write(bundle.PLAN, json.dumps(serving["plan_file"]), 0o600)
        self.write(KEY_FILE, f"{SECRET}\n", 0o600)
        self.write("/proc/meminfo", f"MemTotal: {2**27} kB\nMemAvailable: {2**27} kB\n")
        self.write(f"{serving['plan_file']['weights']['path']}/model.safetensors", "x")
        (self.root / "run").mkdir()
        for number, wanted in enumerate(serving["plan_file"]["resolve"]["gids"]):
            port = f"/sys/class/infiniband/{wanted['rdma_device']}/ports/1"
            self.write(f"{port}/gids/{number}", gids.mapped(wanted["address"]) + "\n")
            self.write(f"{port}/gid_attrs/types/{number}", "RoCE v2\n")
            self.write(f"{port}/gid_attrs/ndevs/{number}", wanted["netdev"] + "\n")
        seen = serving["plan_file"]["image"]["identity"]
        image = {
            "Id": seen["id"],
            "RepoDigests": seen["repo_digests"],
            "RootFS": {"Layers": seen["layers"]},
            "Architecture": seen["architecture"],
        }
        self.write("bin/docker", DOCKER.format(image=image, record=str(self.root / "docker.json")), 0o755)

    def start(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*NAMESPACES, "sh", "-c", NODE, "sh", str(self.root)],
            env={"PATH": f"{self.root / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin", "LEAKED": "from the caller"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def read(self, path: str) -> Any:
        return json.loads((self.root / path.lstrip("/")).read_text(encoding="utf-8"))

    def holding(self, folder: Path) -> list[Path]:
        """Files below a folder in which the key stands."""
        return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_value_arrives_intact_and_does_nothing_on_its_way(
    project: Path, tmp_path: Path, case: dict[str, str]
) -> None:
    marker = tmp_path / "injected"
    value = case["value"].replace("MARKER", str(marker))
    plan = planned(project, value)
    serving = serving_of(plan, 0)
    machine = Machine(tmp_path / "root")
    machine.install(project, plan, 0)
    done = machine.start()
    assert done.returncode == 0, done.stderr
    got = machine.read("docker.json")
    argv, environment = got["argv"], got["environment"]
    assert argv[1:] == serving["argv"][1:]
    assert argv[argv.index("--chat-template") + 1] == value
    assert json.loads(argv[argv.index("--hf-overrides") + 1]) == {"deep": {"text": value}}
    assert any(part.startswith(f"{MODELS_DIR}/") for part in argv)
    assert environment["HOSTILE"] == value
    assert "HOSTILE" in argv
    assert "LEAKED" not in environment
    assert not marker.exists()
    assert argv[argv.index("--entrypoint") + 1] == "vllm"
    recorded = machine.read(RANK_PATH)
    assert (recorded["argv"][1:], recorded["environment"]["HOSTILE"]) == (argv[1:], value)
    # Neither ps, nor docker inspect, nor a result shows the key: only the file does, on the head.
    assert SECRET not in json.dumps([got, recorded, configuration(plan)]) + done.stdout + done.stderr
    held = machine.holding(machine.root)
    assert len(held) == 2
    assert {path.stat().st_mode & 0o777 for path in held} == {0o600}


def test_a_worker_starts_from_the_same_bytes_and_never_sees_the_key(project: Path, tmp_path: Path) -> None:
    plan = planned(project, "plain")
    sums = []
    for rank in (0, 1):
        machine = Machine(tmp_path / str(rank))
        machine.install(project, plan, rank)
        assert machine.start().returncode == 0
        sums.append({p.name: p.read_bytes() for p in (machine.root / bundle.PREFIX.lstrip("/")).iterdir()})
    assert sums[0] == sums[1]
    assert "--headless" in machine.read("docker.json")["argv"]
    assert machine.holding(machine.root / "run") == []


def test_a_changed_byte_is_named_by_the_start_itself(project: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "root")
    machine.install(project, planned(project, "plain"), 0)
    with (machine.root / bundle.LAUNCH.lstrip("/")).open("a") as out:
        out.write("# tuned\n")
    done = machine.start()
    assert done.returncode == REFUSED
    assert [item["code"] for item in machine.read(REFUSAL_PATH)["findings"]] == ["LAUNCHER_ALTERED"]
    assert not (machine.root / "docker.json").exists()
