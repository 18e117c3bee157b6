"""What a rank's log says: how far it has come, and, when it died, why. Pure functions over lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .findings import Finding, finding


@dataclass(frozen=True)
class Phase:
    """A stage of a rank's start. ``silence_s`` is how long it may show no sign of progress, never how long it may
    take."""

    name: str
    text: str
    silence_s: float
    cpu_is_progress: bool = True


# In the order in which a rank goes through them. A rank that waits for the others spins, so that CPU time proves
# nothing there.
PHASES: tuple[Phase, ...] = (
    Phase("starting", "starting the engine's process", 180),
    Phase("rendezvous", "waiting for the other ranks", 150, cpu_is_progress=False),
    Phase("joined", "joined by every rank", 300, cpu_is_progress=False),
    Phase("loading", "loading weights", 600),
    Phase("loaded", "weights loaded", 900),
    Phase("compiling", "compiling", 1800),
    Phase("cache", "KV cache made", 900),
    Phase("graphs", "capturing graphs", 1800),
    Phase("warm", "engine warm", 300),
    Phase("serving", "server up", float("inf")),
)
BY_NAME = {phase.name: phase for phase in PHASES}
ORDER = {phase.name: number for number, phase in enumerate(PHASES)}


@dataclass
class Progress:
    """Where a rank is. ``facts`` holds what its log stated on the way, for the result file."""

    phase: str = "starting"
    percent: int | None = None
    joined: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        detail = f" {self.percent} %" if self.percent is not None else ""
        tokens = self.facts.get("kv_cache_tokens")
        if self.phase == "cache" and tokens:
            detail = f": {tokens:,} tokens"
        return BY_NAME[self.phase].text + detail


_VERSION = re.compile(r"(?:vLLM \(v|LLM engine \(v|  version )(\d[\w.+-]*)")
_RENDEZVOUS = re.compile(r"world_size=(\d+) rank=(\d+) local_rank=\d+ distributed_init_method=")
_JOINED = re.compile(r"rank (\d+) in world size (\d+) is assigned as")
_LOADING = re.compile(r"Starting to load model")
_SHARDS = re.compile(r"Loading [\w. -]*checkpoint shards:\s+(\d+)% Completed \| (\d+)/(\d+)")
_LOADED = re.compile(r"Loading weights took ([\d.]+) seconds")
_COMPILING = re.compile(r"Dynamo bytecode transform|Compiling a graph|Start compiling|torch\.compile takes")
# The word before "KV cache size" is the device's name: CPU here, GPU there.
_CACHE = re.compile(
    r"(\w+) KV cache size: ([\d,]+) tokens(?:, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
)
_GRAPHS = re.compile(r"Capturing CUDA graphs?[^\n%]*?(?:(\d+)%|$)")
_GRAPHS_DONE = re.compile(r"Graph capturing finished in ([\d.]+) secs?")
_WARM = re.compile(r"init engine \([^)]*\) took ([\d.]+) s")
_SERVING = re.compile(r"Application startup complete\.")


def _number(text: str) -> int:
    return int(text.replace(",", ""))


_KEY = re.compile(r"(['\"]api[_-]key['\"]\s*:\s*)(?:\[[^\]]*\]|'[^']*'|\"[^\"]*\")")


def split(text: str) -> list[str]:
    """Lines of a log; progress bars end theirs with a carriage return. Not every build masks the key that it prints."""
    plain = _KEY.sub(r"\1(redacted)", text)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def progress(lines: Iterable[str]) -> Progress:
    """The state after these lines; the latest milestone counts, since a second model may load after the first."""
    now = Progress()

    def enter(phase: str, percent: int | None = None) -> None:
        now.phase, now.percent = phase, percent

    for line in lines:
        if found := _VERSION.search(line):
            now.facts["engine_version"] = found[1]
        if found := _RENDEZVOUS.search(line):
            now.facts["world_size"], now.facts["rank"] = int(found[1]), int(found[2])
            enter("rendezvous")
        elif found := _JOINED.search(line):
            now.joined = True
            enter("joined")
        elif found := _SHARDS.search(line):
            enter("loading", int(found[1]))
        elif _LOADING.search(line):
            enter("loading")
        elif found := _LOADED.search(line):
            now.facts["weights_load_s"] = float(found[1])
            enter("loaded")
        elif _COMPILING.search(line):
            enter("compiling")
        elif found := _CACHE.search(line):
            now.facts["kv_cache_device"], now.facts["kv_cache_tokens"] = found[1], _number(found[2])
            if found[3]:
                now.facts["max_model_len"], now.facts["max_concurrency"] = _number(found[3]), float(found[4])
            enter("cache")
        elif found := _GRAPHS_DONE.search(line):
            now.facts["graph_capture_s"] = float(found[1])
            enter("graphs", 100)
        elif found := _GRAPHS.search(line):
            enter("graphs", int(found[1]) if found[1] else None)
        elif found := _WARM.search(line):
            now.facts["engine_init_s"] = float(found[1])
            enter("warm")
        elif _SERVING.search(line):
            enter("serving")
    return now


# Causes are tried in this order, so that the root comes before its consequences: a registration that fails also says
# "Cannot allocate
# memory", a small /dev/shm also ends in a worker that died, and a lost peer is what every other rank reports.
# `distributed_init_method=tcp://...` is how ranks meet, on every fabric, and is no sign of anything.
_CAUSES: tuple[tuple[str, str], ...] = (
    ("ENGINE_FLAGS_WRONG", r"error: (?:unrecognized arguments:|argument [^\n]*: |ambiguous option: )"),
    (
        "IMAGE_NOT_ON_NODE",
        r"Unable to find image '[^']*' locally|No such image: |pull access denied for |manifest unknown",
    ),
    (
        "DEVICE_NOT_IN_DOCKER",
        r"could not select device driver|error gathering device information while adding custom device"
        r"|unresolvable CDI device",
    ),
    ("SHM_TOO_SMALL", r"Insufficient space in /dev/shm|No space left on device: '?(?:/dev/shm)?/(?:psm_|torch_)"),
    ("RANK_PORT_TAKEN", r"EADDRINUSE|[Aa]ddress already in use"),
    ("RDMA_REGISTRATION_FAILED", r"ibv_reg_mr\w*[^\n]*(?:[Cc]annot allocate memory|failed)"),
    ("QP_NOT_CONNECTED", r"ibv_modify_qp[^\n]*failed|Failed to modify QP"),
    (
        "ADDRESS_NOT_RESOLVED",
        r"Unable to resolve hostname|Name or service not known|Temporary failure in name resolution",
    ),
    ("INTERFACE_WRONG", r"Unable to find address for: |[Nn]o socket interface found"),
    (
        "ENGINE_OUT_OF_MEMORY",
        r"OutOfMemoryError|CUDA out of memory|std::bad_alloc|No available memory for the cache blocks"
        r"|Free memory on device[^\n]*is less than desired",
    ),
    ("KERNEL_DOES_NOT_FIT", r"no kernel image is available for execution on the device"),
    (
        "ENGINE_WEIGHTS_UNREADABLE",
        r"SafetensorError|Cannot find any model weights|does not appear to have a file named|HFValidationError",
    ),
    (
        "RANK_NEVER_JOINED",
        r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined"
        r"|client socket has timed out after \d+ms while trying to connect to",
    ),
    ("SHM_BROADCAST_FATAL", r"RPC call to \w+ timed out"),
    ("PEER_LOST", r"Connection reset by peer|Connection closed by (?:remote )?peer|NCCL error: remote process exited"),
)
_COMPILED = tuple((code, re.compile(pattern)) for code, pattern in _CAUSES)
_TOLERATED = re.compile(r"No available shared memory broadcast block found in (\d+) seconds")
_SOCKET = re.compile(r"Using network Socket|NET/Socket : Using")
_TELLING = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|\b\w*(?:Error|Exception)\b[:(]|[Kk]illed|error:|docker:")
_SIGNALS = {137: "SIGKILL", 143: "SIGTERM"}
_CARETS = re.compile(r"^[\s^~]*$")
_PREFIX = re.compile(r"^\([^)]*\) \w+ [\d-]+ [\d:]+ \[[^\]]*\] ?")


def tail(lines: Sequence[str], limit: int = 12) -> list[str]:
    """The lines of a dead rank's log that a person would look for: its last ones, and before them the errors, without
    the frames."""
    last = list(lines[-4:])
    errors: list[str] = []
    for line in lines[:-4]:
        said = _PREFIX.sub("", line)
        if (
            _TELLING.search(line)
            and not said.startswith(("  ", "Traceback", "frame #"))
            and not _CARETS.match(said)
            and line not in errors
        ):
            errors.append(line)
    return [line[:400] for line in [*errors[-(limit - len(last)) :], *last]]


@dataclass(frozen=True)
class Cause:
    code: str
    line: str


def cause(lines: Sequence[str]) -> Cause | None:
    """The named cause that a dead rank's log shows, with the line that shows it, or None: an unknown one is not
    guessed."""
    for code, pattern in _COMPILED:
        for line in lines:
            if pattern.search(line):
                return Cause(code, line.strip()[:400])
    return None


def death(
    lines: Sequence[str],
    *,
    node: str,
    what: str,
    exit_status: int | None,
    memory_killed: bool = False,
    phase: str = "starting",
) -> Finding:
    """The finding for a rank that has died: its named cause, or UNKNOWN_CAUSE with what its log said last."""
    ended = (
        f"{what} ended"
        + (f" with status {exit_status}" if exit_status is not None else "")
        + f" while {BY_NAME[phase].text}"
    )
    evidence = tail(lines)
    expected = f"{what} stays up"
    if memory_killed:
        evidence = ["the kernel ended it for memory", *evidence]
        return finding("ENGINE_OUT_OF_MEMORY", node=node, found=ended, expected=expected, evidence=evidence)
    named = cause(lines)
    if named is not None:
        rest = [line for line in evidence if line != named.line]
        return finding(named.code, node=node, found=ended, expected=expected, evidence=[named.line, *rest])
    evidence = evidence or ["its log is empty"]
    if exit_status in _SIGNALS:
        found = f"{ended} ({_SIGNALS[exit_status]})"
        return finding("RANK_KILLED", node=node, found=found, expected=expected, evidence=evidence)
    attach = f"the output of `journalctl -u spark-rank` on {node}"
    return finding("UNKNOWN_CAUSE", node=node, found=ended, expected=expected, evidence=evidence, attach=attach)


def remarks(lines: Iterable[str], *, node: str, transport: str) -> list[Finding]:
    """What a living rank's log says that its owner should know, each once."""
    waits: list[str] = []
    sockets: list[str] = []
    for line in lines:
        if _TOLERATED.search(line):
            waits.append(line.strip()[:400])
        elif _SOCKET.search(line):
            sockets.append(line.strip()[:400])
    said: list[Finding] = []
    if waits:
        found = f"the engine waited for its shared-memory broadcast {len(waits)} times and went on"
        said.append(
            finding(
                "SHM_BROADCAST_WAIT",
                node=node,
                found=found,
                expected="normal while loading or compiling",
                evidence=waits[-1:],
            )
        )
    if sockets and transport == "rdma":
        said.append(
            finding(
                "SOCKET_FALLBACK",
                node=node,
                found="NCCL moves data over TCP sockets",
                expected="NET/IB on the HCAs of the plan",
                evidence=sockets[:2],
            )
        )
    return said


@dataclass(frozen=True)
class Sign:
    """What one poll saw of one rank, as far as progress goes."""

    at_s: float
    phase: str
    joined: bool
    log_lines: int
    cpu_s: float
    read_bytes: int
    memory_bytes: int
    started_at: str = ""


_CPU_STEP_S = 1.0
_READ_STEP = 1 << 20
_MEMORY_STEP = 32 << 20


def progressed(before: Sign, now: Sign) -> bool:
    """Whether a rank did something between two polls that counts in the phase it is in."""
    if now.phase != before.phase or now.log_lines != before.log_lines:
        return True
    if now.read_bytes - before.read_bytes >= _READ_STEP or abs(now.memory_bytes - before.memory_bytes) >= _MEMORY_STEP:
        return True
    return BY_NAME[now.phase].cpu_is_progress and now.cpu_s - before.cpu_s >= _CPU_STEP_S


def stall(signs: dict[str, Sign], silent_s: float, *, head: str, transport: str) -> Finding | None:
    """The finding for a cluster of which no rank has shown progress for ``silent_s``; None while that is within the
    limits.

    The rank that is behind rules: the others wait for it.
    """
    behind = min(signs, key=lambda node: ORDER[signs[node].phase])
    phase = BY_NAME[signs[behind].phase]
    if silent_s < phase.silence_s:
        return None
    evidence = [
        f"{node}: {BY_NAME[sign.phase].text}, {sign.log_lines} log lines, {sign.cpu_s:.0f} s of CPU, "
        f"{sign.read_bytes >> 20} MiB read"
        for node, sign in sorted(signs.items())
    ]
    found = f"no rank has made progress for {silent_s:.0f} s; {behind} is still {phase.text}"
    expected = f"a sign of progress at least every {phase.silence_s:.0f} s"
    stale = [node for node, sign in signs.items() if node != head and sign.joined and not signs[head].joined]
    if stale:
        found += f"; {', '.join(stale)} joined an earlier start"
        return finding("STALE_RANK", node=stale[0], found=found, expected=expected, evidence=evidence)
    if phase.name == "rendezvous":
        return finding("RANK_NEVER_JOINED", node=behind, found=found, expected=expected, evidence=evidence)
    return finding("RANK_STALLED", node=behind, found=found, expected=expected, evidence=evidence)
