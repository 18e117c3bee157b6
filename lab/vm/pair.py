"""The VM pair as the command line sees it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab import factory, host
from lab.errors import LabError
from lab.machines import Machines, Node
from lab.shell import Progress, run
from lab.state import State, write_atomic
from lab.vm import accel, build, image, qemu

SNAPSHOT = "factory"
# Measured under emulation on two cores: 50 s to the first ssh, 75 s until everything has settled.
BOOT_DEADLINE_S = {"kvm": 90.0, "tcg": 420.0}
MEMORY_GIB = 1.1
# The port answers as soon as QEMU runs; an emulated sshd may need long for its side of the handshake.
PATIENT = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=15")
FIRST_BOOT = "/run/lab-first-boot"


class VmPair:
    """Two machines joined by two cables, each a private link of datagram sockets."""

    # Only the image is built as root, and that step asks for it itself.
    root_commands: frozenset[str] = frozenset()

    def __init__(self, machines: Machines, state: State, progress: Progress) -> None:
        if len(machines.nodes) != 2:
            raise LabError(f"a VM pair has two nodes, {machines.name} has {len(machines.nodes)}")
        self.machines = machines
        self.state = state
        self.progress = progress
        self.folder = state.root

    # --- commands

    def up(self) -> None:
        if all(self._pid(node) and self._answers(node) for node in self.machines.nodes):
            self.progress.say(f"pair {self.machines.name} is up")
            return
        self.down()
        self._require_host()
        self.state.prepare()
        folder = image.ensure(self.machines, self.progress)
        chosen = accel.choose(self.machines.vm.accel, folder, self.progress)
        try:
            chosen = self._boot(folder, chosen)
            self._settle()
            with self.progress.step("snapshot of the factory state"):
                self._snapshot("savevm")
            with self.progress.step("RDMA devices"):
                self._each(self._begin_life)
        except BaseException:
            self._end_machines()
            raise
        self.state.add_facts(accel=chosen)
        self.progress.say(f"pair {self.machines.name} is up")

    def down(self) -> None:
        self._drop_masters()
        if self._end_machines():
            self.progress.say(f"pair {self.machines.name} is down")

    def reset(self) -> None:
        for node in self.machines.nodes:
            if not self._pid(node):
                raise LabError(f"{node.name} does not run", "`lab up`")
        with self.progress.step("factory state from the snapshot"):
            self._drop_masters()
            self._snapshot("loadvm")
            self._each(self._begin_life)

    def status(self) -> dict[str, Any]:
        nodes = {}
        for node in self.machines.nodes:
            pid = self._pid(node)
            nodes[node.name] = {
                "state": "running" if pid else "absent",
                "ssh": f"127.0.0.1:{node.ssh_port}",
                "ssh_answers": bool(pid) and self._answers(node),
                "pid": pid,
            }
        up = all(entry["ssh_answers"] for entry in nodes.values())
        facts = self.state.facts() if up else {}
        return {"name": self.machines.name, "kind": "vm", "up": up, "accel": facts.get("accel"), "nodes": nodes}

    def reboot(self, node: str) -> None:
        one = self.machines.node(node)
        self._restart(one, lambda: self._root(one, "systemctl --no-block reboot", check=False))

    def crash(self, node: str) -> None:
        one = self.machines.node(node)

        def cut() -> None:
            with self._monitor(one) as monitor:
                monitor.execute("system_reset")

        self._restart(one, cut)

    def ssh_argv(self, node: str, command: Sequence[str]) -> list[str]:
        return self.state.ssh_argv(node, command, *PATIENT[2:])

    def exec_argv(self, node: str, command: Sequence[str]) -> list[str]:
        return self.state.ssh_argv(node, [shlex.join(command)] if command else [], "-l", "root", *PATIENT[2:])

    # --- boot

    def _require_host(self) -> None:
        if platform.machine() not in ("x86_64", "amd64"):
            raise LabError(f"the VM pair needs an x86-64 host, this one is {platform.machine()}")
        host.require_ports(node.ssh_port for node in self.machines.nodes)
        host.require_memory(MEMORY_GIB * len(self.machines.nodes))
        if missing := build.missing():
            self.progress.say(f"not installed: {' '.join(missing)}")
            image.as_root("lab.vm.build")

    def _boot(self, folder: Path, chosen: str) -> str:
        """Boot both machines; where KVM was only presumed to work, emulation is the second attempt."""
        try:
            self._start(folder, chosen)
        except LabError as error:
            if chosen != "kvm" or self.machines.vm.accel == "kvm":
                raise
            self.progress.say(f"no boot with KVM, now with emulation: {error.what}")
            self._end_machines()
            chosen = accel.remember("tcg", folder)
            self._start(folder, chosen)
        return chosen

    def _start(self, folder: Path, chosen: str) -> None:
        name = {"kvm": "KVM", "tcg": "emulation"}[chosen]
        with self.progress.step(f"boot of {' and '.join(node.name for node in self.machines.nodes)} ({name})"):
            for index, node in enumerate(self.machines.nodes):
                self._launch(index, node, folder, chosen)
            deadline = time.monotonic() + BOOT_DEADLINE_S[chosen]
            self._each(lambda node: self._wait_for_ssh(node, deadline))

    def _launch(self, index: int, node: Node, folder: Path, chosen: str) -> None:
        names = qemu.files(index)
        for kind in names:
            (self.folder / names[kind]).unlink(missing_ok=True)
        # The first bytes of the seed are the whole of it: it holds the host's key and the user's.
        contents = factory.files(self.machines, self.state, node, factory.Management())
        contents += [
            factory.File("/root/.ssh", mode=0o700, folder=True),
            factory.File("/root/.ssh/authorized_keys", f"{self.state.public_key()}\n".encode(), 0o600),
        ]
        write_atomic(self.folder / names["seed"], factory.as_tar(contents))
        base = ["-b", str(folder / "root.img"), "-F", "raw"]
        run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(self.folder / names["disk"])])
        with open(self.folder / names["log"], "wb") as log:
            process = subprocess.Popen(
                qemu.argv(self.machines, index, folder, chosen),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state.write_pid(node.name, process.pid)

    def _wait_for_ssh(self, node: Node, deadline: float) -> None:
        while not self._answers(node):
            if not self._pid(node):
                raise LabError(f"the machine of {node.name} ended: {self._last_words(node)}")
            if time.monotonic() > deadline:
                raise LabError(f"{node.name} does not answer to ssh: {self._last_words(node)}")
            time.sleep(0.3)

    def _last_words(self, node: Node) -> str:
        names = qemu.files(self.machines.nodes.index(node))
        for kind in ("log", "console"):
            try:
                lines = (self.folder / names[kind]).read_text(errors="replace").strip().splitlines()
            except OSError:
                continue
            if lines:
                return lines[-1]
        return "it said nothing"

    def _settle(self) -> None:
        """A snapshot of machines that are still starting would hand the rest of the start to every reset."""
        with self.progress.step("services"):
            states = self._each(lambda node: self._root(node, "systemctl is-system-running --wait", check=False))
        for node, said in zip(self.machines.nodes, states, strict=True):
            if said.strip() != "running":
                failed = self._root(node, "systemctl --failed --plain --no-legend", check=False).split()
                self.progress.say(f"{node.name} is {said.strip()}: {failed[0] if failed else 'no failed unit'}")

    def _begin_life(self, node: Node) -> None:
        """What a machine needs after its snapshot: the time, and the devices that are made at every later boot."""
        now = f"date -u -s @{time.time():.2f} >/dev/null"
        self._root(node, f"{now}; rm -f {FIRST_BOOT}; systemctl start lab-rdma.service")

    def _restart(self, node: Node, act: Callable[[], object]) -> None:
        if not self._pid(node):
            raise LabError(f"{node.name} does not run", "`lab up`")
        boot_id = "cat /proc/sys/kernel/random/boot_id"
        before = self._root(node, boot_id, check=False)
        with self.progress.step(f"restart of {node.name}"):
            act()
            deadline = time.monotonic() + BOOT_DEADLINE_S["tcg"]
            while self._root(node, boot_id, check=False) in ("", before):
                if not self._pid(node) or time.monotonic() > deadline:
                    raise LabError(f"{node.name} did not come back: {self._last_words(node)}")
                time.sleep(0.5)

    # --- pieces

    def _each(self, act: Callable[[Node], Any]) -> list[Any]:
        """The same on all machines at once."""
        with ThreadPoolExecutor(len(self.machines.nodes)) as pool:
            return list(pool.map(act, self.machines.nodes))

    def _pid(self, node: Node) -> int | None:
        return self.state.pid(node.name)

    def _answers(self, node: Node) -> bool:
        if not self.state.ssh_config.exists():
            return False
        return run(self.state.ssh_argv(node.name, ["true"], *PATIENT), check=False).returncode == 0

    def _root(self, node: Node, script: str, check: bool = True) -> str:
        return run(self.state.ssh_argv(node.name, [script], "-l", "root", *PATIENT), check=check).stdout

    def _monitor(self, node: Node) -> qemu.Monitor:
        return qemu.Monitor(self.folder, self.machines.nodes.index(node))

    def _snapshot(self, command: str) -> None:
        """Save or load on both machines while both stand still, so that neither sees the other at another time."""
        monitors = [self._monitor(node) for node in self.machines.nodes]
        try:
            for monitor in monitors:
                monitor.execute("stop")
            for monitor in monitors:
                monitor.human(f"{command} {SNAPSHOT}")
            for monitor in monitors:
                monitor.execute("cont")
        finally:
            for monitor in monitors:
                monitor.__exit__(None, None, None)

    def _drop_masters(self) -> None:
        """End the ssh connections that Ansible keeps open: the machine at their other end no longer knows them."""
        folder = Path(os.environ.get("ANSIBLE_SSH_CONTROL_PATH_DIR") or Path.home() / ".ansible" / "cp")
        for node in self.machines.nodes:
            # Ansible's name for the connection of this host, port and user.
            known = hashlib.sha1(f"127.0.0.1-{node.ssh_port}-{self.machines.user}".encode(), usedforsecurity=False)
            path = folder / known.hexdigest()[:10]
            if path.exists():
                run(["ssh", "-O", "exit", "-S", str(path), "127.0.0.1"], check=False, timeout=10)
                path.unlink(missing_ok=True)

    def _end_machines(self) -> bool:
        ended = False
        for index, node in enumerate(self.machines.nodes):
            ended = ended or self._pid(node) is not None
            self.state.end(node.name)
            for name in qemu.files(index).values():
                (self.folder / name).unlink(missing_ok=True)
        return ended
