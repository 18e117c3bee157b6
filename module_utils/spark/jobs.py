"""Long work on a node: a transient systemd unit with a status file, so that it outlives the connection that started it.

``rankctl job NAME SPEC.json`` runs in the unit and is the only writer of the status after its start; whoever polls
reads that file and asks systemd whether the unit still lives. A specification is plain data that anyone may read on the
node: it holds no secret.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from .findings import Finding, finding, from_dict, worst
from .runner import Run, run
from .transport.channel import OPENSSL_CONF

ROOT = Path("/run/spark-cluster/jobs")
RANKCTL = "/usr/local/lib/spark-cluster/rankctl.pyz"
SCHEMA = 1
FINAL = ("done", "failed", "cancelled")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_SECRET = re.compile(r"pass(word|phrase)|secret|token|credential|api_?key|private", re.IGNORECASE)
_WRITE_EVERY_S = 0.5
_RATE_WINDOW_S = 8.0

# Kind to (module, function). The function gets the specification and a Reporter and returns its result, plain data; it
# ends by raising JobFailedError where a finding says why.
KINDS: dict[str, tuple[str, str]] = {
    "weights_hash": ("weights_jobs", "hash_job"),
    "weights_push": ("weights_jobs", "push_job"),
    "weights_receive": ("weights_jobs", "receive_job"),
    "weights_send": ("weights_jobs", "send_job"),
    "weights_arrive": ("weights_jobs", "arrive_job"),
    "image_fetch": ("image_fetch", "fetch_job"),
    "image_pull": ("image_fetch", "pull_job"),
    "weights_download": ("hub", "download_job"),
    "collective": ("collective_job", "collective_job"),
}


class JobFailedError(Exception):
    """The job cannot go on, and these findings say why."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(f"{item.code}: {item.found}" for item in findings))
        self.findings = findings


def valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a job: letters, digits, ., _ and -, at most 80")
    return name


def unit_of(name: str) -> str:
    return f"spark-job-{name}.service"


def digest(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def secrets_in(spec: Any, where: str = "spec") -> list[str]:
    """Names in a specification that look like a secret's."""
    if isinstance(spec, Mapping):
        named = [f"{where}.{name}" for name in spec if _SECRET.search(str(name))]
        return named + [hit for name, value in spec.items() for hit in secrets_in(value, f"{where}.{name}")]
    if isinstance(spec, (list, tuple)):
        return [hit for number, value in enumerate(spec) for hit in secrets_in(value, f"{where}[{number}]")]
    return []


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Whole or not at all. Not fsynced: the folder lies in memory, and a restart of the node ends the job as well."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(status, sort_keys=True))
    os.replace(fresh, path)


def read_status(name: str, root: Path = ROOT) -> dict[str, Any] | None:
    try:
        data = json.loads((root / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


class Reporter:
    """What a running job says of itself. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        status: dict[str, Any],
        clock: Callable[[], float] = time.monotonic,
        secrets: Mapping[str, Any] | None = None,
    ) -> None:
        self._path, self._status, self._clock = path, status, clock
        self.secrets = dict(secrets or {})
        self._lock = Lock()
        self._written = float("-inf")
        self._samples: deque[tuple[float, int]] = deque()
        self._rail_samples: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def node(self) -> str:
        return str(self._status["node"])

    def stage(self, words: str, total_bytes: int = 0) -> None:
        """A new part of the work, ``words`` naming it; the counters begin anew."""
        with self._lock:
            self._status["progress"] = {"stage": words, "done_bytes": 0, "total_bytes": total_bytes, "rate_bps": None}
            self._samples.clear()
            self._rail_samples.clear()
            self._samples.append((self._clock(), 0))
            self._write()

    def advance(self, count: int) -> None:
        with self._lock:
            self._moved_to(int(self._status["progress"]["done_bytes"]) + count)

    def at(self, done: int) -> None:
        with self._lock:
            self._moved_to(done)

    def rails(self, done: Mapping[str, int], already: int = 0) -> None:
        """How many bytes each rail has carried so far; with those that were there already, the sum is the progress."""
        with self._lock:
            now = self._clock()
            self._rail_samples.append((now, dict(done)))
            while len(self._rail_samples) > 2 and now - self._rail_samples[0][0] > _RATE_WINDOW_S:
                self._rail_samples.popleft()
            began, first = self._rail_samples[0]
            self._status["progress"]["rails"] = [
                {"rail": name, "rate_bps": round((count - first.get(name, 0)) / (now - began)) if now > began else None}
                for name, count in done.items()
            ]
            self._moved_to(sum(done.values()), already)

    def listening(self, where: Mapping[str, Any]) -> None:
        """Where others can reach this job now."""
        with self._lock:
            self._status["listening"] = dict(where)
            self._write()

    def note(self, item: Finding) -> None:
        with self._lock:
            self._status["findings"].append(item.as_dict())
            self._write()

    def measure(self, **values: Any) -> None:
        with self._lock:
            self._status["measurements"].update(values)

    def end(self, state: str, result: Any, findings: Sequence[Finding] = ()) -> None:
        with self._lock:
            self._status["findings"] += [item.as_dict() for item in findings]
            self._status.update(state=state, result=result, ended_at=time.time())
            self._write()

    def _moved_to(self, done: int, already: int = 0) -> None:
        now = self._clock()
        self._status["progress"]["done_bytes"] = done + already
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        if now - self._written >= _WRITE_EVERY_S:
            began, first = self._samples[0]
            self._status["progress"]["rate_bps"] = round((done - first) / (now - began)) if now > began else None
            self._write()

    def _write(self) -> None:
        self._status["updated_at"] = time.time()
        write_status(self._path, self._status)
        self._written = self._clock()


# In the unit


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    if len(argv) != 2:
        print("rankctl job: NAME SPEC.json", file=sys.stderr)
        return 2
    name = valid_name(argv[0])
    job = json.loads(Path(argv[1]).read_text())
    return execute(name, str(job["kind"]), str(job["node"]), job["spec"], root, _take_secrets(name, root))


def _secrets_path(name: str, root: Path) -> Path:
    return root / f".{name}.secrets"


def _take_secrets(name: str, root: Path) -> dict[str, Any]:
    """The secrets that were left for this job; from here on they are in its memory only."""
    path = _secrets_path(name, root)
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    finally:
        path.unlink(missing_ok=True)


def _leave_secrets(name: str, secrets: Mapping[str, Any], root: Path) -> None:
    path = _secrets_path(name, root)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(dict(secrets), out)


def execute(
    name: str,
    kind: str,
    node: str,
    spec: Mapping[str, Any],
    root: Path = ROOT,
    secrets: Mapping[str, Any] | None = None,
) -> int:
    """Run one job to its end; the status file says how it went, the exit status whether it went well."""
    status = _fresh_status(name, kind, node, spec) | {"pid": os.getpid()}
    reporter = Reporter(root / f"{name}.json", status, secrets=secrets)
    reporter.stage("begins")
    try:
        signal.signal(signal.SIGTERM, _terminated)
        module, function = KINDS[kind]
        result = getattr(import_module(f".{module}", __package__), function)(spec, reporter)
    except JobFailedError as failed:
        reporter.end("failed", None, failed.findings)
        return 1
    except _TerminatedError:
        reporter.end("cancelled", None, [cancelled(name, node)])
        return 1
    except Exception as error:
        # Whatever it was, the status file has to say it.
        print(traceback.format_exc(), file=sys.stderr)
        said = traceback.format_exception_only(error)[-1].strip().splitlines()
        where = traceback.extract_tb(error.__traceback__)[-1]
        unknown = finding(
            "UNKNOWN_CAUSE",
            node=node,
            found=f"the job {name} ended with an error of its own",
            expected="a result, or a finding that names the cause",
            evidence=[*said[-8:], f"at {os.path.basename(where.filename)}:{where.lineno} in {where.name}"],
            attach=f"the output of journalctl -u {unit_of(name)}",
        )
        reporter.end("failed", None, [unknown])
        return 1
    state = "failed" if worst_of(status) == "fatal" else "done"
    reporter.end(state, result)
    return 0 if state == "done" else 1


class _TerminatedError(Exception):
    pass


def _terminated(_number: int, _frame: Any) -> None:
    raise _TerminatedError


def worst_of(status: Mapping[str, Any]) -> str:
    return worst(from_dict(item) for item in status.get("findings", ()))


def _fresh_status(name: str, kind: str, node: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": name,
        "kind": kind,
        "node": node,
        "unit": unit_of(name),
        "spec_sha256": digest(spec),
        "state": "running",
        "pid": None,
        "started_at": time.time(),
        "ended_at": None,
        "updated_at": time.time(),
        "progress": {"stage": "starts", "done_bytes": 0, "total_bytes": 0, "rate_bps": None},
        "findings": [],
        "measurements": {},
        "result": None,
    }


# From outside


def installed_code() -> str:
    """SHA-256 of the rankctl that jobs would run, empty where it is not installed."""
    code = Path(RANKCTL)
    return hashlib.sha256(code.read_bytes()).hexdigest() if code.is_file() else ""


def cancelled(name: str, node: str) -> Finding:
    return finding("JOB_CANCELLED", node=node, found=f"the job {name} was stopped", expected="its end")


def unit_alive(name: str, runner: Run = run) -> bool:
    """Whether the job's unit runs; systemd's silence counts as alive, so that nothing is declared dead on no
    evidence.
    """
    done = runner(["systemctl", "show", "--property=ActiveState", "--value", unit_of(name)])
    return not done.ok or done.stdout.strip() in ("active", "activating", "deactivating", "reloading")


@contextmanager
def _locked(name: str, root: Path) -> Iterator[None]:
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(
    name: str,
    kind: str,
    node: str,
    spec: Mapping[str, Any],
    root: Path = ROOT,
    runner: Run = run,
    secrets: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> tuple[bool, dict[str, Any], list[Finding]]:
    """Start the job, or take up the one that runs already with the same specification: (started, status, findings).

    ``secrets`` lie in memory, for root only, until the job has read them. With ``replace`` a job that runs with another
    specification is stopped first: it belongs to a run that was given up.

    Raises ValueError for a specification that must not lie on a node, CommandFailed where systemd refuses.
    """
    valid_name(name)
    if kind not in KINDS:
        raise ValueError(f"no kind of job {kind!r}; there are {', '.join(sorted(KINDS))}")
    hits = secrets_in(spec)
    if hits:
        raise ValueError(f"a job's specification holds no secrets, and these look like some: {', '.join(hits)}")
    with _locked(name, root):
        known = read_status(name, root)
        if known and known.get("state") == "running" and unit_alive(name, runner):
            if known.get("spec_sha256") == digest(spec):
                return False, known, []
            if replace:
                runner(["systemctl", "stop", unit_of(name)], check=True, timeout_s=60)
        if known and not replace and known.get("state") == "running" and unit_alive(name, runner):
            conflict = finding(
                "JOB_CONFLICT",
                node=node,
                found=f"{known['unit']} runs with other instructions, since {_utc(known.get('started_at'))}",
                expected="no job of that name, or one with the same instructions",
                unit=known["unit"],
            )
            return False, known, [conflict]
        spec_path = root / f"{name}.spec.json"
        status = _fresh_status(name, kind, node, spec)
        spec_path.write_text(json.dumps({"kind": kind, "node": node, "spec": spec}, sort_keys=True))
        write_status(root / f"{name}.json", status)
        argv = ["systemd-run", f"--unit={unit_of(name)}", "--collect", "--quiet", "--service-type=exec"]
        argv += [f"--description=spark-cluster job {name}", "--property=KillMode=mixed", "--property=TimeoutStopSec=20"]
        argv += ["--property=LogRateLimitIntervalSec=0"]
        if secrets:
            _leave_secrets(name, secrets, root)
            (root / "openssl.cnf").write_text(OPENSSL_CONF)
            argv += [f"--setenv=OPENSSL_CONF={root / 'openssl.cnf'}"]
        argv += ["/usr/bin/python3", RANKCTL, "job", name, str(spec_path)]
        try:
            runner(argv, check=True, timeout_s=60, remedy=f"sudo systemctl status {unit_of(name)}")
        except Exception:
            (root / f"{name}.json").unlink(missing_ok=True)
            _secrets_path(name, root).unlink(missing_ok=True)
            raise
        return True, status, []


def poll(
    name: str,
    node: str,
    wait_s: float = 0.0,
    root: Path = ROOT,
    runner: Run = run,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    until: str = "end",
) -> tuple[dict[str, Any], list[Finding]]:
    """The job's status, looked at for up to ``wait_s`` until it is final, or until it listens; the findings are the
    job's, once it has ended.
    """

    def wanted(status: dict[str, Any] | None) -> bool:
        return status is None or status["state"] != "running" or (until == "listening" and "listening" in status)

    valid_name(name)
    ends = clock() + wait_s
    status = read_status(name, root)
    while not wanted(status) and clock() < ends:
        sleep(0.1)
        status = read_status(name, root)
    if status and status["state"] == "running" and not unit_alive(name, runner):
        # It may have written its last word between our look at the file and our question to systemd.
        status = read_status(name, root)
        if status and status["state"] == "running":
            status |= {"state": "failed", "ended_at": time.time()}
            return status, [died(status, node, runner)]
    if status is None:
        gone = {"name": name, "unit": unit_of(name), "state": "failed", "progress": {"stage": "unknown"}}
        return gone, [died(gone, node, runner)]
    return status, [from_dict(item) for item in status["findings"]] if status["state"] in FINAL else []


def died(status: Mapping[str, Any], node: str, runner: Run = run) -> Finding:
    log = runner(["journalctl", "-u", str(status["unit"]), "-n", "12", "--no-pager", "-o", "cat"])
    return finding(
        "JOB_DIED",
        node=node,
        found=f"{status['unit']} is gone; it was last seen at: {status.get('progress', {}).get('stage')}",
        expected="a final status in its status file",
        evidence=[line[:300] for line in log.stdout.splitlines() if line.strip()],
        unit=status["unit"],
    )


def cancel(name: str, root: Path = ROOT, runner: Run = run) -> tuple[bool, dict[str, Any] | None]:
    """Stop the job if it runs: (whether it ran, its status)."""
    status = read_status(valid_name(name), root)
    if not status or status["state"] != "running" or not unit_alive(name, runner):
        return False, status
    runner(["systemctl", "stop", unit_of(name)], check=True, timeout_s=60)
    return True, read_status(name, root)


def progress_line(status: Mapping[str, Any]) -> str:
    """How far a job is, in one line: what it does, bytes, share, rate, and the time that is left at this rate."""
    progress = status.get("progress") or {}
    done, total = int(progress.get("done_bytes") or 0), int(progress.get("total_bytes") or 0)
    # What was sent twice counts once: more than all of it is not there.
    done = min(done, total) if total else done
    words = str(progress.get("stage") or "runs")
    if not done and not total:
        return words
    if not total:
        return f"{words}: {human(done)}"
    text = f"{words}: {human(done)} of {human(total)}, {100 * done // total} %"
    rate = progress.get("rate_bps")
    if rate:
        text += f", {human(rate)}/s"
        rails = [
            f"{item['rail']} {human(item['rate_bps'])}/s" for item in progress.get("rails") or () if item["rate_bps"]
        ]
        if rails:
            text += f" ({', '.join(rails)})"
        # Before the first hundredth the rate says nothing about the rest.
        if total / 100 <= done < total:
            text += f", {_span((total - done) / rate)} left"
    return text


def human(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def _span(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _utc(seconds: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(float(seconds or 0)))
