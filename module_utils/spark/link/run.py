"""Start listeners that end by themselves, and run all clients of a pair at the same time."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..findings import Finding, fatal, finding
from ..gids import Resolved
from ..parse import perftest
from ..parse.ethtool import parse_counters
from ..parse.sockets import parse_listeners
from ..runner import NOT_FOUND_RC, Completed, Run
from . import tcp
from .verdict import Failure, Stream, failed, judge, overlap, threshold, total

FOLDER = Path("run/spark-cluster/link")
LAST = Path("run/spark-cluster/link.json")
# Between the start of the listeners and that of the clients lie a few tasks; on a loaded machine each takes a minute.
PATIENCE_S = 240
# Connecting, registering memory and perftest's own margins.
SLACK_S = 30
# Starting an interpreter takes each sender its own time; they are told a common moment to begin.
LEAD_S = 1.5
_TOLD = ("vport_rdma", "bytes_phy", "packets_phy", "discard", "out_of_buffer", "pause", "corrected", "symbol_err")


@dataclass(frozen=True)
class Lane:
    """One rail towards one peer."""

    rail: int
    netdev: str
    address: str
    port: int
    peer: str = ""
    peer_address: str = ""
    gid: Resolved | None = None


class Place:
    """The commands and the file system of one machine; ``root`` is another folder in tests."""

    def __init__(self, run: Run, root: Path = Path("/"), python: str = "/usr/bin/python3") -> None:
        self.run = run
        self.root = root
        self.python = python

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def install_tcp(self) -> Path:
        """Put the stream program where it runs; it is gone with the next boot."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / "tcp.py"
        path.write_text(inspect.getsource(tcp), encoding="utf-8")
        return path


def lanes_of(rails: Sequence[Mapping[str, Any]], ports: Sequence[int], gids: Sequence[Resolved] = ()) -> list[Lane]:
    """The lanes of a node towards nobody in particular, as a listener needs them."""
    by_rail = {gid.rail: gid for gid in gids}
    return [
        Lane(rail["rail"], rail["netdev"], rail["address"], ports[position], gid=by_rail.get(rail["rail"]))
        for position, rail in enumerate(rails)
    ]


def lanes_to(
    peer: str, rails: Sequence[Mapping[str, Any]], ports: Sequence[int], gids: Sequence[Resolved] = ()
) -> list[Lane]:
    """The lanes of a node towards one peer."""
    addresses = {rail["rail"]: rail["peer_addresses"][peer] for rail in rails}
    return [replace(lane, peer=peer, peer_address=addresses[lane.rail]) for lane in lanes_of(rails, ports, gids)]


def serving(run: Run) -> str | None:
    """What of ours serves on this node, None where nothing does."""
    unit = run(["systemctl", "is-active", "spark-rank.service"])
    if unit.stdout.strip() in ("active", "activating", "reloading"):
        return f"spark-rank.service is {unit.stdout.strip()}"
    container = run(["docker", "ps", "-q", "--filter", "name=^/?spark-rank$", "--filter", "status=running"])
    if container.ok and container.stdout.strip():
        return f"container spark-rank {container.stdout.strip()[:12]} is running"
    return None


# --- listening -------------------------------------------------------------------------------------------------------


def unit_of(port: int) -> str:
    return f"spark-link-{port}.service"


def listen_argv(lane: Lane, seconds: int, life_s: int, place: Place) -> list[str]:
    if lane.gid is None:
        return [place.python, "-I", str(place.folder / "tcp.py"), "receive", lane.address, str(lane.port), str(life_s)]
    return _perftest(lane.gid, lane.port, seconds)


def _perftest(gid: Resolved, port: int, seconds: int) -> list[str]:
    # -F: a frequency governor that scales would otherwise end the run with "Can't produce a report" on some machines.
    argv = ["ib_write_bw", "-d", gid.rdma_device, "-i", str(gid.port), "-x", str(gid.index), "-p", str(port)]
    return [*argv, "-D", str(seconds), "--report_gbits", "-F"]


def listen(
    place: Place,
    node: str,
    lanes: Sequence[Lane],
    seconds: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Start one listener per lane and see all of them listen. Each ends after its client, or at its own end time."""
    life_s = seconds + PATIENCE_S
    found = clear(place, node, lanes)
    if not fatal(found):
        found += [_no_tool(node) for lane in lanes[:1] if lane.gid is not None and not _has_perftest(place)]
    if fatal(found):
        return [], found
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(lane.gid is None for lane in lanes):
        place.install_tcp()
    started = []
    for lane in lanes:
        argv = listen_argv(lane, seconds, life_s, place)
        out, err = (place.folder / f"{lane.port}.{kind}" for kind in ("out", "err"))
        place.run(
            [
                "systemd-run",
                f"--unit={unit_of(lane.port)}",
                f"--description=Link check, listener of rail {lane.rail}",
                "--collect",
                f"--property=RuntimeMaxSec={life_s}",
                f"--property=StandardOutput=truncate:{out}",
                f"--property=StandardError=truncate:{err}",
                *argv,
            ],
            check=True,
        )
        started.append(
            {"rail": lane.rail, "port": lane.port, "unit": unit_of(lane.port), "argv": argv, "life_s": life_s}
        )
    until = clock() + 15
    while True:
        open_ports = {listener["port"] for listener in _listeners(place)}
        silent = [lane for lane in lanes if lane.port not in open_ports]
        ended = [lane for lane in silent if not _active(place, lane.port)]
        if not silent or ended or clock() >= until:
            break
        sleep(0.3)
    for lane in silent:
        found.append(_did_not_start(place, node, lane))
    if silent:
        stop(place, lanes)
    return started, found


def _has_perftest(place: Place) -> bool:
    # It exits 1 after printing its version.
    return place.run(["ib_write_bw", "--version"]).rc != NOT_FOUND_RC


def _no_tool(node: str) -> Finding:
    return finding("LINK_TOOL_MISSING", node=node, found="no program ib_write_bw", expected="perftest")


def clear(place: Place, node: str, lanes: Sequence[Lane]) -> list[Finding]:
    """Nothing may listen on the ports: our own leftovers are stopped and named, anything else is left alone and
    refused."""
    found = []
    wanted = {lane.port: lane for lane in lanes}
    for listener in _listeners(place):
        lane = wanted.get(listener["port"])
        if lane is None:
            continue
        if _active(place, lane.port):
            place.run(["systemctl", "stop", unit_of(lane.port)])
            found.append(
                finding(
                    "LINK_LISTENER_STALE",
                    node=node,
                    found=f"{listener['process'] or unit_of(lane.port)} on port {lane.port}, from an earlier run",
                    expected="a free port",
                )
            )
        else:
            found.append(
                finding(
                    "LINK_PORT_BUSY",
                    node=node,
                    found=f"{listener['process'] or 'a program'} listens on {listener['address']}:{lane.port}",
                    expected=f"port {lane.port} free for rail {lane.rail}",
                    process=listener["process"] or "what holds it",
                )
            )
    return found


def stop(place: Place, lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        place.run(["systemctl", "stop", unit_of(lane.port)])


def _listeners(place: Place) -> list[Any]:
    return list(parse_listeners(place.run(["ss", "-ltnpH"], check=True).stdout))


def _active(place: Place, port: int) -> bool:
    return place.run(["systemctl", "is-active", unit_of(port)]).stdout.strip() in ("active", "activating")


def _did_not_start(place: Place, node: str, lane: Lane) -> Finding:
    texts = []
    for kind in ("out", "err"):
        path = place.folder / f"{lane.port}.{kind}"
        texts.append(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "")
    failure = failure_of(Completed((), 1, texts[0], texts[1]), over_tcp=lane.gid is None)
    stream = Stream(lane.rail, lane.netdev, node, lane.port, 0, 0, failure=failure)
    if failure is not None and failure.kind not in ("unknown", "no_result"):
        return failed(node, stream)
    return finding(
        "LINK_LISTENER_FAILED",
        node=node,
        found=f"nothing listens on port {lane.port} for rail {lane.rail}",
        expected="a listener",
        evidence=[line for line in f"{texts[1]}\n{texts[0]}".splitlines() if line.strip()][:8],
    )


# --- measuring -------------------------------------------------------------------------------------------------------


def send_argv(lane: Lane, seconds: int, place: Place, start_at: float) -> list[str]:
    if lane.gid is None:
        program = str(place.folder / "tcp.py")
        ends = [lane.address, lane.peer_address, str(lane.port)]
        return [place.python, "-I", program, "send", *ends, str(seconds), f"{start_at:.3f}"]
    return [*_perftest(lane.gid, lane.port, seconds), lane.peer_address]


def failure_of(done: Completed, *, over_tcp: bool) -> Failure | None:
    """Why a program gave no number."""
    if not over_tcp:
        said = perftest.failure(done.rc, done.stdout, done.stderr)
        return None if said is None else Failure(said.kind, said.meaning, said.evidence or (said.line,))
    if done.ok:
        return None
    lines = tuple(line for line in done.stderr.splitlines() if line.strip())
    kind, _, text = (lines[-1] if lines else "").partition(": ")
    if done.rc == 124:
        return Failure("timed_out", perftest.FAILURES["timed_out"], lines)
    if kind in perftest.FAILURES:
        return Failure(kind, text, lines)
    return Failure("unknown", perftest.FAILURES["unknown"], lines[-8:])


def run_together(place: Place, lanes: Sequence[Lane], seconds: int) -> list[tuple[Stream, Completed]]:
    """All clients at once, each with the stamps of its own start and end."""
    gate = threading.Barrier(len(lanes))
    start_at = time.time() + LEAD_S
    results: list[tuple[Stream, Completed] | None] = [None] * len(lanes)

    def client(position: int, lane: Lane) -> None:
        gate.wait()
        began = time.time()
        done = place.run(send_argv(lane, seconds, place, start_at), timeout_s=seconds + SLACK_S)
        results[position] = (stream_of(place, lane, done, began, time.time()), done)

    threads = [threading.Thread(target=client, args=(position, lane)) for position, lane in enumerate(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [result for result in results if result is not None]


def stream_of(place: Place, lane: Lane, done: Completed, began: float, ended: float) -> Stream:
    """A client's output as a stream. Plain TCP tells its own stamps; perftest does not, so its process' are taken."""
    over_tcp = lane.gid is None
    failure = failure_of(done, over_tcp=over_tcp)
    gbps = None
    if failure is None and over_tcp:
        report = json.loads(done.stdout)
        gbps, began, ended = float(report["gbps"]), float(report["began"]), float(report["ended"])
    elif failure is None:
        gbps = perftest.parse_run(done.stdout).average_gbps
    return Stream(
        lane.rail, lane.netdev, lane.peer, lane.port, began, ended, gbps, failure, speed_of(place, lane.netdev)
    )


def speed_of(place: Place, netdev: str) -> int | None:
    """The negotiated speed; None where the interface has none to tell."""
    with contextlib.suppress(OSError, ValueError):
        speed = int((place.root / "sys/class/net" / netdev / "speed").read_text())
        return speed if speed > 0 else None
    return None


def counters(place: Place, lane: Lane) -> dict[str, int]:
    """Counters of a lane's function: of the hardware where it has them, of soft-RoCE and of the interface elsewhere."""
    found: dict[str, int] = {}
    folders = [place.root / "sys/class/net" / lane.netdev / "statistics"]
    if lane.gid is not None:
        port = place.root / "sys/class/infiniband" / lane.gid.rdma_device / "ports" / str(lane.gid.port)
        folders += [port / "counters", port / "hw_counters"]
        statistics = place.run(["ethtool", "-S", lane.netdev])
        if statistics.ok:
            told = parse_counters(statistics.stdout)
            found |= {name: told[name] for name in told if any(part in name for part in _TOLD)}
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            with contextlib.suppress(OSError, ValueError):
                found[path.name] = int(path.read_text())
    return found


def measure(
    place: Place,
    node: str,
    lanes: Sequence[Lane],
    *,
    seconds: int,
    min_gbps: float,
    transport: str,
    kernel_lines: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Finding]]:
    """Run, judge, and return the measurement with everything it was judged by."""
    if transport == "tcp":
        place.install_tcp()
    before = [counters(place, lane) for lane in lanes]
    results = run_together(place, lanes, seconds)
    after = [counters(place, lane) for lane in lanes]
    streams = [stream for stream, _ in results]
    found = judge(node, streams, min_gbps=min_gbps, transport=transport, kernel_lines=kernel_lines)
    common = overlap(streams)
    rails = []
    for lane, (stream, done), then, now in zip(lanes, results, before, after, strict=True):
        moved = {name: now[name] - then[name] for name in now if name in then and now[name] != then[name]}
        rails.append(
            {
                "rail": lane.rail,
                "netdev": lane.netdev,
                "rdma_device": lane.gid.rdma_device if lane.gid else None,
                "gid_index": lane.gid.index if lane.gid else None,
                "peer": lane.peer,
                "peer_address": lane.peer_address,
                "port": lane.port,
                "gbps": stream.gbps,
                "began": round(stream.began, 3),
                "ended": round(stream.ended, 3),
                "seconds": round(stream.seconds, 3),
                "speed_mbps": stream.speed_mbps,
                "counters": moved,
                "argv": list(done.argv),
                "rc": done.rc,
                "stdout": done.stdout,
                "stderr": done.stderr,
            }
        )
    complete = all(stream.gbps is not None for stream in streams)
    return {
        "transport": transport,
        "from": node,
        "to": lanes[0].peer if lanes else None,
        "rails": rails,
        "sum_gbps": total(streams) if complete else None,
        "min_gbps": threshold(min_gbps, len(streams)),
        "overlap_s": round(common.seconds, 3),
        "overlap_share": round(common.share, 4),
        "seconds": seconds,
        "verdict": next((item.code for item in reversed(found) if item.severity in ("ok", "fatal")), None),
    }, found


def remember(place: Place, measurement: Mapping[str, Any]) -> None:
    """Keep the verdict until the next boot, for runs that may not load the link."""
    kept = {name: value for name, value in measurement.items() if name != "rails"}
    kept["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path = place.root / LAST
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def last(place: Place) -> dict[str, Any] | None:
    """The verdict since this boot, None where there was no measurement."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads((place.root / LAST).read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else None
    return None


def not_loaded(node: str, reason: str, known: Mapping[str, Any] | None) -> Finding:
    """Why nothing was measured, and what was last."""
    verdict = "no measurement since this boot"
    if known:
        verdict = (
            f"last: {known.get('verdict')}, {known.get('sum_gbps')} Gb/s to {known.get('to')} at {known.get('at')}"
        )
    return finding(
        "LINK_NOT_LOADED",
        node=node,
        found=f"{reason}; {verdict}",
        expected="a measurement while nothing is served",
    )


def default_python() -> str:
    return sys.executable or "/usr/bin/python3"
