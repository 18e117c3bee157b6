"""Two ends of a copy on this machine: each rail is a pair of loopback addresses, each end a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.spark.transport.channel import OPENSSL_CONF

PROJECT = Path(__file__).resolve().parents[3]
SENDER = ("127.0.10.1", "127.0.11.1")
RECEIVER = ("127.0.10.2", "127.0.11.2")
SECRET = "5a" * 32

END = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from spark import copies, jobs, peer, undo, weights, weights_jobs
from spark.transport import channel, files, receiver, sender
asked = json.loads(sys.argv[2])
said = lambda **words: print(json.dumps(words), flush=True)
exec(asked["before"])
secrets = channel.Credentials.of(asked["secrets"])
items = [files.Item(*item) for item in asked["items"]]
root = os.open(asked["root"], os.O_RDONLY)
warned = lambda kind, text: said(warn=kind, text=text)
if asked["end"] == "receiver":
    def arrived(item, status):
        real = Path(asked["real"], item.path)
        real.parent.mkdir(parents=True, exist_ok=True)
        os.rename(Path(asked["root"], item.path), real)
        said(arrived=item.path)
    listen = receiver.Listen(tuple(asked["addresses"]), tuple(asked["allowed"]), secrets, asked["idle_s"])
    hooks = receiver.Hooks(lambda ports: said(ports=ports), arrived, lambda rails: None, warned)
    got = receiver.receive(listen, items, root, hooks)
    said(complete=got.complete, failed=got.failed, rails=got.rails, ended=got.ended)
else:
    rails = [sender.Rail(f"rail {n}", a, p, l) for n, (a, p, l) in enumerate(asked["rails"])]
    plan = sender.Plan(root, items, rails, secrets, asked["streams"], identity={k: tuple(v) for k, v in
        asked["identity"].items()}, last=frozenset(asked["last"]), stall_s=asked["stall_s"])
    try:
        said(sent=sender.send(plan, sender.Hooks(lambda rails: None, lambda count: said(resumed=count),
            lambda path: said(done=path), warned)))
    except sender.SendError as error:
        said(error=error.kind, text=error.text, path=error.path, evidence=error.evidence)
"""


class End:
    """One end, running; ``said`` are its words so far."""

    def __init__(self, asked: dict[str, Any], log: Path, openssl: Path) -> None:
        openssl.write_text(OPENSSL_CONF)
        self._log = log.open("w+")
        argv = [sys.executable, "-c", END, str(PROJECT / "module_utils"), json.dumps(asked)]
        environment = {**os.environ, "OPENSSL_CONF": str(openssl)}
        self.process = subprocess.Popen(argv, stdout=self._log, env=environment, start_new_session=True)
        self.log = log

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def word(self, name: str, patience_s: float = 40) -> Any:
        """The value of the first word of that name, waited for."""
        ends = time.monotonic() + patience_s
        while True:
            over = self.process.poll() is not None
            for one in self.said:
                if name in one:
                    return one[name]
            if over or time.monotonic() > ends:
                raise AssertionError(f"no word {name!r} among {self.said}")
            time.sleep(0.01)

    def words(self, name: str) -> list[Any]:
        return [one[name] for one in self.said if name in one]

    def wait(self, patience_s: float = 60) -> list[dict[str, Any]]:
        self.process.wait(patience_s)
        return self.said

    def last(self) -> dict[str, Any]:
        return self.wait()[-1]

    def kill(self) -> None:
        """As when the machine stops: the process and all its streams at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def close(self) -> None:
        self.kill()
        self._log.close()


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its children, what they share counted once."""
    pages = 0
    for one in [pid, *children(pid)]:
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        pages += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return pages / 1024


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
