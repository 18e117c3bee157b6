"""Start listeners that end by themselves, run all clients of a leg at the same time, and read what both ends counted.

Nothing is judged here.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..findings import Finding, fatal, finding
from ..gids import Resolved
from ..parse import perftest
from ..parse.sockets import parse_listeners
from ..parse.whole import document
from ..runner import NOT_FOUND_RC, TIMED_OUT_RC, Completed, Run
from . import keeper, tcp
from .legs import Leg, ask_port, ports_of
from .samples import Sample
from .verdict import Failure, Stream, failed

FOLDER = Path("run/spark-cluster/link")
# Lasts over a boot, so it says of which one it is. reset.yml takes the folder away.
LAST = Path("var/lib/spark-cluster/link.json")
BOOT = Path("proc/sys/kernel/random/boot_id")
UNIT = "spark-link.service"
# Between the start of the listeners and that of the clients lie a few tasks; on a loaded machine each takes a minute.
PATIENCE_S = 240
# Connecting, registering memory and perftest's own margins.
SLACK_S = 30
# Starting an interpreter takes each sender its own time; they are told a common moment to begin.
LEAD_S = 1.5
SAMPLE_S = 0.5
# Half a millisecond on the hardware, and seconds on an emulated machine.
LATENCY_ROUNDS = 200
TOOLS = {"write": "ib_write_bw", "both": "ib_write_bw", "latency": "ib_write_lat"}


@dataclass(frozen=True)
class Lane:
    """One rail of a leg, seen from the node that runs it."""

    rail: int
    netdev: str
    address: str
    port: int
    peer: str = ""
    peer_address: str = ""
    gid: Resolved | None = None

    def counted(self) -> dict[str, Any]:
        """The rail as the keeper knows it."""
        device = {"device": self.gid.rdma_device, "ib_port": self.gid.port} if self.gid else {"device": None}
        return {"rail": self.rail, "netdev": self.netdev, "address": self.address, **device}


@dataclass(frozen=True)
class LegRun:
    """A leg that was run. ``own`` and ``peer`` are what each end counted per rail, None where it did not answer."""

    leg: Leg
    lanes: tuple[Lane, ...]
    streams: tuple[Stream, ...]
    done: tuple[Completed, ...]
    samples: tuple[tuple[Sample, ...], ...] = ()
    own: tuple[dict[str, int], ...] = ()
    peer: tuple[dict[str, int], ...] | None = None
    latency_us: tuple[float | None, ...] = ()
    told: tuple[str, ...] = field(default=())
    # The first try, where its streams did not run together and the leg was run once more.
    first: LegRun | None = None


class Place:
    """The commands and the file system of one machine; ``root`` is another folder in tests."""

    def __init__(self, run: Run, root: Path = Path("/"), python: str = "/usr/bin/python3") -> None:
        self.run = run
        self.root = root
        self.python = python

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    def install(self) -> None:
        """Put the programs where they run; they are gone with the next boot."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for program in (keeper, tcp):
            name = program.__name__.rpartition(".")[2]
            (self.folder / f"{name}.py").write_text(inspect.getsource(program), encoding="utf-8")

    def said(self, argv: list[str]) -> str | None:
        done = self.run(argv, timeout_s=15)
        return done.stdout if done.ok else None


def lanes_of(
    leg: Leg,
    node: str,
    rails: Sequence[Mapping[str, Any]],
    base_ports: Sequence[int],
    gids: Sequence[Resolved] = (),
) -> list[Lane]:
    """The lanes of a leg at ``node``; the peer is its other end, or the node itself in a loopback leg.

    ``rails`` may be some of the node's: a rail's port is that of its number, so that both ends mean the same one.
    """
    peer = leg.target if node == leg.source else leg.source
    by_rail = {gid.rail: gid for gid in gids} if leg.kind != "tcp" else {}
    ports = ports_of(base_ports, leg.slot)
    return [
        Lane(
            rail["rail"],
            rail["netdev"],
            rail["address"],
            ports[int(rail["rail"])],
            peer,
            rail["address"] if peer == node else rail["peer_addresses"][peer],
            by_rail.get(rail["rail"]),
        )
        for rail in rails
    ]


def serving(run: Run, *, containers: bool = True) -> str | None:
    """What of ours serves on this node, None where nothing does."""
    unit = run(["systemctl", "is-active", "spark-rank.service"])
    if unit.stdout.strip() in ("active", "activating", "reloading"):
        return f"spark-rank.service is {unit.stdout.strip()}"
    if containers:
        container = run(["docker", "ps", "-q", "--filter", "name=^/?spark-rank$", "--filter", "status=running"])
        if container.ok and container.stdout.strip():
            return f"container spark-rank {container.stdout.strip()[:12]} is running"
    return None


def not_now(node: str, serving_nodes: Sequence[str], run: Run, *, containers: bool = True) -> str | None:
    """Why the link may not be loaded now, None where it may."""
    elsewhere = [name for name in serving_nodes if name != node]
    mine = serving(run, containers=containers)
    return mine or (f"a rank serves on {', '.join(elsewhere)}" if elsewhere else None)


# --- listening -------------------------------------------------------------------------------------------------------


def listen_argv(leg: Leg, lane: Lane, life_s: int, place: Place) -> list[str]:
    if lane.gid is None:
        return [place.python, "-I", str(place.folder / "tcp.py"), "receive", lane.address, str(lane.port), str(life_s)]
    return _perftest(leg, lane.gid, lane.port)


def _perftest(leg: Leg, gid: Resolved, port: int) -> list[str]:
    # -F: a frequency governor that scales would otherwise end the run with "Can't produce a report" on some machines.
    # -u: the default of 67 ms is less than a slow machine needs for what is under way, which is then sent again and
    # again until neither end does anything else; 0.5 s still finds a cut rail within the run's own limit.
    argv = [TOOLS[leg.kind], "-d", gid.rdma_device, "-i", str(gid.port), "-x", str(gid.index), "-p", str(port)]
    argv += ["-F", "-u", "17"]
    if leg.kind == "latency":
        return [*argv, "-n", str(LATENCY_ROUNDS)]
    return [*argv, "-D", str(leg.seconds), "--report_gbits", *(["-b"] if leg.kind == "both" else [])]


def listen(
    place: Place,
    node: str,
    rails: Sequence[Mapping[str, Any]],
    legs: Sequence[Leg],
    base_ports: Sequence[int],
    gids: Sequence[Resolved] = (),
    *,
    patience_s: int = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Start the listeners of all legs that end at ``node``, as one unit, and see all of them listen.

    Each has its own end time; the unit's limit comes after the last of them, and after it nothing of this is left.
    """
    mine = [leg for leg in legs if leg.target == node]
    wanted = [(leg, lane) for leg in mine for lane in lanes_of(leg, node, rails, base_ports, gids)]
    if not wanted:
        return [], []
    found = clear(place, node, {lane.port: lane for _, lane in wanted}, ask_port(base_ports))
    if not fatal(found):
        found += [_no_tool(node) for _, lane in wanted[:1] if lane.gid is not None and version(place) is None]
    if fatal(found):
        return [], found
    place.install()
    # Legs run one after the other, in this order over all nodes.
    ends = {leg: patience_s + sum(each.seconds + SLACK_S for each in legs[: legs.index(leg) + 1]) for leg in mine}
    life_s = max(ends.values()) + 5
    listeners = [
        {
            "kind": leg.kind,
            "from": leg.source,
            "rail": lane.rail,
            "port": lane.port,
            "end_s": ends[leg],
            "argv": listen_argv(leg, lane, ends[leg], place),
        }
        for leg, lane in wanted
    ]
    by_rail = {lane.rail: lane.counted() for _, lane in sorted(wanted, key=lambda each: each[1].gid is not None)}
    spec = {
        "node": node,
        "folder": str(place.folder),
        "rails": [by_rail[rail] for rail in sorted(by_rail)],
        "ask_port": ask_port(base_ports),
        "clients": len({leg.source for leg in mine}),
        "life_s": life_s,
        "listeners": listeners,
    }
    (place.folder / "status.json").unlink(missing_ok=True)
    (place.folder / "keeper.json").write_text(json.dumps(spec), encoding="utf-8")
    place.run(
        [
            "systemd-run",
            f"--unit={UNIT}",
            "--description=Link check, this node's listeners",
            "--collect",
            f"--property=RuntimeMaxSec={life_s + 5}",
            "--property=TimeoutStopSec=3",
            *(place.python, "-I", str(place.folder / "keeper.py"), str(place.folder / "keeper.json")),
        ],
        check=True,
    )
    status = _settled(place, len(listeners), clock, sleep)
    for leg, lane in wanted:
        if lane.port not in status["listening"]:
            found.append(_did_not_start(place, node, leg, lane))
    if fatal(found):
        stop(place)
    return listeners, found


def _settled(
    place: Place, count: int, clock: Callable[[], float], sleep: Callable[[float], None]
) -> dict[str, list[int]]:
    """The keeper's first word about all its listeners, or its last one before patience ran out."""
    until = clock() + 20
    status: dict[str, Any] = {"listening": [], "ended": {}}
    while clock() < until:
        with contextlib.suppress(OSError, ValueError):
            told = document((place.folder / "status.json").read_text(encoding="utf-8"))
            status = told if isinstance(told, dict) and status.keys() <= told.keys() else status
        if len(status["listening"]) + len(status["ended"]) >= count:
            break
        sleep(0.1)
    return status


def version(place: Place) -> str | None:
    """perftest's own version; it exits 1 after printing it. Empty where it prints none."""
    done = place.run(["ib_write_bw", "--version"])
    return None if done.rc == NOT_FOUND_RC else perftest.parse_version(f"{done.stdout}\n{done.stderr}") or ""


def _no_tool(node: str) -> Finding:
    return finding("LINK_TOOL_MISSING", node=node, found="no program ib_write_bw", expected="perftest")


def clear(place: Place, node: str, lanes: Mapping[int, Lane], ask: int) -> list[Finding]:
    """Nothing may listen on the ports: our own leftovers are stopped and named, anything else is left alone and
    refused."""
    found: list[Finding] = []
    holding = {item["port"]: item for item in _listeners(place) if item["port"] in lanes or item["port"] == ask}
    leftover = place.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "spark-link*"])
    units = [line.split()[0] for line in leftover.stdout.splitlines() if line.strip()]
    if units:
        place.run(["systemctl", "stop", *units])
        held = [f"{item['process'] or 'a listener'} on port {port}" for port, item in sorted(holding.items())]
        found.append(
            finding(
                "LINK_LISTENER_STALE",
                node=node,
                found=f"{', '.join(units)} of an earlier run{': ' if held else ''}{', '.join(held)}",
                expected="no listener before this run",
            )
        )
        if holding:
            holding = {item["port"]: item for item in _listeners(place) if item["port"] in holding}
    for port, item in sorted(holding.items()):
        use = f"rail {lanes[port].rail}" if port in lanes else "the link check's own questions"
        found.append(
            finding(
                "LINK_PORT_BUSY",
                node=node,
                found=f"{item['process'] or 'a program'} listens on {item['address']}:{port}",
                expected=f"port {port} free for {use}",
                process=item["process"] or "what holds it",
            )
        )
    return found


def stop(place: Place) -> None:
    place.run(["systemctl", "stop", UNIT])


def _listeners(place: Place) -> list[Any]:
    return list(parse_listeners(place.run(["ss", "-ltnpH"], check=True).stdout))


def _did_not_start(place: Place, node: str, leg: Leg, lane: Lane) -> Finding:
    texts = []
    for kind in ("out", "err"):
        path = place.folder / f"{lane.port}.{kind}"
        texts.append(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "")
    failure = failure_of(Completed((), 1, texts[0], texts[1]), over_tcp=lane.gid is None)
    stream = Stream(lane.rail, lane.netdev, lane.peer, lane.port, 0, 0, failure=failure)
    if failure is not None and failure.kind not in ("unknown", "no_result"):
        return failed(node, stream)
    return finding(
        "LINK_LISTENER_FAILED",
        node=node,
        found=f"nothing listens on port {lane.port} for rail {lane.rail}, {leg.kind} from {leg.source}",
        expected="a listener",
        evidence=[line for line in f"{texts[1]}\n{texts[0]}".splitlines() if line.strip()][:8],
    )


# --- measuring -------------------------------------------------------------------------------------------------------


def send_argv(leg: Leg, lane: Lane, place: Place, start_at: float, *, with_json: bool = False) -> list[str]:
    if lane.gid is None:
        program = str(place.folder / "tcp.py")
        ends = [lane.address, lane.peer_address, str(lane.port)]
        return [place.python, "-I", program, "send", *ends, str(leg.seconds), f"{start_at:.3f}"]
    argv = _perftest(leg, lane.gid, lane.port)
    if with_json and leg.kind != "latency":
        argv += ["--out_json", f"--out_json_file={_json_file(place, lane)}"]
    return [*argv, lane.peer_address]


def _json_file(place: Place, lane: Lane) -> Path:
    return place.folder / f"{lane.port}.json"


def failure_of(done: Completed, *, over_tcp: bool) -> Failure | None:
    """Why a program gave no number."""
    if not over_tcp:
        said = perftest.failure(done.rc, done.stdout, done.stderr)
        return None if said is None else Failure(said.kind, said.meaning, said.evidence or (said.line,))
    if done.ok:
        return None
    lines = tuple(line for line in done.stderr.splitlines() if line.strip())
    kind, _, text = (lines[-1] if lines else "").partition(": ")
    if done.rc == TIMED_OUT_RC:
        return Failure("timed_out", perftest.FAILURES["timed_out"], lines)
    if kind in perftest.FAILURES:
        return Failure(kind, text, lines)
    return Failure("unknown", perftest.FAILURES["unknown"], lines[-8:])


def run_together(
    place: Place, leg: Leg, lanes: Sequence[Lane], *, with_json: bool = False
) -> tuple[list[tuple[Stream, Completed]], tuple[tuple[Sample, ...], ...]]:
    """All clients at once, each with the stamps of its own start and end, and what their functions moved meanwhile."""
    gate = threading.Barrier(len(lanes) + 1)
    start_at = time.time() + LEAD_S
    results: list[tuple[Stream, Completed] | None] = [None] * len(lanes)
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()

    def client(position: int, lane: Lane) -> None:
        gate.wait()
        try:
            began = time.time()
            argv = send_argv(leg, lane, place, start_at, with_json=with_json)
            done = place.run(argv, timeout_s=leg.seconds + SLACK_S)
            results[position] = (stream_of(place, lane, done, began, time.time()), done)
        finally:
            finished.put(position)

    samples: list[list[Sample]] = [[] for _ in lanes]

    def sample() -> None:
        for taken, lane in zip(samples, lanes, strict=True):
            moved = keeper.moving(lane.counted(), place.root)
            if moved is not None:
                taken.append(Sample(time.time(), *moved))

    for position, lane in enumerate(lanes):
        threading.Thread(target=client, args=(position, lane)).start()
    sample()
    gate.wait()
    running, due = len(lanes), time.monotonic() + SAMPLE_S
    while running:
        try:
            finished.get(timeout=max(0.0, due - time.monotonic()))
            running -= 1
        except queue.Empty:
            sample()
            due = time.monotonic() + SAMPLE_S
    sample()
    return [result for result in results if result is not None], tuple(tuple(taken) for taken in samples)


def stream_of(place: Place, lane: Lane, done: Completed, began: float, ended: float) -> Stream:
    """A client's output as a stream. Plain TCP tells its own stamps; perftest does not, so its process' are taken."""
    over_tcp = lane.gid is None
    failure = failure_of(done, over_tcp=over_tcp)
    gbps = None
    if failure is None and over_tcp:
        try:
            report = document(done.stdout)
            gbps, began, ended = float(report["gbps"]), float(report["began"]), float(report["ended"])
        except (KeyError, OverflowError, TypeError, ValueError):
            lines = tuple(line for line in done.stdout.splitlines() if line.strip())[-8:]
            failure = Failure("no_result", perftest.FAILURES["no_result"], lines)
    elif failure is None:
        gbps = _rate(place, lane, done)
    return Stream(
        lane.rail, lane.netdev, lane.peer, lane.port, began, ended, gbps, failure, speed_of(place, lane.netdev)
    )


def _rate(place: Place, lane: Lane, done: Completed) -> float | None:
    """From the JSON file where this perftest wrote a valid one, else from its table."""
    if any(argument.startswith("--out_json_file") for argument in done.argv):
        with contextlib.suppress(OSError, ValueError):
            text = _json_file(place, lane).read_text(encoding="utf-8")
            return perftest.parse_json(text, gbits=True).average_gbps
    return perftest.parse_run(done.stdout).average_gbps


def speed_of(place: Place, netdev: str) -> int | None:
    """The negotiated speed; None where the interface has none to tell."""
    with contextlib.suppress(OSError, ValueError):
        speed = int((place.root / "sys/class/net" / netdev / "speed").read_text())
        return speed if speed > 0 else None
    return None


Snapshot = tuple[list[dict[str, int]], "list[dict[str, int]] | None"]


def snapshot(place: Place, lanes: Sequence[Lane], ask: int, *, loopback: bool = False) -> Snapshot:
    """What both ends have counted so far. They are read at the same time."""
    answer: list[dict[str, Any] | None] = [None]

    def far() -> None:
        # Two programs run for an answer; on a busy machine they take their time.
        answer[0] = keeper.ask([lane.peer_address for lane in lanes], ask, {"want": "counters"}, timeout_s=15)

    asking = threading.Thread(target=far)
    if not loopback:
        asking.start()
    own = [keeper.counters(lane.counted(), place.root, place.said) for lane in lanes]
    if not loopback:
        asking.join()
    told = (answer[0] or {}).get("counters")
    return own, told if isinstance(told, list) and len(told) == len(lanes) else None


def moved(before: Sequence[Mapping[str, int]], after: Sequence[Mapping[str, int]]) -> tuple[dict[str, int], ...]:
    """Per rail, what changed and by how much."""
    return tuple(
        {name: now[name] - then[name] for name in now if name in then and now[name] != then[name]}
        for then, now in zip(before, after, strict=True)
    )


def run_legs(
    place: Place,
    node: str,
    legs: Sequence[Leg],
    rails: Sequence[Mapping[str, Any]],
    base_ports: Sequence[int],
    gids: Sequence[Resolved] = (),
    *,
    enough: Callable[[LegRun], bool] = lambda run: False,
    again: Callable[[LegRun], bool] = lambda run: False,
) -> list[LegRun]:
    """Run the legs that start at ``node``, one after the other, until ``enough`` says that one was the last.

    A leg of which ``again`` says so is run once more, never twice: a busy host may start one client late. What is wrong
    with the link shows in the second try as well.

    Whatever happened, the far listeners are told that nobody comes any more: a client that died leaves one behind that
    would poll for its peer.
    """
    mine = [leg for leg in legs if leg.source == node]
    place.install()
    json_known = bool(gids) and perftest.writes_json(version(place))
    ask, runs = ask_port(base_ports), []
    for target in dict.fromkeys(leg.target for leg in mine):
        before: Snapshot | None = None
        addresses: list[str] = []
        try:
            for leg in mine:
                if leg.target != target:
                    continue
                lanes = lanes_of(leg, node, rails, base_ports, gids)
                addresses = [lane.peer_address for lane in lanes]
                run, before = _run_leg(place, leg, lanes, ask, before, with_json=json_known)
                if again(run) and listen_again(lanes, ask):
                    first = run
                    run, before = _run_leg(place, leg, lanes, ask, before, with_json=json_known)
                    run = replace(run, first=first)
                runs.append(run)
                if enough(run):
                    return runs
        finally:
            keeper.ask(addresses, ask, {"want": "done", "who": node}, timeout_s=3)
    return runs


def _run_leg(
    place: Place, leg: Leg, lanes: Sequence[Lane], ask: int, before: Snapshot | None, *, with_json: bool
) -> tuple[LegRun, Snapshot | None]:
    """One leg, and what both ends have counted after it: that is what they had counted before the next one."""
    loopback = leg.source == leg.target
    if leg.kind != "latency" and before is None:
        before = snapshot(place, lanes, ask, loopback=loopback)
    results, samples = run_together(place, leg, lanes, with_json=with_json)
    done = tuple(completed for _, completed in results)
    run = LegRun(leg, tuple(lanes), tuple(stream for stream, _ in results), done, samples)
    if leg.kind == "latency":
        run = replace(run, latency_us=tuple(_latency(completed) for completed in done))
    elif before is not None:
        after = snapshot(place, lanes, ask, loopback=loopback)
        far = moved(before[1], after[1]) if before[1] is not None and after[1] is not None else None
        run, before = replace(run, own=moved(before[0], after[0]), peer=far), after
    if any(stream.failure for stream in run.streams):
        run = replace(run, told=_far_words([lane.peer_address for lane in lanes], ask, lanes))
    return run, before


def listen_again(lanes: Sequence[Lane], ask: int, *, patience_s: float = 10.0) -> bool:
    """Have the far end start the listeners of these lanes once more; whether all of them wait for a client."""
    addresses, ports = [lane.peer_address for lane in lanes], [lane.port for lane in lanes]
    until = time.monotonic() + patience_s
    answer = keeper.ask(addresses, ask, {"want": "again", "ports": ports}, timeout_s=3) or {}
    if answer.get("started") != ports:
        return False
    while time.monotonic() < until:
        waiting = (keeper.ask(addresses, ask, {"want": "status"}, timeout_s=3) or {}).get("listening", [])
        if set(ports) <= set(waiting):
            return True
        time.sleep(0.1)
    return False


def _latency(done: Completed) -> float | None:
    rows = perftest.parse_run(done.stdout).latency if done.ok else ()
    return rows[0].typical_us if rows else None


def _far_words(addresses: Sequence[str], ask: int, lanes: Sequence[Lane]) -> tuple[str, ...]:
    """What the other end's listeners printed about a run that failed here."""
    answer = keeper.ask(addresses, ask, {"want": "listeners"}, timeout_s=3) or {}
    words = []
    for lane in lanes:
        listener = answer.get("listeners", {}).get(str(lane.port))
        if listener:
            errors = [line.strip() for line in str(listener.get("err", "")).splitlines() if line.strip()][-3:]
            state = "still waits" if listener["rc"] is None else f"exited {listener['rc']}"
            words.append(
                f"listener on {lane.peer}, port {lane.port}: {state}{': ' if errors else ''}{' / '.join(errors)}"
            )
    return tuple(words)


# --- what is kept ----------------------------------------------------------------------------------------------------


def remember(place: Place, measurement: Mapping[str, Any]) -> None:
    """Keep the verdict for runs that may not load the link, with the boot that it is of."""
    kept = {name: value for name, value in measurement.items() if name not in ("rails", "directions")}
    kept |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "boot_id": _boot(place)}
    path = place.root / LAST
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    written.replace(path)


def last(place: Place) -> dict[str, Any] | None:
    """The last verdict, None where there was no measurement. ``this_boot`` says whether it is of this boot."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept = json.loads((place.root / LAST).read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            boot = _boot(place)
            return {**kept, "this_boot": boot is not None and kept.get("boot_id") == boot}
    return None


def _boot(place: Place) -> str | None:
    with contextlib.suppress(OSError):
        return (place.root / BOOT).read_text(encoding="ascii", errors="replace").strip()
    return None


def not_loaded(node: str, reason: str, known: Mapping[str, Any] | None) -> Finding:
    """Why nothing was measured, and what was last."""
    verdict = "this node never measured it"
    if known:
        rate = f"{known.get('sum_gbps')} Gb/s to {known.get('to')}"
        boot = "this boot" if known.get("this_boot") else "an earlier boot of this node"
        verdict = f"last: {known.get('verdict')}, {rate} at {known.get('at')}, of {boot}"
    return finding(
        "LINK_NOT_LOADED",
        node=node,
        found=f"{reason}; {verdict}",
        expected="a measurement while nothing is served",
    )


def default_python() -> str:
    return sys.executable or "/usr/bin/python3"
