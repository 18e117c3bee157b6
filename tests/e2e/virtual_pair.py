"""The virtual Sparks as the end-to-end tests see them: playbooks by ansible-runner, the nodes by testinfra."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner
from testinfra.backend import base
from testinfra.host import Host

PROJECT = Path(__file__).resolve().parents[2]

# What must be equal before and after a run that claims to have changed nothing: bytes, modes, owners, times, unit
# states, starts.
SNAPSHOT = r"""
import hashlib, json, os, subprocess
def said(*argv):
    for attempt in range(3):  # on a starved machine systemd may not answer in time
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
    return f"rc {done.returncode}"
files = {}
ours = "/usr/local/lib/spark-cluster /var/lib/spark-cluster"
for top in f"/etc {ours} /root/.ssh /home/spark/.ssh /home/spark/models".split():
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            whole = os.readlink(path) if os.path.islink(path) else hashlib.sha256(open(path, "rb").read()).hexdigest()
            files[path] = [whole, oct(stat.st_mode), stat.st_uid, stat.st_gid, stat.st_mtime_ns]
# Each measurement of the link records itself; of that record it counts that it is there, and whose it is.
for path in files:
    if path == "/var/lib/spark-cluster/link.json":
        files[path] = ["a measurement", *files[path][1:4], 0]
units = said("systemctl", "list-unit-files", "--no-legend", "--type=service")
inspect = "docker inspect -f '{{.Id}} {{.State.StartedAt}} {{.Image}}'"
containers = said("sh", "-c", f"docker ps -aq --no-trunc 2>/dev/null | xargs -r {inspect}")
active = said("systemctl", "show", "spark-rank.service", "-p", "ActiveState,ActiveEnterTimestampMonotonic,NRestarts")
links = json.loads(said("ip", "-j", "-4", "addr") or "[]")
addresses = [[a["ifname"], [x["local"] for x in a["addr_info"]]] for a in links]
print(json.dumps({"files": files, "units": units, "containers": containers, "rank": active, "addresses": addresses}))
"""


class RootBackend(base.BaseBackend):
    """testinfra over the lab's own root console of a node."""

    NAME = "lab"

    def __init__(self, pair: VirtualPair, node: str) -> None:
        super().__init__(node)
        self.pair, self.node = pair, node

    def run(self, command: str, *args: str, **_: Any) -> base.CommandResult:
        done = self.pair.console(self.node, "sh", "-c", self.get_command(command, *args))
        return self.result(done.returncode, self.encode(command), done.stdout, done.stderr)


@dataclass
class Outcome:
    """What a playbook run did."""

    rc: int
    changed: dict[str, int]
    output: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def result(self, cluster: str) -> dict[str, Any]:
        return self.results[cluster]

    def codes(self, cluster: str, severity: str | None = None) -> set[str]:
        said = self.result(cluster)["findings"]
        return {item["code"] for item in said if severity is None or item["severity"] == severity}


class VirtualPair:
    """One pair of the lab; ``name`` is that of its machines file, its inventory and its cluster.

    A pair that only tests know has both in a ``folder`` of theirs: NAME.yml and NAME/.
    """

    def __init__(self, name: str, nodes: Sequence[str] = ("spark-01", "spark-02"), folder: Path | None = None) -> None:
        self.name = name
        self.nodes = tuple(nodes)
        self.machines = str(folder / f"{name}.yml") if folder else name
        self.inventory = (folder or PROJECT / "inventory") / name

    def lab(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "lab", "--machines", self.machines, *arguments]
        done = subprocess.run(argv, cwd=PROJECT, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        if check and done.returncode:
            raise AssertionError(
                f"{shlex.join(argv)} exited {done.returncode}:\n{done.stdout.decode()}\n{done.stderr.decode()}"
            )
        return done

    def console(self, node: str, *argv: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command on a node as root."""
        return self.lab("exec", node, *argv, check=False)

    def sh(self, node: str, script: str) -> str:
        """Output of a shell script that must succeed on a node, as root."""
        done = self.console(node, "sh", "-c", script)
        assert done.returncode == 0, (
            f"{node}: {script}\nexited {done.returncode}: {done.stdout.decode()}{done.stderr.decode()}"
        )
        return done.stdout.decode()

    def host(self, node: str) -> Host:
        return Host(RootBackend(self, node))

    def snapshot(self) -> dict[str, Any]:
        return {node: json.loads(self.console(node, "python3", "-c", SNAPSHOT).stdout) for node in self.nodes}

    def is_up(self) -> bool:
        return self.lab("status", check=False).returncode == 0

    def factory(self) -> None:
        """Factory state, whatever was there before."""
        self.lab("reset" if self.is_up() else "up")

    def play(self, playbook: str, *, check: bool = False, **variables: Any) -> Outcome:
        """Run an entry playbook as a user would, and collect the result files it wrote."""
        with tempfile.TemporaryDirectory(prefix="spark-e2e-") as scratch:
            settings = {
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": str(PROJECT / "callback_plugins"),
                "ANSIBLE_FORCE_COLOR": "0",
            }
            options: dict[str, Any] = {"cmdline": "--check --diff"} if check else {}
            known = set((PROJECT / "results").glob("*/result.json"))
            done = ansible_runner.run(
                private_data_dir=scratch,
                project_dir=str(PROJECT),
                playbook=playbook,
                inventory=str(self.inventory),
                extravars=variables,
                envvars=settings,
                quiet=True,
                **options,
            )
            stats: Mapping[str, Mapping[str, int]] = done.stats or {}
            output = Path(scratch, "artifacts", done.config.ident, "stdout").read_text(
                encoding="utf-8", errors="replace"
            )
            assert done.rc is not None
            outcome = Outcome(done.rc, dict(stats.get("changed", {})), output)
        for path in sorted(set((PROJECT / "results").glob("*/result.json")) - known):
            result = json.loads(path.read_text(encoding="utf-8"))
            outcome.results[result["cluster"]] = result
        return outcome

    def module(self, node: str, name: str, /, **arguments: Any) -> dict[str, Any]:
        """One module call on one node; returns its result, of a failed call too."""
        with tempfile.TemporaryDirectory(prefix="spark-e2e-") as scratch:
            done = ansible_runner.run(
                private_data_dir=scratch,
                project_dir=str(PROJECT),
                host_pattern=node,
                module=name,
                module_args=json.dumps(arguments),
                inventory=str(self.inventory),
                cmdline="--become",
                envvars={
                    "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                    "ANSIBLE_CALLBACK_PLUGINS": str(PROJECT / "callback_plugins"),
                },
                quiet=True,
            )
            for event in done.events:
                if event["event"] in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
                    found: dict[str, Any] = event["event_data"]["res"]
                    return {**found, "failed": event["event"] != "runner_on_ok"}
        raise AssertionError(f"{name} on {node} returned nothing")


def last_result(cluster: str, play: str) -> dict[str, Any]:
    """The newest result of a play, as results/latest names it."""
    latest = json.loads((PROJECT / "results" / "latest" / cluster / f"{play}.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads((PROJECT / latest["result"]).read_text(encoding="utf-8"))
    return found


def changed_paths(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between two snapshots, by node: empty when nothing was touched."""
    found: dict[str, Any] = {}
    for node in before:
        old, new = before[node], after[node]
        files = sorted(
            path for path in {*old["files"], *new["files"]} if old["files"].get(path) != new["files"].get(path)
        )
        other = [key for key in old if key != "files" and old[key] != new[key]]
        if files or other:
            found[node] = {"files": files, **{key: [old[key], new[key]] for key in other}}
    return found
