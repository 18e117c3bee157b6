"""One rank on its node: whether it can start, starting it, what it is doing, stopping it.

The verbs of ``rankctl`` and the modules of the serving role both call this, so that a start by hand, by a play and by
systemd meet the
same checks. Nothing passes through a shell: the engine's command line is an argument list from the plan file on to
``execve``.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import baked, bundle, engine_log, gids
from .findings import Finding, fatal, finding, from_dict, render
from .images import local_name
from .parse.rdma import read_devices
from .plan.types import CONFIG_LABEL, CONTAINER_NAME, RANK_PATH, RUN_DIR, SECRET_CONFIG_PATH, UNIT_NAME
from .runner import Run, run

REFUSAL_PATH = f"{RUN_DIR}/refusal.json"
REFUSED = 78  # EX_CONFIG
STOP_S = 15
LOG_LINES = 4000
_SETTLE_S = 30.0


@dataclass(frozen=True)
class Place:
    """The node; a test gives another root and another runner."""

    root: Path = Path("/")
    run: Run = run

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")


HERE = Place()


class PlanError(Exception):
    """The plan file is missing or is none."""


def sha256(path: Path) -> str | None:
    """The hash of a file, None if there is none that can be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that appears complete or not at all, and is never readable by others in between."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            os.fchmod(out.fileno(), mode)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_plan(place: Place = HERE) -> dict[str, Any]:
    path = place.path(bundle.PLAN)
    try:
        plan = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PlanError(f"{bundle.PLAN} does not exist") from error
    except (OSError, ValueError) as error:
        raise PlanError(f"{bundle.PLAN} cannot be read: {error}") from error
    if (
        not isinstance(plan, dict)
        or not isinstance(plan.get("argv"), list)
        or not isinstance(plan.get("environment"), dict)
    ):
        raise PlanError(f"{bundle.PLAN} is not a plan: it names no command line")
    return plan


# Checks before a start. Each returns what stands against it.


def altered(place: Place = HERE) -> list[tuple[str, str | None, str]]:
    """Files that are not what their manifest says: path, hash found (None if gone), hash expected.

    Raises OSError or ValueError where there is no manifest to compare with.
    """
    expected = bundle.read_manifest(place.path(bundle.MANIFEST).read_bytes())
    found = ((path, sha256(place.path(path)), wanted) for path, wanted in sorted(expected.items()))
    return [item for item in found if item[1] != item[2]]


def altered_finding(node: str, path: str, found: str | None, expected: str) -> Finding:
    seen = f"{path} has SHA-256 {found}" if found else f"{path} is gone"
    return finding("LAUNCHER_ALTERED", node=node, found=seen, expected=f"SHA-256 {expected}, as installed", path=path)


def check_bundle(place: Place, node: str) -> list[Finding]:
    try:
        return [altered_finding(node, *item) for item in altered(place)]
    except (OSError, ValueError) as error:
        expected = "the manifest that is installed with the launcher"
        return [finding("LAUNCHER_NOT_INSTALLED", node=node, found=f"{bundle.MANIFEST}: {error}", expected=expected)]


def same_image(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether two descriptions are of one image: by registry digest, else by layers and architecture.

    An ``Id`` does not decide: it depends on the store in which Docker keeps the image.
    """
    digests = {str(d).rpartition("@")[2] for d in wanted.get("repo_digests") or ()}
    if digests & {str(d).rpartition("@")[2] for d in found.get("repo_digests") or ()}:
        return True
    same_layers = list(wanted.get("layers") or ()) == list(found.get("layers") or ())
    return same_layers and wanted.get("architecture") in (None, "", found.get("architecture"))


def check_image(place: Place, node: str, image: Mapping[str, Any]) -> tuple[list[Finding], dict[str, Any]]:
    """What is wrong with the image, and what it is."""
    reference = str(image["reference"])
    # An image that came from another node by save and load has lost its digest, and answers to its plain name.
    for name in dict.fromkeys((reference, local_name(reference))):
        seen = place.run(["docker", "image", "inspect", name], timeout_s=30)
        if seen.ok:
            break
    if not seen.ok:
        said = (seen.stderr or seen.stdout).strip()
        if "no such image" in said.lower():
            expected = f"image {reference}"
            return [
                finding(
                    "RANK_IMAGE_MISSING", node=node, found="Docker does not have it", expected=expected, evidence=[said]
                )
            ], {}
        return [finding("DOCKER_SILENT", node=node, found=said[-300:], expected="docker image inspect answers")], {}
    raw = json.loads(seen.stdout)[0]
    described = {
        "reference": reference,
        "name": name,
        "id": raw.get("Id"),
        "repo_digests": raw.get("RepoDigests") or [],
        "layers": (raw.get("RootFS") or {}).get("Layers") or [],
        "architecture": raw.get("Architecture"),
        "fabric_variables": baked.contradicting((raw.get("Config") or {}).get("Env") or ()),
    }
    wanted = dict(image.get("identity") or {})
    if image.get("digest"):
        wanted.setdefault("repo_digests", [image["digest"]])
    if (wanted.get("layers") or wanted.get("repo_digests")) and not same_image(wanted, described):
        found = f"{reference} is {described['id']} with {len(described['layers'])} layers"
        expected = f"{wanted.get('id') or image.get('digest')} with {len(wanted.get('layers') or ())} layers"
        return [finding("RANK_IMAGE_DIFFERS", node=node, found=found, expected=expected)], described
    return [], described


def check_weights(place: Place, node: str, path: str) -> list[Finding]:
    folder = place.path(path)
    if not folder.is_dir():
        return [finding("RANK_WEIGHTS_MISSING", node=node, found=f"{path} is no folder", expected="the model's folder")]
    if not any(entry.is_file() and entry.stat().st_size for entry in folder.iterdir()):
        return [finding("RANK_WEIGHTS_MISSING", node=node, found=f"{path} holds nothing", expected="the model's files")]
    return []


def listening(place: Place = HERE) -> set[int]:
    """TCP ports on which anything listens, of both address families."""
    ports = set()
    for name in ("tcp", "tcp6"):
        try:
            rows = place.path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if len(columns) > 3 and columns[3] == "0A":
                ports.add(int(columns[1].rpartition(":")[2], 16))
    return ports


def check_ports(place: Place, node: str, ports: Iterable[int]) -> list[Finding]:
    taken = sorted(set(ports) & listening(place))
    if not taken:
        return []
    who = place.run(["ss", "-Hltnp"], timeout_s=10)
    evidence = [line for line in who.stdout.splitlines() if any(f":{port} " in line for port in taken)]
    found = f"port {', '.join(map(str, taken))} is listened on"
    return [finding("RANK_PORT_TAKEN", node=node, found=found, expected="free ports", evidence=evidence)]


def memory_available(place: Place = HERE) -> int:
    for line in place.path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def check_memory(place: Place, node: str, needed: int, settle_s: float = _SETTLE_S) -> list[Finding]:
    """Memory of a rank that just ended comes back over some seconds, so a shortage counts once it has lasted."""
    until = time.monotonic() + settle_s
    while (available := memory_available(place)) < needed:
        if time.monotonic() >= until:
            found = f"{available / 2**30:.1f} GiB available"
            expected = f"{needed / 2**30:.1f} GiB for this rank"
            return [finding("RANK_MEMORY_SHORT", node=node, found=found, expected=expected)]
        time.sleep(1)
    return []


def container(place: Place = HERE) -> dict[str, Any] | None:
    """The container with the rank's name, None if there is none. Raises OSError where Docker does not answer."""
    seen = place.run(["docker", "container", "inspect", CONTAINER_NAME], timeout_s=20)
    if not seen.ok:
        said = (seen.stderr or seen.stdout).strip()
        if "no such container" in said.lower():
            return None
        raise OSError(f"docker container inspect: {said[-300:]}")
    raw = json.loads(seen.stdout)[0]
    state = raw.get("State") or {}
    labels = (raw.get("Config") or {}).get("Labels") or {}
    return {
        "id": raw.get("Id", ""),
        "running": bool(state.get("Running")),
        "status": state.get("Status", ""),
        "pid": int(state.get("Pid") or 0),
        "exit_status": state.get("ExitCode"),
        "memory_killed": bool(state.get("OOMKilled")),
        "started_at": state.get("StartedAt", ""),
        "config_sha256": labels.get(CONFIG_LABEL),
    }


def check_name(node: str, existing: Mapping[str, Any] | None) -> list[Finding]:
    if existing is None or existing["config_sha256"]:
        return []
    found = f"container {CONTAINER_NAME} ({existing['status']}) without the label {CONFIG_LABEL}"
    return [finding("RANK_NAME_FOREIGN", node=node, found=found, expected="no container of that name but ours")]


def read_api_key(place: Place, node: str, path: str) -> tuple[list[Finding], str]:
    """The key that a file holds, and what is wrong with the file. The key itself is never part of a finding."""
    wrong = ""
    key = ""
    try:
        status = place.path(path).stat()
        key = place.path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        wrong = f"it cannot be read ({error.__class__.__name__})"
    else:
        if status.st_mode & 0o077:
            wrong = f"its mode is {status.st_mode & 0o777:04o}"
        elif not key or len(key.split()) != 1:
            wrong = "it does not hold one line with one word"
    if wrong:
        expected = "one line, readable by root only (0600)"
        return [finding("API_KEY_UNUSABLE", node=node, found=f"{path}: {wrong}", expected=expected, path=path)], ""
    return [], key


def check_gids(place: Place, plan: Mapping[str, Any]) -> tuple[list[Finding], dict[str, int], dict[str, str]]:
    """Look up each HCA's RoCE v2 entry now: what is wrong or new, the index per device, variables that follow."""
    node, resolve = str(plan["node"]), plan["resolve"]
    wanted = resolve.get("gids") or ()
    devices = read_devices(place.root)
    resolved, found = gids.resolve(devices, wanted, node)
    indexes = {item.rdma_device: item.index for item in resolved}
    found += gids.by_rule(devices, resolved, plan.get("address_range"), node)
    found += gids.drift(wanted, resolved, node)
    variable = resolve.get("gid_index_variable")
    if not variable or fatal(found) or not indexes:
        return found, indexes, {}
    if len(set(indexes.values())) != 1:
        seen = ", ".join(f"{device}: {index}" for device, index in sorted(indexes.items()))
        split = finding("RANK_GID_INDEX_SPLIT", node=node, found=seen, expected="one index for all HCAs")
        return [*found, split], indexes, {}
    return found, indexes, {str(variable): str(next(iter(indexes.values())))}


def overruled(plan: Mapping[str, Any], image: Mapping[str, Any]) -> list[Finding]:
    """What of the image's own environment gives way to the plan."""
    lines = baked.told(image.get("fabric_variables") or {}, plan["environment"])
    if not lines:
        return []
    return [
        finding(
            "IMAGE_VARIABLES_OVERRULED",
            node=str(plan["node"]),
            found=f"{len(lines)} variable{'s' if len(lines) > 1 else ''} of {image['reference']}",
            expected="the plan's values, or none",
            evidence=lines,
        )
    ]


def check_room(place: Place, plan: Mapping[str, Any], settle_s: float) -> list[Finding]:
    """Whether name, ports and memory are free. A running container of ours holds them, and is replaced at the start."""
    node = str(plan["node"])
    try:
        existing = container(place)
    except OSError as error:
        expected = "docker container inspect answers"
        return [finding("DOCKER_SILENT", node=node, found=str(error), expected=expected)]
    said = check_name(node, existing)
    if existing is None or not existing["running"]:
        said += check_ports(place, node, plan.get("ports") or ())
        said += check_memory(place, node, int(plan.get("memory_bytes") or 0), settle_s)
    return said


def prestart(
    plan: Mapping[str, Any], place: Place = HERE, *, replacing: bool = False
) -> tuple[list[Finding], dict[str, Any]]:
    """Everything that must hold before this rank starts: what stands against it, and the start as it would be executed.

    With ``replacing`` a rank of ours still runs and will be stopped first, so ports, memory and the container's name
    are left to the check at the start itself.
    """
    node = str(plan["node"])
    said = check_bundle(place, node)
    image_findings, image = check_image(place, node, plan["image"])
    said += image_findings
    said += overruled(plan, image)
    said += check_weights(place, node, plan["weights"]["path"])
    indexes: dict[str, int] = {}
    extra: dict[str, str] = {}
    if plan.get("transport") == "rdma" and plan.get("resolve"):
        gid_findings, indexes, extra = check_gids(place, plan)
        said += gid_findings
    if plan.get("api_key_file") and plan.get("role") == "head":
        said += read_api_key(place, node, str(plan["api_key_file"]))[0]
    if not replacing and not any(f.code == "DOCKER_SILENT" for f in said):
        said += check_room(place, plan, settle_s=0 if fatal(said) else _SETTLE_S)
    record = start_record(plan, image, indexes, extra, place)
    return said, {**record, "findings": [item.as_dict() for item in said]}


def start_record(
    plan: Mapping[str, Any],
    image: Mapping[str, Any],
    indexes: Mapping[str, int],
    extra: Mapping[str, str],
    place: Place,
) -> dict[str, Any]:
    """The start verbatim. A variable that was resolved now is handed to Docker like the planned ones, by name.

    So are those that the image bakes in against the plan: a name without a value takes the variable out of the
    container. The plan names those of the image it saw; this one may have come later.
    """
    reference = plan["image"]["reference"]
    argv = [image.get("name", reference) if part == reference else part for part in plan["argv"]]
    named = {value for option, value in itertools.pairwise(argv) if option == "--env"}
    more = sorted({*extra, *image.get("fabric_variables", ())} - named)
    names = [part for name in more for part in ("--env", name)]
    return {
        "schema": 1,
        "cluster": plan.get("cluster"),
        "model": plan.get("model"),
        "node": plan["node"],
        "rank": plan["rank"],
        "role": plan.get("role"),
        "config_sha256": plan["config_sha256"],
        "argv": [*argv[:2], *names, *argv[2:]],
        "environment": {**plan["environment"], **extra},
        "image": dict(image),
        "gids": dict(indexes),
        "memory_available_bytes": memory_available(place),
        "launcher": launcher_hashes(place),
        "api_key_file": plan.get("api_key_file") if plan.get("role") == "head" else None,
        "invocation": os.environ.get("INVOCATION_ID", ""),
        "prepared_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def launcher_hashes(place: Place = HERE) -> dict[str, str]:
    try:
        return bundle.read_manifest(place.path(bundle.MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}


# Starting and stopping


def refuse(findings: Sequence[Finding], place: Place = HERE) -> None:
    """Say why this rank does not start: to the journal, and to a file that the play reads."""
    for item in findings:
        print(render(item), file=sys.stderr)
    body = json.dumps({"at": time.time(), "findings": [f.as_dict() for f in findings]}, indent=1)
    print(json.dumps([f.as_dict() for f in findings], sort_keys=True), file=sys.stderr, flush=True)
    write_private(place.path(REFUSAL_PATH), body.encode())


def refusal(since: float, place: Place = HERE) -> list[Finding]:
    """Why the start at or after ``since`` was refused; empty if it was not."""
    try:
        data = json.loads(place.path(REFUSAL_PATH).read_bytes())
    except (OSError, ValueError):
        return []
    return [from_dict(item) for item in data["findings"]] if float(data["at"]) >= since else []


def ready_to_run(place: Place = HERE) -> tuple[list[Finding], dict[str, Any]]:
    """Plan and prestart as one: what stands against the start, and the start."""
    try:
        plan = read_plan(place)
    except PlanError as error:
        node = os.uname().nodename
        return [finding("LAUNCHER_NOT_INSTALLED", node=node, found=str(error), expected="the plan of this node")], {}
    return prestart(plan, place)


def hand_over_key(path: str, place: Place = HERE) -> None:
    """The key as the engine's configuration file, which the container sees. A JSON string is a YAML string."""
    _wrong, key = read_api_key(place, "", path)
    write_private(place.path(SECRET_CONFIG_PATH), f"api-key: {json.dumps(key)}\n".encode())


def write_record(record: Mapping[str, Any], place: Place = HERE) -> None:
    write_private(place.path(RANK_PATH), (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())


def keep_checked(record: Mapping[str, Any], place: Place = HERE) -> None:
    """Write down what a start would use now; the record of a rank that runs is left as it is.

    The invocation stays that of the last start, whose log is found by it.
    """
    with contextlib.suppress(OSError):
        existing = container(place)
        if existing is not None and existing["running"] and existing["config_sha256"]:
            return
    last = str(started_with(place).get("invocation") or "")
    write_record({**record, "started": False, "invocation": last}, place)


def main_prestart(_argv: Sequence[str]) -> int:
    said, record = ready_to_run()
    if record:
        keep_checked(record)
    for item in said:
        print(render(item))
    if fatal(said):
        return REFUSED
    print(f"{record['node']}: rank {record['rank']} of {record['cluster']} can start {record['model']}")
    return 0


def main_run(_argv: Sequence[str]) -> int:
    """Check, write down, and become the rank. Returns only where the start is refused."""
    said, record = ready_to_run()
    for item in said:
        if item.severity != "fatal":
            print(render(item), file=sys.stderr, flush=True)
    docker = shutil.which("docker")
    if docker is None:
        expected = "Docker's client"
        said.append(finding("DOCKER_SILENT", node=os.uname().nodename, found="no program docker", expected=expected))
    if docker and not fatal(said):
        HERE.path(REFUSAL_PATH).unlink(missing_ok=True)
        remove_own(HERE)
        if record["api_key_file"]:
            hand_over_key(record["api_key_file"])
        write_record({**record, "started": True})
        become(docker, record["argv"], record["environment"])
    refuse(fatal(said))
    return REFUSED


def become(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by Docker's client, which reads the container's variables from its own environment.

    No value is ever an argument; and nothing of this process's environment can reach the container by its name.
    """
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    os.execve(program, list(argv), {**own, **environment})  # noqa: S606 - no shell is the point


def remove_own(place: Place = HERE) -> bool:
    """Remove what an earlier start of ours left; says whether there was anything."""
    existing = container(place)
    if existing is None or not existing["config_sha256"]:
        return False
    place.run(["docker", "rm", "--force", existing["id"]], timeout_s=60)
    return True


def main_stop(_argv: Sequence[str]) -> int:
    """Stop the container. systemd calls this for a rank that died by itself too: what is left of it stays readable."""
    existing = container(HERE)
    if existing is not None and existing["config_sha256"] and existing["running"]:
        HERE.run(["docker", "stop", "-t", str(STOP_S), existing["id"]], timeout_s=STOP_S + 20)
    return 0


# What the rank is doing


def unit(place: Place = HERE) -> dict[str, str]:
    wanted = "LoadState,ActiveState,SubState,Result,ExecMainStatus,InvocationID,ActiveEnterTimestampMonotonic"
    shown = place.run(["systemctl", "show", UNIT_NAME, f"--property={wanted}"], timeout_s=20)
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def log(invocation: str, place: Place = HERE, lines: int = LOG_LINES) -> list[str]:
    """The log of one start of the unit. The journal keeps it when the container is gone."""
    if not invocation:
        return []
    argv = [
        "journalctl",
        "--no-pager",
        "--all",
        "--output=cat",
        f"--lines={lines}",
        f"_SYSTEMD_INVOCATION_ID={invocation}",
    ]
    return engine_log.split(place.run(argv, timeout_s=30).stdout)


def tree(pid: int, place: Place = HERE) -> list[int]:
    """A process and all that descend from it. Orphans inside a container become children of its first process."""
    children: dict[int, list[int]] = {}
    for entry in place.path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += children.get(one, [])
    return found


def usage(pid: int, place: Place = HERE) -> dict[str, float]:
    """What the rank's processes have used so far; a process that ends takes its share along."""
    ticks = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    cpu, read, memory = 0.0, 0, 0
    for one in tree(pid, place) if pid else ():
        folder = place.path(f"/proc/{one}")
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            cpu += (int(fields[11]) + int(fields[12])) / ticks
            memory += int((folder / "statm").read_text().split()[1]) * page
            for line in (folder / "io").read_text().splitlines():
                if line.startswith("read_bytes:"):
                    read += int(line.split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return {"cpu_s": round(cpu, 2), "read_bytes": read, "memory_bytes": memory}


def health(address: str, port: int, timeout_s: float = 2) -> int | None:
    """The status of /health, None where nothing answers. It says that the web server runs, and nothing else."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def api_address(api_host: str) -> str:
    """Where the head itself reaches an API that is bound to ``api_host``."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(api_host, api_host)  # noqa: S104 - read, not bound


def status(place: Place = HERE, *, api_host: str = "", port: int = 0) -> dict[str, Any]:
    """What this node's rank is doing.

    ``state`` is ``running``, ``starting`` (the unit is up and has no container yet), ``dead`` (it was started and has
    ended) or ``absent``.
    """
    service = unit(place)
    active = service.get("ActiveState", "unknown")
    try:
        box = container(place)
        trouble = ""
    except OSError as error:
        box, trouble = None, str(error)
    # systemd forgets a unit that has ended well, and its invocation with it.
    last = started_with(place)
    invocation = service.get("InvocationID") or str(last.get("invocation") or "")
    lines = log(invocation, place)
    now = engine_log.progress(lines)
    if box is not None and box["running"] and box["config_sha256"]:
        state = "running"
    elif active in ("active", "activating", "reloading"):
        state = "starting"
    elif active == "failed" or (box is not None and box["config_sha256"]):
        state = "dead"
    else:
        state = "absent"
    answer = health(api_address(api_host), port) if port and state == "running" else None
    if answer == http.client.OK:
        # A head that has served for days has its start no longer in the part of the log that is read.
        now.phase, now.percent = "serving", None
    exit_status: int | None = None
    if state == "dead":
        text = service.get("ExecMainStatus", "")
        exit_status = box["exit_status"] if box else int(text) if text.isdecimal() else None
    result: dict[str, Any] = {
        "state": state,
        "unit": {
            "active": active,
            "sub": service.get("SubState"),
            "result": service.get("Result"),
            "load": service.get("LoadState"),
        },
        "invocation": invocation,
        "container": box,
        "docker_error": trouble,
        "exit_status": exit_status,
        "phase": now.phase,
        "phase_text": now.text,
        "joined": now.joined,
        "facts": now.facts,
        "log_lines": len(lines),
        "usage": usage(box["pid"] if box and box["running"] else 0, place),
        "memory_available_bytes": memory_available(place),
        "start": last if state == "running" else {},
        "health": answer,
    }
    if state == "dead":
        result["log_tail"] = engine_log.tail(lines)
    return result


def started_with(place: Place = HERE) -> dict[str, Any]:
    """What the last start wrote down: argument list, environment, GIDs, image. Holds no secrets."""
    try:
        record = json.loads(place.path(RANK_PATH).read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(record) if isinstance(record, dict) else {}


def death(seen: Mapping[str, Any], node: str, rank: int, place: Place = HERE) -> Finding:
    """Why the rank that ``status`` saw dead has ended."""
    box = seen.get("container") or {}
    return engine_log.death(
        log(str(seen.get("invocation") or ""), place),
        node=node,
        what=f"rank {rank}",
        exit_status=seen.get("exit_status"),
        memory_killed=bool(box.get("memory_killed")),
        phase=str(seen.get("phase") or "starting"),
    )


def main_status(argv: Sequence[str]) -> int:
    try:
        plan = read_plan()
    except PlanError as error:
        print(f"no rank is planned for this node: {error}")
        return 3
    head = plan.get("role") == "head"
    seen = status(port=int(plan.get("port") or 0) if head else 0)
    if "--json" in argv:
        print(
            json.dumps({"node": plan["node"], "rank": plan["rank"], "model": plan.get("model"), **seen}, sort_keys=True)
        )
    else:
        print(
            f"{plan['node']}: rank {plan['rank']} of {plan.get('cluster')}, {plan.get('model')}: {seen['state']}, "
            f"{seen['phase_text']}"
        )
    return 0 if seen["state"] in ("running", "starting") else 3


def remains(ports: Iterable[int], pids: Iterable[int], place: Place = HERE) -> list[str]:
    """What of a stopped rank is still there, in words."""
    left = []
    box = container(place)
    if box is not None and box["config_sha256"]:
        left.append(f"container {CONTAINER_NAME} is {box['status']}")
    alive = [pid for pid in pids if place.path(f"/proc/{pid}").exists()]
    if alive:
        left.append(f"processes {', '.join(map(str, alive))} live")
    still = sorted(set(ports) & listening(place))
    if still:
        left.append(f"ports {', '.join(map(str, still))} are listened on")
    if unit(place).get("ActiveState") not in ("inactive", "failed", "unknown", None):
        left.append(f"{UNIT_NAME} is {unit(place)['ActiveState']}")
    return left


def after_stop(node: str, left: Sequence[str]) -> Finding:
    expected = "unit, container, processes and ports of the rank are gone"
    if left:
        return finding("RANK_NOT_STOPPED", node=node, found="; ".join(left), expected=expected)
    return finding("RANK_STOPPED", node=node, found="nothing of it was found", expected=expected)
