"""One rank of the all-reduce, on its node: a job that runs the program in the serving image and reports.

The container is removed whatever happens here. Should this process be killed as well, the program ends by itself when
its peers are gone, and Docker removes the container then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from . import collective, engine_log, rank
from .bundle import ALLREDUCE
from .findings import Finding, fatal, finding
from .jobs import JobFailedError, Reporter
from .parse.ethtool import parse_counters
from .parse.nccl import parse_log
from .plan.types import CONTAINER_NAME
from .rank import HERE, Place

# Docker, the interpreter and the imports of PyTorch, on a machine that reads them from a cold disk.
START_S = 240
LOG_BYTES = 4 * 2**20
# SIGKILL and SIGTERM, of the program in its container and of Docker's client.
KILLED = (137, 143, -9, -15)
LOOK_AT_THE_OTHER = "See the finding for the other node first; if there is none, run ansible-playbook site.yml."
TAIL_LINES = 400


def collective_job(spec: Mapping[str, Any], reporter: Reporter, place: Place = HERE) -> dict[str, Any]:
    plan, node = spec["plan"], reporter.node
    reporter.stage("checks")
    said = rank.check_bundle(place, node)
    found, image, indexes, extra = look(place, node, spec)
    stopping = fatal([*said, *found])
    if stopping:
        raise JobFailedError(*stopping)
    remove(place)
    record = rank.start_record({**plan, "environment": variables_of(spec)}, image, indexes, extra, place)
    argv = collective.container_argv(record["argv"], spec, script=ALLREDUCE)
    environment = {**record["environment"], **collective.added_variables(spec)}
    with folder_for_log(place) as folder:
        before = [counters(place, rail) for rail in plan["rails"]]
        began = time.monotonic()
        result = watch(argv, environment, spec, reporter, place)
        after = [counters(place, rail) for rail in plan["rails"]]
        log = parse_log(nccl_lines(folder / collective.NCCL_LOG))
    rails = [
        rail_report(rail, then, now, rdma=plan["transport"] == "rdma" and spec["backend"] == "nccl")
        for rail, then, now in zip(plan["rails"], before, after, strict=True)
    ]
    gloo = f"gloo on {environment.get('GLOO_SOCKET_IFNAME', 'the interface of its choice')}"
    return {
        "changed": False,
        "node": node,
        "result": result,
        "transport": (log.transport or "unknown") if spec["backend"] == "nccl" else gloo,
        "log": {**asdict(log), "transport": log.transport, "over_sockets": log.over_sockets},
        "rails": rails,
        "gids": dict(indexes),
        "argv": argv,
        "environment": environment,
        "image": dict(image),
        "script_sha256": rank.sha256(place.path(ALLREDUCE)),
        "seconds": round(time.monotonic() - began, 1),
    }


def variables_of(spec: Mapping[str, Any]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in spec["environment"])
    return {name: value for name, _equals, value in pairs}


# --- before ----------------------------------------------------------------------------------------------------------


def look(
    place: Place, node: str, spec: Mapping[str, Any]
) -> tuple[list[Finding], dict[str, Any], dict[str, int], dict[str, str]]:
    """What stands against the run on this node now, its image, its GIDs, and the variables that follow from them."""
    plan = spec["plan"]
    said = serving(place, node, allowed=bool(spec["while_serving"]))
    if any(item.code == "DOCKER_SILENT" for item in said):
        return said, {}, {}, {}
    found, image = rank.check_image(place, node, plan["image"])
    said += found
    indexes: dict[str, int] = {}
    extra: dict[str, str] = {}
    if plan["transport"] == "rdma" and plan["resolve"]["gids"]:
        found, indexes, extra = rank.check_gids(place, plan)
        said += found
    if plan["rank"] == 0:
        said += rank.check_ports(place, node, [spec["port"]])
    said += rank.check_memory(place, node, collective.NEEDED_BYTES[spec["backend"]], settle_s=0)
    return said, image, indexes, extra


def serving(place: Place, node: str, *, allowed: bool) -> list[Finding]:
    """Whether a rank runs here now, which the plan of some seconds ago need not know."""
    try:
        box = rank.container(place)
    except OSError as error:
        expected = "docker container inspect answers"
        return [finding("DOCKER_SILENT", node=node, found=str(error), expected=expected)]
    unit = rank.unit(place).get("ActiveState", "unknown")
    if allowed or not ((box and box["running"]) or unit in ("active", "activating", "reloading")):
        return []
    since = f"runs since {box['started_at']}" if box and box["running"] else "does not run"
    found = f"container {CONTAINER_NAME} {since}, and its unit is {unit}"
    return [finding("COLLECTIVE_WHILE_SERVING", node=node, found=found, expected="no rank that serves")]


@contextlib.contextmanager
def folder_for_log(place: Place) -> Iterator[Path]:
    """Where the program may write, whatever user its image runs as: open to all, below a folder that is root's."""
    folder = place.path(collective.FOLDER)
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(mode=0o700, parents=True)
    folder.mkdir()
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def remove(place: Place) -> bool:
    """Remove the container of this or an earlier run; one of that name that is not ours stays, and Docker says so."""
    filters = ["--filter", f"name=^/?{collective.CONTAINER}$", "--filter", f"label={collective.LABEL}"]
    for found in place.run(["docker", "ps", "--all", "--quiet", *filters], timeout_s=20).stdout.split():
        place.run(["docker", "rm", "--force", found], timeout_s=60)
        return True
    return False


# --- during ----------------------------------------------------------------------------------------------------------


def watch(
    argv: Sequence[str],
    environment: Mapping[str, str],
    spec: Mapping[str, Any],
    reporter: Reporter,
    place: Place,
) -> dict[str, Any]:
    """Run the program and follow what it says; its silence ends it, and how it ended is named."""
    reporter.stage("starts the container")
    progress = Progress(spec, reporter)
    with container(argv, environment, place) as lines:
        while True:
            try:
                line = lines(progress.limit_s)
            except TimeoutError:
                progress.silent(progress.step, progress.limit_s)
                break
            if line is None:
                progress.ended(lines.status())
                break
            progress.take(line)
            if progress.over:
                break
    if progress.failure is not None:
        raise JobFailedError(progress.failure)
    return progress.result


class Progress:
    """How far the program is, from what it prints. With ``result`` in hand nothing that follows makes it a failure."""

    def __init__(self, spec: Mapping[str, Any], reporter: Reporter) -> None:
        self.spec, self.reporter, self.node = spec, reporter, reporter.node
        self.step, self.limit_s = "start of the container", float(START_S)
        self.result: dict[str, Any] = {}
        self.failure: Finding | None = None
        self.over = False
        self.done = 0
        self.tail: list[str] = []

    def take(self, line: str) -> None:
        said = event(line)
        if said is None:
            self.tail = [*self.tail[-TAIL_LINES:], line]
            return
        what = said.pop("allreduce")
        silence_s = float(self.spec["silence_s"])
        if what == "ready":
            self.enter("meeting of the ranks", float(self.spec["join_s"]) + silence_s)
        elif what == "joined":
            self.enter("warming up", silence_s + 5)
        elif what == "size":
            self.done += 1
            size = collective.shown_bytes(said["bytes"])
            self.enter(f"all-reduce after {size}", silence_s + 5)
            self.reporter.stage(f"{self.done} of {len(self.spec['sizes'])} sizes, {size}")
        elif what == "result":
            self.result = {**said, "graph": {}, "graph_why": ""}
            self.enter("end", silence_s + 5)
        elif what == "graph":
            self.result |= {"graph": said["microseconds"], "graph_why": said["why"]}
        elif what == "stalled":
            self.silent(said["step"], said["seconds"])

    def enter(self, step: str, limit_s: float) -> None:
        self.step, self.limit_s = step, limit_s
        self.reporter.stage(step)

    def silent(self, step: str, seconds: float) -> None:
        self.over = True
        self.fail(stalled(self.node, step, seconds, self.tail))

    def ended(self, status: int) -> None:
        self.over = True
        if status or not self.result:
            self.fail(died(self.node, self.spec["plan"]["rank"], status, self.step, self.tail))

    def fail(self, found: Finding) -> None:
        if self.result:
            self.result["graph_why"] = self.result["graph_why"] or f"{found.code}: {found.found}"
        else:
            self.failure = found


class Lines:
    """Lines of a process as they come, each waited for with a limit; None at its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.queue: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.queue.put(line.rstrip())
        self.queue.put(None)

    def __call__(self, limit_s: float) -> str | None:
        try:
            return self.queue.get(timeout=limit_s)
        except queue.Empty as empty:
            raise TimeoutError from empty

    def status(self) -> int:
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def container(argv: Sequence[str], environment: Mapping[str, str], place: Place) -> Iterator[Lines]:
    """Docker's client as a child. Leaving ends the container, not only the client."""
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        list(argv),
        env={**own, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        yield Lines(process)
    finally:
        remove(place)
        if process.poll() is None:
            process.kill()
            process.wait()


def event(line: str) -> dict[str, Any] | None:
    """What the program says of itself; anything else in its output is the image's or PyTorch's."""
    if not line.startswith('{"allreduce"'):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def stalled(node: str, step: str, seconds: float, tail: Sequence[str]) -> Finding:
    """Silence is a consequence where the output names a cause: NCCL only logs that its peer is gone, and waits on."""
    found = f"no sign for {seconds:.0f} s in: {step}"
    expected = "the next step within its limit"
    return _named(node, found, expected, tail) or finding(
        "COLLECTIVE_STALLED", node=node, found=found, expected=expected, evidence=engine_log.tail(tail)
    )


def died(node: str, number: int, status: int, step: str, tail: Sequence[str]) -> Finding:
    """Why the program ended without a result: the cause that its output names, or what it said last."""
    found = f"rank {number} of the all-reduce ended with status {status} in: {step}"
    expected = "a result"
    evidence = engine_log.tail(tail) or ["it printed nothing"]
    named = _named(node, found, expected, tail)
    if named is not None:
        return named
    if status in KILLED:
        remedy = f"Look for who did it on {node}: sudo journalctl -n 100 --no-pager, sudo dmesg | tail; then try again."
        return finding("RANK_KILLED", node=node, found=found, expected=expected, evidence=evidence, remedy=remedy)
    attach = "the result file of this run"
    return finding("UNKNOWN_CAUSE", node=node, found=found, expected=expected, evidence=evidence, attach=attach)


def _named(node: str, found: str, expected: str, tail: Sequence[str]) -> Finding | None:
    cause = engine_log.cause(tail)
    if cause is None:
        return None
    rest = [line for line in engine_log.tail(tail) if line != cause.line]
    remedy = LOOK_AT_THE_OTHER if cause.code == "PEER_LOST" else None
    return finding(cause.code, node=node, found=found, expected=expected, evidence=[cause.line, *rest], remedy=remedy)


# --- after -----------------------------------------------------------------------------------------------------------


def nccl_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            return stream.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def counters(place: Place, rail: Mapping[str, Any]) -> dict[str, int]:
    """Every counter of a rail's function that may tell what it carried."""
    netdev, device = rail["netdev"], rail["rdma_device"]
    folders = [place.path(f"/sys/class/net/{netdev}/statistics")]
    told: dict[str, int] = {}
    if device:
        seen = place.run(["ethtool", "-S", netdev], timeout_s=10)
        if seen.ok:
            # The interface's own names are in both; the kernel's are taken, which every driver has.
            told = {name: value for name, value in parse_counters(seen.stdout).items() if "_" in name}
        folders += [
            place.path(f"/sys/class/infiniband/{device}/ports/1/{name}") for name in ("counters", "hw_counters")
        ]
    for folder in folders:
        if folder.is_dir():
            for path in folder.iterdir():
                with contextlib.suppress(OSError, ValueError):
                    told[path.name] = int(path.read_text())
    return told


def rail_report(
    rail: Mapping[str, Any], before: Mapping[str, int], after: Mapping[str, int], *, rdma: bool
) -> dict[str, Any]:
    counted, sent, received, moved = collective.carried(before, after, rdma=rdma)
    return {
        "rail": rail["rail"],
        "netdev": rail["netdev"],
        "rdma_device": rail["rdma_device"],
        "counted": counted,
        "sent": sent,
        "received": received,
        "moved": moved,
    }
