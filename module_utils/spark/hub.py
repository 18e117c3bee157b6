"""The job that fetches weights onto one node: the hub's own client, inside the serving image, when asked.

The client's own layout, resuming and checks are used as they are. It runs as the owner of the models' folder; a token
is a file that is mounted, so that neither an argument list nor ``docker inspect`` shows it.
"""

from __future__ import annotations

import json
import os
import pkgutil
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from . import undo, weights
from .findings import Finding, finding
from .hub_client import MARK
from .jobs import JobFailedError, Reporter
from .runner import run

CONTAINER = "spark-weights-download"
ENDPOINT = "https://huggingface.co"
LOGIN = Path("/run/spark-cluster/hub/login")
STALL_S = 180.0
TRIES = 3
_PAUSE_S = 3.0
_LOOK_EVERY_S = 1.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_IN_CONTAINER = "/run/hub-login"


def download_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Fetch ``repository`` at ``revision`` into ``path`` inside ``image``; what is there already is kept and used."""
    return Download(spec, job).run()


class Download:
    def __init__(self, spec: Mapping[str, Any], job: Reporter) -> None:
        self.job = job
        self.path = str(spec["path"]).rstrip("/")
        self.repository, self.revision = str(spec["repository"]), str(spec.get("revision") or "main")
        self.image = str(spec["image"])
        self.endpoint = str(spec.get("endpoint") or ENDPOINT).rstrip("/")
        self.login_file = str(spec.get("login_file") or "")
        self.bytes, self.headroom = int(spec.get("bytes") or 0), int(spec.get("headroom_bytes") or 0)
        found = os.stat(weights.existing_parent(self.path))
        self.owner = (found.st_uid, found.st_gid)
        parent, name = os.path.split(self.path)
        # A folder of the hub's own cache is given as models--ORG--NAME, and keeps blobs, links and references.
        self.cache = name.startswith("models--")
        self.new = not os.path.lexists(self.path)
        # Under its real name only when it is whole: until then nobody takes it for the weights.
        self.staging = os.path.join(parent, f".spark-download-{name}")
        self.mounted = self.staging if self.new else parent if self.cache else self.path
        self.work = self.staging if self.new else self.path

    def run(self) -> dict[str, Any]:
        began, before = time.monotonic(), occupied(self.work)
        self._room(before)
        for path in dict.fromkeys((self.work, self.path)):
            undo.record({"kind": "weights_copied", "path": path, "new": self.new})
        self._folder(self.mounted)
        script = pkgutil.get_data(__package__ or "spark", "hub_client.py")
        if script is None:
            raise RuntimeError("hub_client.py is not in the package")
        with self._login() as login:
            said = self._tries(self._argv(login), script)
        commit = str(said["commit"])
        seconds = time.monotonic() - began
        fetched = max(0, occupied(self.work) - before)
        if self.new:
            self._publish()
        self.job.measure(weights_download_bytes=fetched, weights_download_s=round(seconds, 3))
        if not _COMMIT.fullmatch(self.revision):
            self.job.note(
                finding(
                    "HUB_REVISION_FLOATS",
                    node=self.job.node,
                    found=f"{self.repository}@{self.revision} is {commit} today",
                    expected="a commit in weights.revision",
                    commit=commit,
                )
            )
        self.job.note(
            finding(
                "HUB_FETCHED",
                node=self.job.node,
                found=f"{self.repository}@{commit} in {self.path}",
                expected="every file of the revision",
            )
        )
        return {"changed": fetched > 0 or self.new, "bytes": fetched, "commit": commit}

    def _publish(self) -> None:
        """Its real name in one step; on the disk before that, as a copy without its contents would be believed."""
        os.sync()
        os.rename(os.path.join(self.staging, os.path.basename(self.path)) if self.cache else self.staging, self.path)
        if self.cache:
            # Locks of the client, of no use to anybody.
            shutil.rmtree(self.staging, ignore_errors=True)
        undo.sync_directory(Path(self.path).parent)

    def _room(self, before: int) -> None:
        free = shutil.disk_usage(weights.existing_parent(self.path)).free
        found = weights.room(self.job.node, self.path, max(0, self.bytes - before), free, self.headroom)
        if found:
            raise JobFailedError(*found)

    def _folder(self, path: str) -> None:
        """Made for the owner, parents included, before Docker would make them for root."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for item in reversed(missing):
            os.mkdir(item, 0o755)
            os.chown(item, *self.owner)

    @contextmanager
    def _login(self) -> Iterator[Path | None]:
        """A copy of the token that the container's user can read and nobody else, for as long as it runs."""
        source = Path(self.login_file) if self.login_file else self._own_login()
        if source is None:
            yield None
            return
        try:
            text = source.read_text().strip()
        except OSError as error:
            raise JobFailedError(self._denied([f"{source}: {error.strerror}"])) from error
        LOGIN.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        LOGIN.unlink(missing_ok=True)
        descriptor = os.open(LOGIN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        try:
            os.fchown(descriptor, *self.owner)
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        try:
            yield LOGIN
        finally:
            LOGIN.unlink(missing_ok=True)

    def _own_login(self) -> Path | None:
        """Where `hf auth login` of the owner left it."""
        with suppress(KeyError, OSError):
            path = Path(pwd.getpwuid(self.owner[0]).pw_dir, ".cache/huggingface/token")
            return path if path.is_file() else None
        return None

    def _argv(self, login: Path | None) -> list[str]:
        environment = {
            "HOME": "/tmp",  # noqa: S108 - the container's own
            "HF_HOME": "/tmp/hub",  # noqa: S108 - the container's own
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0",
        }
        volumes = [f"{self.mounted}:{self.mounted}"]
        if login:
            environment["HF_TOKEN_PATH"] = _IN_CONTAINER
            volumes.append(f"{login}:{_IN_CONTAINER}:ro")
        asked = {
            "repository": self.repository,
            "revision": self.revision,
            "layout": "cache_dir" if self.cache else "local_dir",
            "folder": self.mounted,
            "workers": 8,
        }
        argv = ["docker", "run", "--rm", "--interactive", f"--name={CONTAINER}", "--network=host", "--pull=never"]
        argv += [f"--user={self.owner[0]}:{self.owner[1]}", "--workdir=/", "--log-driver=none"]
        argv += [f"--volume={item}" for item in volumes]
        argv += [f"--env={name}={value}" for name, value in environment.items()]
        return [*argv, "--entrypoint=python3", self.image, "-", json.dumps(asked)]

    def _tries(self, argv: list[str], script: bytes) -> dict[str, Any]:
        """One run after the other as long as each gets further; what stands still is given up after several."""
        left = TRIES
        while True:
            reached = occupied(self.work)
            said, stalled, tail = self._once(argv, script)
            if said.get("done"):
                return said
            failure = self._why(said, tail, stalled=stalled)
            if occupied(self.work) > reached:
                left = TRIES
            left -= 1
            if failure.code not in ("HUB_UNREACHABLE", "HUB_STALLED") or left <= 0:
                raise JobFailedError(failure)
            time.sleep(_PAUSE_S)

    def _once(self, argv: list[str], script: bytes) -> tuple[dict[str, Any], bool, list[str]]:
        remove_container()
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said: dict[str, Any] = {}
        tail: list[str] = []
        heard = [time.monotonic()]
        if not (child.stdin and child.stdout):
            raise RuntimeError("pipes were asked for")
        stream = child.stdout

        def listen() -> None:
            for raw in stream:
                heard[0] = time.monotonic()
                line = raw.decode("utf-8", "backslashreplace").rstrip()
                if line.startswith(MARK):
                    said.update(json.loads(line[len(MARK) :]))
                elif line:
                    tail[:] = [*tail[-11:], line[:300]]

        listener = Thread(target=listen, daemon=True)
        try:
            with suppress(BrokenPipeError):
                child.stdin.write(script)
                child.stdin.close()
            listener.start()
            stalled = self._follow(child, said, heard)
        finally:
            if child.poll() is None:
                remove_container()
                child.kill()
            child.wait()
        listener.join(5)
        return said, stalled, tail

    def _follow(self, child: subprocess.Popen[bytes], said: Mapping[str, Any], heard: list[float]) -> bool:
        """Until it ends, or stands still: whether it did."""
        self.job.stage(f"fetches {self.repository} from {self.endpoint}", self.bytes)
        last, moved_at, total = -1, time.monotonic(), self.bytes
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK_EVERY_S)
                return False
            now = occupied(self.work)
            if int(said.get("total_bytes") or 0) not in (0, total):
                total = int(said["total_bytes"])
                self.job.stage(f"fetches {self.repository} from {self.endpoint}", total)
            if now != last:
                last, moved_at = now, time.monotonic()
                self.job.at(now)
            elif time.monotonic() - max(moved_at, heard[0]) > STALL_S:
                return True

    def _why(self, said: Mapping[str, Any], tail: list[str], *, stalled: bool) -> Finding:
        node, page = self.job.node, f"{self.endpoint}/{self.repository}"
        evidence = [str(said["text"])] if said.get("text") else tail[-6:]
        expected = f"{self.repository}@{self.revision} in {self.path}"
        kind = "stalled" if stalled else str(said.get("error") or "unknown")
        common: dict[str, Any] = {"node": node, "expected": expected, "evidence": evidence}
        if kind in ("gated", "denied"):
            return self._denied(evidence)
        known: Mapping[str, Callable[[], Finding]] = {
            "repository": lambda: finding("HUB_NO_SUCH_REPOSITORY", found="404", page=page, **common),
            "revision": lambda: finding("HUB_NO_SUCH_REVISION", found=self.revision, page=page, **common),
            "network": lambda: finding(
                "HUB_UNREACHABLE", found="no answer", endpoint=self.endpoint, path=self.path, **common
            ),
            "stalled": lambda: finding("HUB_STALLED", found=f"nothing moved for {STALL_S:.0f} s", **common),
            "client": lambda: finding(
                "HUB_CLIENT_MISSING",
                found=f"{self.image} has no huggingface_hub",
                command=f"hf download {self.repository} --revision {self.revision} --local-dir {self.path}",
                **common,
            ),
            "permission": lambda: finding(
                "HUB_FOLDER_CLOSED",
                found=f"user {self.owner[0]} may not write below {self.mounted}",
                path=self.mounted,
                **common,
            ),
            "full": lambda: finding(
                "DISK_FULL", found=f"the disk ran full below {self.path}", path=self.path, short="space", **common
            ),
        }
        if kind in known:
            return known[kind]()
        return finding("UNKNOWN_CAUSE", found="the download ended with an error", attach="this message", **common)

    def _denied(self, evidence: list[str]) -> Finding:
        return finding(
            "HUB_DENIED",
            node=self.job.node,
            found=f"{self.repository} is closed to {'this login' if self.login_file else 'everybody without a login'}",
            expected="a login that may read it",
            evidence=evidence,
            page=f"{self.endpoint}/{self.repository}",
        )


def remove_container() -> None:
    """Of an earlier run that was killed, or of this one when it has to end."""
    run(["docker", "rm", "--force", CONTAINER], timeout_s=60)


def occupied(path: str) -> int:
    """Bytes below a folder as the disk has them; the client's files of parts included, links not followed."""
    total = 0
    for folder, _folders, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                total += min(found.st_size, found.st_blocks * 512)
    return total
