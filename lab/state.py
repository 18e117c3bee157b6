"""The state of a pair on the controller: keys, known hosts, processes. Lies in .lab/NAME of the project."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.machines import Machines, Node
from lab.shell import run

PROJECT = Path(__file__).resolve().parent.parent


def write_atomic(path: Path, data: bytes | str, mode: int = 0o600) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        os.fchmod(file.fileno(), mode)
    temporary.replace(path)


def make_key(path: Path, comment: str) -> None:
    """An ed25519 key without a passphrase, its public half beside it with the suffix .pub."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


class State:
    """Files of one pair; everything here belongs to the user, also when sudo made it."""

    def __init__(self, machines: Machines, root: Path | None = None) -> None:
        self.machines = machines
        self.root = root or PROJECT / ".lab" / machines.name
        self.key = self.root / "id_ed25519"
        self.known_hosts = self.root / "known_hosts"
        self.ssh_config = self.root / "ssh_config"
        self.become_password = self.root / "become_password"
        # What a play may want to know of the pair, read by the inventory: engine_source and the like.
        self.facts_file = self.root / "facts.json"
        self.pids = self.root / "pids"
        self.host_keys = self.root / "host_keys"

    def prepare(self) -> None:
        """Make the folder, the controller's key, each node's host key, known_hosts, ssh_config and the password."""
        for folder in (self.root, self.pids, self.host_keys):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        if not self.key.exists():
            make_key(self.key, f"{self.machines.name}-controller")
        if not self.become_password.exists():
            write_atomic(self.become_password, "spark\n")
        known = []
        for node in self.machines.nodes:
            path = self.host_key(node)
            if not path.exists():
                make_key(path, f"root@{node.name}")
            kind, key = path.with_suffix(".pub").read_text().split()[:2]
            known.append(f"[127.0.0.1]:{node.ssh_port} {kind} {key}\n")
        write_atomic(self.known_hosts, "".join(known))
        write_atomic(self.ssh_config, self._ssh_config())
        self.give_to_user()

    def _ssh_config(self) -> str:
        hosts = "".join(f"Host {n.name}\n  HostName 127.0.0.1\n  Port {n.ssh_port}\n" for n in self.machines.nodes)
        return hosts + (
            f'Host *\n  User {self.machines.user}\n  IdentityFile "{self.key}"\n  IdentitiesOnly yes\n'
            f'  StrictHostKeyChecking yes\n  UserKnownHostsFile "{self.known_hosts}"\n'
            "  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n  ConnectTimeout 10\n"
        )

    def host_key(self, node: Node) -> Path:
        """Private ed25519 host key of a node; its public half lies beside it with the suffix .pub."""
        return self.host_keys / node.name

    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def ssh_argv(self, node: str, command: Sequence[str], *options: str) -> list[str]:
        return ["ssh", "-F", str(self.ssh_config), *options, self.machines.node(node).name, *command]

    def facts(self) -> dict[str, Any]:
        try:
            facts = json.loads(self.facts_file.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def add_facts(self, **facts: Any) -> None:
        write_atomic(self.facts_file, json.dumps({**self.facts(), **facts}, indent=1, sort_keys=True) + "\n", 0o644)
        self.give_to_user()

    def give_to_user(self) -> None:
        """Under sudo, hand the files to the user who typed the command; the nodes' disks stay root's."""
        uid, gid = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
        if os.geteuid() or not uid or not gid:
            return
        paths = [self.root.parent, self.root, self.pids, self.host_keys]
        paths += [
            path for folder in (self.root, self.pids, self.host_keys) for path in folder.iterdir() if path.is_file()
        ]
        for path in paths:
            os.lchown(path, int(uid), int(gid))

    # --- processes: ended by pid, and only while the pid is still the process that was started

    def write_pid(self, name: str, pid: int) -> None:
        write_atomic(self.pids / name, f"{pid} {start_time(pid)}\n", 0o644)

    def pid(self, name: str) -> int | None:
        """The recorded process if it still runs."""
        try:
            pid, started = (self.pids / name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == started else None

    def end(self, name: str, patience_s: float = 5) -> None:
        """End a recorded process and forget it."""
        pid = self.pid(name)
        if pid is not None:
            end_process(pid, patience_s)
        (self.pids / name).unlink(missing_ok=True)


def start_time(pid: int) -> str:
    """Kernel start time of a process: with its pid, the identity of it. Empty when there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def end_process(pid: int, patience_s: float) -> None:
    started = start_time(pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if start_time(pid) != started:
                return
            time.sleep(0.05)
