"""Keeps the listeners of one node for as long as a measurement may take, and tells the other end what its node counted.

A copy of this file runs by itself as one transient unit, so it imports nothing of this package. All listeners are its
children: the unit's end is theirs, and it ends when every client said so, at its end time, or when systemd's limit on
the unit comes first. Who may reach a rail's address may ask; the answers are counters.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

# What is told of `ethtool -S`: the wire, RDMA, and everything that means loss.
TOLD = (
    *("vport_rdma", "_phy", "discard", "out_of_buffer", "pause", "corrected", "symbol_err", "link_down"),
    *("pci_signal", "pci_stalled", "steer_missed"),
)
# The same for traffic as it flows: hardware counts RDMA payload in words of four bytes, soft-RoCE counts packets.
_MOVING = (
    ("counters/port_xmit_data", "counters/port_rcv_data", 4, "bytes"),
    ("hw_counters/sent_pkts", "hw_counters/rcvd_pkts", 1, "packets"),
)
_LISTENING = "0A"

Said = Callable[[list[str]], "str | None"]


def said(argv: list[str]) -> str | None:
    """Output of a command, None where it failed."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=15, check=False)
        return done.stdout if done.returncode == 0 else None
    return None


def port_folder(rail: Mapping[str, Any], root: Path) -> Path | None:
    """The port of a rail's RDMA device in sysfs; None over TCP."""
    if not rail.get("device"):
        return None
    return root / "sys/class/infiniband" / str(rail["device"]) / "ports" / str(rail.get("ib_port") or 1)


def whole(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def moving(rail: Mapping[str, Any], root: Path = Path("/")) -> tuple[int, int] | None:
    """What a rail's function has sent and received, in a unit of its own; cheap enough for twice a second.

    Without an RDMA device, and where its driver counts nothing, the network interface speaks.
    """
    folder = port_folder(rail, root)
    pairs = [] if folder is None else [(folder / sent, folder / got, words) for sent, got, words, _ in _MOVING]
    statistics = root / "sys/class/net" / str(rail["netdev"]) / "statistics"
    for sent_path, got_path, words in [*pairs, (statistics / "tx_bytes", statistics / "rx_bytes", 1)]:
        sent, got = whole(sent_path), whole(got_path)
        if sent is not None and got is not None:
            return sent * words, got * words
    return None


def counters(rail: Mapping[str, Any], root: Path = Path("/"), tell: Said = said) -> dict[str, int]:
    """Counters of a rail's function: of the hardware where it has them, of soft-RoCE and of the interface elsewhere."""
    found: dict[str, int] = {}
    text = tell(["ethtool", "-S", str(rail["netdev"])]) or ""
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        # Integers throughout: a float loses the low bits of what passes 2**53.
        if colon and value.isdecimal() and len(value) <= 30 and any(part in name for part in TOLD):
            found[name] = int(value)
    folders = [root / "sys/class/net" / str(rail["netdev"]) / "statistics"]
    port = port_folder(rail, root)
    if port is not None:
        folders += [port / "counters", port / "hw_counters"]
    for folder in folders:
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                value_now = whole(path)
                if value_now is not None and path.name != "lifespan":
                    found[path.name] = value_now
    return found


def listening(proc: Path = Path("/proc/net")) -> set[int]:
    """Ports on which something listens, as the kernel says; a connection would use a listener up."""
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


class Keeper:
    """The listeners of a node, by the ``spec`` that run.listen wrote."""

    def __init__(self, spec: Mapping[str, Any], root: Path = Path("/")) -> None:
        self.spec = spec
        self.root = root
        self.folder = Path(spec["folder"])
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.until: dict[int, float] = {}
        self.done: set[str] = set()
        self.again: set[int] = set()
        self.began = time.monotonic()

    def start(self) -> None:
        for listener in self.spec["listeners"]:
            self.start_one(listener)

    def start_one(self, listener: Mapping[str, Any]) -> None:
        port = int(listener["port"])
        with (self.folder / f"{port}.out").open("wb") as out, (self.folder / f"{port}.err").open("wb") as err:
            try:
                child = subprocess.Popen(listener["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except OSError as wrong:
                err.write(f"{listener['argv'][0]}: {wrong.strerror}\n".encode())
                return
        self.children[port] = child
        self.until[port] = self.began + float(listener["end_s"])

    def start_again(self, ports: Iterable[int]) -> list[int]:
        """Listeners whose client came and went, for one more; each once, and with the end time that it had."""
        known = {int(listener["port"]): listener for listener in self.spec["listeners"]}
        started = []
        for port in ports:
            if port not in known or port in self.again:
                continue
            self.again.add(port)
            child = self.children.get(port)
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            self.start_one(known[port])
            started.append(port)
        return started

    def status(self) -> dict[str, Any]:
        """Which listeners wait, and how the others ended. One that could not be started at all counts as ended."""
        open_ports = listening(self.root / "proc/net")
        wanted = [int(listener["port"]) for listener in self.spec["listeners"]]
        ended = {port: (self.children[port].poll() if port in self.children else 127) for port in wanted}
        return {
            "listening": [port for port in wanted if port in open_ports and ended[port] is None],
            "ended": {str(port): rc for port, rc in ended.items() if rc is not None},
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        want = request.get("want")
        if want == "counters":
            return {"counters": [counters(rail, self.root) for rail in self.spec["rails"]], "at": time.time()}
        if want == "listeners":
            return {"listeners": self.outcome()}
        if want == "status":
            return self.status()
        if want == "again":
            return {"started": self.start_again(request.get("ports") or [])}
        if want == "done":
            self.done.add(str(request.get("who")))
            return {"left": max(0, int(self.spec["clients"]) - len(self.done))}
        return {"error": f"{want!r} is not answered"}

    def outcome(self) -> dict[str, dict[str, Any]]:
        """What each listener printed, and its exit status where it ended."""
        found = {}
        for port, child in self.children.items():
            texts = {}
            for kind in ("out", "err"):
                with contextlib.suppress(OSError):
                    texts[kind] = (self.folder / f"{port}.{kind}").read_text(errors="replace")[-4000:]
            found[str(port)] = {"rc": child.poll(), **texts}
        return found

    def finished(self) -> bool:
        return len(self.done) >= int(self.spec["clients"])

    def end_late(self) -> None:
        """Each listener has an end time of its own: a run that never came, or one that hangs, ends here."""
        for port, child in self.children.items():
            if child.poll() is None and time.monotonic() >= self.until[port]:
                child.kill()

    def end(self) -> None:
        for child in self.children.values():
            if child.poll() is None:
                child.kill()

    def write_status(self) -> dict[str, Any]:
        now = self.status()
        temporary = self.folder / "status.json.new"
        temporary.write_text(json.dumps(now))
        temporary.replace(self.folder / "status.json")
        return now


def open_doors(addresses: Iterable[str], port: int) -> list[socket.socket]:
    """The ask port on each rail's address. An address that is gone is somebody else's finding."""
    doors = []
    for address in addresses:
        with contextlib.suppress(OSError):
            doors.append(socket.create_server((address, port), backlog=4))
    return doors


def serve(keeper: Keeper) -> None:
    spec = keeper.spec
    keeper.start()
    waiting = selectors.DefaultSelector()
    for door in open_doors([rail["address"] for rail in spec["rails"]], int(spec["ask_port"])):
        waiting.register(door, selectors.EVENT_READ)
    until = keeper.began + float(spec["life_s"])
    settled = False
    try:
        while time.monotonic() < until and not keeper.finished():
            if not settled:
                now = keeper.write_status()
                settled = len(now["listening"]) + len(now["ended"]) == len(spec["listeners"])
            for key, _ in waiting.select(timeout=0.5 if settled else 0.1):
                asked: Any = key.fileobj
                # Whoever reaches the address may write: what is no question is passed over.
                with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
                    connection, _peer = asked.accept()
                    with connection:
                        connection.settimeout(5)
                        request = json.loads(connection.makefile("rb").readline(4096))
                        connection.sendall(json.dumps(keeper.answer(request)).encode() + b"\n")
            keeper.end_late()
    finally:
        keeper.end()


def ask(addresses: Iterable[str], port: int, request: Mapping[str, Any], timeout_s: float = 8) -> dict[str, Any] | None:
    """A keeper's answer over the first rail on which it answers, None where none does."""
    for address in addresses:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with socket.create_connection((address, port), timeout=timeout_s) as connection:
                connection.sendall(json.dumps(dict(request)).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline())
            if isinstance(answer, dict):
                return answer
    return None


def _end(*_: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    os.umask(0o077)
    serve(Keeper(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
