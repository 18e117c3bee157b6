"""Two (or N) Sparks as systemd containers, each with its own Docker, joined by veth pairs in the CX7 names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import factory, host
from lab.containers import image
from lab.containers.network import Network
from lab.containers.podman import COMMANDS, Podman
from lab.engine import seed
from lab.errors import LabError
from lab.factory import Management
from lab.machines import Machines, Node
from lab.registry import FOLDER, Record, Registry
from lab.shell import Progress, run
from lab.state import PROJECT, State, end_process, start_time

FORWARDER = "forwarder"
# There while the mount on /run/netns is the lab's; of no one pair, as the last one to go removes it.
NAMESPACES_MARK = FOLDER / "netns"
# Folders of a node on the disk of the host: nested overlays need a real one, and podman makes the journal volatile.
DISKS = {"docker": "/var/lib/docker", "containerd": "/var/lib/containerd", "journal": "/var/log/journal"}
SSH_PATIENCE_S = 120
MEMORY_GIB = {"engine": 5.5, "plain": 1.0}


class ContainerPair:
    """A pair of kind container."""

    root_commands = frozenset({"up", "down", "reset", "status", "reboot", "crash", "exec"})

    def __init__(self, machines: Machines, state: State, progress: Progress) -> None:
        self.machines = machines
        self.state = state
        self.progress = progress
        self.network = Network(machines)
        self.registry = Registry(machines.name)
        self.podman = Podman(self.registry.folder / "mnt" / "ns")
        self.engine = machines.engine != "none"

    def container(self, node: str) -> str:
        return f"{self.machines.name}-{node}"

    def disk(self, node: Node) -> Path:
        """Where those folders of the node lie that are not in its container: docker and journal."""
        return self.state.root / "nodes" / node.name

    def ports(self) -> list[int]:
        return [node.ssh_port for node in self.machines.nodes] + [forward.listen for forward in self.machines.forwards]

    # --- the commands

    def up(self) -> None:
        host.require_root()
        host.ensure_packages(COMMANDS, self.progress)
        self._take_over()
        if self._is_up():
            self.progress.say(f"pair {self.machines.name} is up")
            return
        # Of half a pair, the forwarder may be left: its ports are not taken by anybody else.
        self.state.end(FORWARDER)
        self._require()
        self.state.prepare()
        self.registry.write(Record(str(PROJECT), str(self.state.root)))
        self._prepare()
        node_image = image.ensure(self.machines, self.podman, self.progress)
        disk = self._engine(node_image)
        with self.progress.step("network, nodes and boot"):
            self.network.up()
            self._nodes(node_image, disk)
        self.progress.say(f"pair {self.machines.name} is up: {self._addresses()}")

    def down(self) -> None:
        host.require_root()
        record = self.registry.read()
        if record and record.state != str(self.state.root) and self._alive(record):
            raise LabError(
                f"pair {self.machines.name} was made by {record.project}, not by this clone", self._elsewhere(record)
            )
        if shutil.which("podman"):
            self._clear()
        self.state.end(FORWARDER)
        self.registry.forget()
        for folder in (self.state.root / "nodes", self.state.pids):
            shutil.rmtree(folder, ignore_errors=True)
        self.progress.say(f"pair {self.machines.name} is down")

    def reset(self) -> None:
        """New nodes from the image; the network and the forwarder go on."""
        host.require_root()
        if self.registry.read() != Record(str(PROJECT), str(self.state.root)):
            raise LabError(f"pair {self.machines.name} is not up", "`lab up` first")
        self.state.prepare()
        node_image = image.ensure(self.machines, self.podman, self.progress)
        disk = self._engine(node_image)
        with self.progress.step("factory state"):
            for node in self.machines.nodes:
                self.podman.remove(self.container(node.name))
            self._nodes(node_image, disk)

    def status(self) -> dict[str, Any]:
        record = self.registry.read()
        nodes = {}
        for node in self.machines.nodes:
            name = self.container(node.name)
            running = bool(record) and shutil.which("podman") is not None and self.podman.running(name)
            ssh = running and self._ssh_answers(node)
            nodes[node.name] = {
                "state": "running" if ssh else "booting" if running else "absent",
                "container": name,
                "namespace": self.network.namespace(node.name),
                "ssh": f"127.0.0.1:{node.ssh_port}",
                "management_address": node.management_address,
            }
        return {
            "name": self.machines.name,
            "kind": self.machines.kind,
            "up": all(node["state"] == "running" for node in nodes.values()),
            "project": record.project if record else None,
            "state": str(self.state.root),
            "nodes": nodes,
            "forwards": [f"127.0.0.1:{f.listen} -> {f.node}:{f.port}" for f in self.machines.forwards],
            "facts": self.state.facts(),
        }

    def reboot(self, node: str) -> None:
        before = self._boot_id(node)
        # The answer is lost with the node's init: only the new boot id counts.
        self.podman.run("exec", self.container(node), "systemctl", "--no-block", "reboot", check=False)
        self._wait_boot(node, before)

    def crash(self, node: str) -> None:
        before = self._boot_id(node)
        name = self.container(node)
        self.podman.run("kill", "--signal", "KILL", name)
        # `restart always` brings it back only after an end of its own: a kill by podman counts as a stop.
        deadline = time.monotonic() + 10
        while self.podman.running(name) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.podman.run("start", name)
        self._wait_boot(node, before)

    def ssh_argv(self, node: str, command: Sequence[str]) -> list[str]:
        return self.state.ssh_argv(node, command)

    def exec_argv(self, node: str, command: Sequence[str]) -> list[str]:
        terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        return self.podman.argv("exec", "--interactive", *terminal, self.container(node), *(command or ["bash", "-l"]))

    # --- who else is there

    def _take_over(self) -> None:
        """Refuse what another clone runs; clear away what it left behind when its processes are gone."""
        record = self.registry.read()
        if record is None:
            foreign = self.network.present() + [n for n in map(self.container, self._names()) if self.podman_exists(n)]
            if foreign:
                raise LabError(
                    f"{', '.join(foreign)}: so named already, and the lab has no record of having made them",
                    "remove them if they are yours (ip netns del, podman rm), or change `name` in the machines file",
                )
            return
        if record.state == str(self.state.root):
            return
        if self._alive(record):
            raise LabError(f"pair {self.machines.name} is up already, from {record.project}", self._elsewhere(record))
        self.progress.say(f"clearing away what an ended run from {record.project} left of pair {self.machines.name}")
        self._clear()
        self.registry.forget()

    def podman_exists(self, container: str) -> bool:
        return self.podman.exists(container) if not self.podman.pinned or host.is_mounted(self.podman.pin) else False

    def _names(self) -> list[str]:
        return [node.name for node in self.machines.nodes]

    def _elsewhere(self, record: Record) -> str:
        return f"`python -m lab --machines {self.machines.name} down` in {record.project}"

    def _alive(self, record: Record) -> bool:
        """Whether anything of the pair runs: a container's init, or the forwarder of that clone."""
        theirs = State(self.machines, Path(record.state))
        if theirs.pid(FORWARDER):
            return True
        self._prepare()
        for node in self._names():
            pid = self.podman.run(
                "inspect", "--format", "{{.State.Pid}}", self.container(node), check=False
            ).stdout.strip()
            if pid.isdigit() and int(pid) and start_time(int(pid)):
                return True
        return False

    # --- steps

    def _prepare(self) -> None:
        self.network.share(NAMESPACES_MARK)
        self.podman.prepare()

    def _require(self) -> None:
        host.require_ports(self.ports())
        host.require_memory(MEMORY_GIB["engine" if self.engine else "plain"])
        host.require_space(self.state.root, 1.0, f"pair {self.machines.name}")

    def _is_up(self) -> bool:
        if (
            self.registry.read() is None
            or not self.state.pid(FORWARDER)
            or len(self.network.present()) < len(self.network.namespaces())
        ):
            return False
        self._prepare()
        return all(self._ssh_answers(node) for node in self.machines.nodes)

    def _engine(self, node_image: str) -> Path | None:
        """The docker data folder that every node starts from, or None for an empty one."""
        if not self.engine:
            return None
        found = seed.ensure(self.machines, node_image, self.podman, self.container("seed"), self.progress)
        self.state.add_facts(**seed.facts(found))
        return found

    def _nodes(self, node_image: str, docker: Path | None) -> None:
        """Create and boot all nodes in factory state; the image is on the head alone."""
        for node in self.machines.nodes:
            self.podman.remove(self.container(node.name))
            shutil.rmtree(self.disk(node), ignore_errors=True)
            for name in DISKS:
                (self.disk(node) / name).mkdir(parents=True)
            if docker and node == self.machines.head:
                seed.plant(docker, self.disk(node) / "docker")
            self._create(node, node_image)
        for node in self.machines.nodes:
            self.podman.run("start", self.container(node.name))
        if not self.state.pid(FORWARDER):
            self._forward()
        for node in self.machines.nodes:
            self._wait_ssh(node)

    def _create(self, node: Node, node_image: str) -> None:
        name = self.container(node.name)
        self.podman.run(
            "create",
            f"--name={name}",
            f"--hostname={node.name}",
            f"--label=spark-lab={self.state.root}",
            "--privileged",
            "--systemd=always",
            f"--network=ns:/run/netns/{self.network.namespace(node.name)}",
            "--no-hosts",
            "--dns=none",
            f"--pids-limit={self.podman.pids_limit}",
            *host.container_ulimits(),
            # Nested containers with --ipc host use the node's /dev/shm.
            "--shm-size=4g",
            # A node that serves a model needs longer than the default 10 s to stop.
            "--stop-timeout=60",
            # A `reboot` inside comes back, as a machine does; podman stop still stops it.
            "--restart=always",
            *(f"--volume={self.disk(node) / name}:{path}" for name, path in DISKS.items()),
            node_image,
            "/lib/systemd/systemd",
        )
        root = self.podman.run("mount", name).stdout.strip()
        try:
            management = Management(address=f"{node.management_address}/{self.machines.management_prefix}")
            tar = factory.as_tar(factory.files(self.machines, self.state, node, management))
            run(
                self.podman.inside(
                    ["tar", "--extract", "--same-owner", "--same-permissions", "--overwrite", "-C", root]
                ),
                stdin=tar,
            )
        finally:
            self.podman.run("umount", name)

    def _forward(self) -> None:
        addresses = {node.name: node.management_address for node in self.machines.nodes}
        rules = [f"{node.ssh_port}:{node.management_address}:22" for node in self.machines.nodes]
        rules += [f"{forward.listen}:{addresses[forward.node]}:{forward.port}" for forward in self.machines.forwards]
        with open(self.state.root / "forwarder.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lab.containers.forwarder", self.network.control, *rules],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state.pids.mkdir(parents=True, exist_ok=True)
        self.state.write_pid(FORWARDER, process.pid)
        time.sleep(0.2)
        if process.poll() is not None:
            said = (self.state.root / "forwarder.log").read_text().strip().splitlines()
            raise LabError(f"the port forwarder ended: {said[-1] if said else 'no word why'}")
        self.state.give_to_user()

    def _clear(self) -> None:
        """Containers, namespaces and the pinned mounts of this pair's names."""
        self._prepare()
        for name in [*map(self.container, self._names()), self.container("seed")]:
            self.podman.remove(name)
        record = self.registry.read()
        if record and record.state != str(self.state.root):
            theirs = State(self.machines, Path(record.state))
            pid = theirs.pid(FORWARDER)
            if pid:
                end_process(pid, 5)
            shutil.rmtree(theirs.root / "nodes", ignore_errors=True)
        self.network.down()
        self.podman.release()
        self.network.unshare(NAMESPACES_MARK)

    # --- waiting

    def _ssh_answers(self, node: Node) -> bool:
        options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "-o", "ControlPath=none")
        return run(self.state.ssh_argv(node.name, ["true"], *options), check=False, timeout=30).returncode == 0

    def _wait_ssh(self, node: Node) -> None:
        deadline = time.monotonic() + SSH_PATIENCE_S
        while not self._ssh_answers(node):
            if not self.podman.running(self.container(node.name)):
                logs = self.podman.run("logs", "--tail", "5", self.container(node.name), check=False)
                raise LabError(f"{node.name} does not run: {(logs.stdout + logs.stderr).strip()}")
            if time.monotonic() > deadline:
                state = self._systemctl(node.name, "--failed", "--no-legend")
                raise LabError(
                    f"{node.name}: no ssh after {SSH_PATIENCE_S} s; failed units: {state or 'none'}",
                    f"`lab exec {node.name} journalctl -b` shows why",
                )
            time.sleep(0.2)

    def _systemctl(self, node: str, *arguments: str) -> str:
        return self.podman.run("exec", self.container(node), "systemctl", *arguments, check=False).stdout.strip()

    def _boot_id(self, node: str) -> str:
        return self.podman.run(
            "exec", self.container(node), "cat", "/proc/sys/kernel/random/boot_id", check=False
        ).stdout.strip()

    def _wait_boot(self, node: str, before: str) -> None:
        deadline = time.monotonic() + SSH_PATIENCE_S
        while self._boot_id(node) in ("", before):
            if time.monotonic() > deadline:
                raise LabError(f"{node} did not boot again within {SSH_PATIENCE_S} s")
            time.sleep(0.2)
        self._wait_ssh(self.machines.node(node))

    def _addresses(self) -> str:
        return ", ".join(f"{node.name} at 127.0.0.1:{node.ssh_port}" for node in self.machines.nodes)
