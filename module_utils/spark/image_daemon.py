"""Docker's daemon by its socket: what it has, pull and load with their progress, names.

The command line copies every byte of a load once more and says nothing of a pull's progress where no terminal is.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from .findings import Finding, finding

SOCKET = "/run/docker.sock"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CREDENTIALS = "/root/.docker/config.json"
_ANSWER_S = 60.0


class DaemonError(Exception):
    """The daemon refused, in its own words, or did not answer (``status`` 0)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def silent(error: DaemonError, node: str) -> Finding:
    said = str(error).splitlines() or ["nothing"]
    return finding(
        "DOCKER_SILENT",
        node=node,
        found=f"Docker's daemon refused ({error.status})" if error.status else "Docker's daemon did not answer",
        expected="the image, or word that there is none",
        evidence=said[-5:],
    )


@dataclass(frozen=True)
class Store:
    """Where Docker keeps images. ``kind`` is ``containerd`` or ``classic``; ``root`` the folder that fills up."""

    kind: str
    driver: str
    docker_root: str
    root: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Call:
    """One long request. ``abandon`` ends it from another thread, upon which the daemon stops as well."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def abandon(self) -> None:
        if self._connection.sock:
            # Not close(): that would leave a reader in another thread waiting for ever.
            try:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


class Daemon:
    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def ask(self, method: str, resource: str) -> tuple[int, Any]:
        connection = _UnixConnection(self._path, _ANSWER_S)
        try:
            connection.request(method, resource, headers={"Content-Length": "0"} if method == "POST" else {})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(0, f"{self._path}: {error}") from error
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text or b"null")
        except ValueError:
            return answer.status, {"message": text[:300].decode("utf-8", "backslashreplace")}

    def _wanted(self, method: str, resource: str) -> Any:
        status, answer = self.ask(method, resource)
        if status >= 300:
            raise DaemonError(status, _message(answer, status))
        return answer

    def store(self) -> Store:
        info = self._wanted("GET", "/info")
        root = str(info.get("DockerRootDir") or "/var/lib/docker")
        status = [list(pair) for pair in info.get("DriverStatus") or ()]
        driver = str(info.get("Driver") or "")
        if ["driver-type", "io.containerd.snapshotter.v1"] not in status:
            return Store("classic", driver, root, root)
        return Store("containerd", driver, root, next(iter(containerd_roots(root)), root))

    def image(self, reference: str) -> dict[str, Any] | None:
        """``docker image inspect`` of one image; None where there is none."""
        status, answer = self.ask("GET", f"/images/{quote(reference, safe='/:@')}/json")
        if status == 404:
            return None
        if status >= 300 or not isinstance(answer, dict):
            raise DaemonError(status, _message(answer, status))
        return answer

    def disk_bytes(self, image_id: str) -> int:
        """What an image takes on the disk; on the containerd store that is its blobs and what they unpack to."""
        for item in self._wanted("GET", "/images/json?all=1") or ():
            if item.get("Id") == image_id:
                return int(item.get("Size") or 0)
        return 0

    def names(self) -> list[str]:
        images = self._wanted("GET", "/images/json?all=1") or []
        return [name for item in images for name in (*(item.get("RepoTags") or ()), *(item.get("RepoDigests") or ()))]

    def tag(self, name: str, repository: str, tag: str) -> None:
        self._wanted("POST", f"/images/{quote(name, safe='/:@')}/tag?{urlencode({'repo': repository, 'tag': tag})}")

    def forget(self, name: str) -> None:
        """Take a name away; the image stays where it has another one."""
        status, answer = self.ask("DELETE", f"/images/{quote(name, safe='/:@')}?noprune=1")
        if status >= 300 and status != 404:
            raise DaemonError(status, _message(answer, status))

    def answered_for(self, reference: str) -> dict[str, Any]:
        """What the registry says of ``reference``, asked by the daemon as for a pull; nothing is fetched."""
        connection = _UnixConnection(self._path, _ANSWER_S)
        try:
            resource = f"/distribution/{quote(reference, safe='/:@')}/json"
            connection.request("GET", resource, headers=_authorization(reference))
            answer = connection.getresponse()
            said = json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DaemonError(0, f"{self._path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300 or not isinstance(said, dict):
            raise DaemonError(answer.status, _message(said, answer.status))
        return said

    def pull(
        self, repository: str, digest: str, moved: Callable[[int, int], None], began: Callable[[Call], None]
    ) -> None:
        """Pull by digest; ``moved`` gets the bytes fetched so far and, as far as it is known, their sum."""
        connection = _UnixConnection(self._path, None)
        query = urlencode({"fromImage": repository, "tag": digest})
        try:
            connection.connect()
            began(Call(connection))
            headers = {"Content-Length": "0", **_authorization(repository)}
            connection.request("POST", f"/images/create?{query}", headers=headers)
            fetched: dict[str, tuple[int, int]] = {}
            for event in _events(connection.getresponse()):
                detail = event.get("progressDetail") or {}
                if event.get("status") == "Downloading" and detail.get("total"):
                    fetched[str(event.get("id"))] = (int(detail.get("current") or 0), int(detail["total"]))
                elif event.get("status") in ("Download complete", "Pull complete", "Already exists"):
                    done, total = fetched.get(str(event.get("id")), (0, 0))
                    fetched[str(event.get("id"))] = (max(done, total), total)
                moved(sum(item[0] for item in fetched.values()), sum(item[1] for item in fetched.values()))
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(0, f"{self._path}: {error}") from error
        finally:
            connection.close()

    def load(self, archive: Iterable[bytes], began: Callable[[Call], None]) -> None:
        """``docker load`` of an archive as it comes in."""
        connection = _UnixConnection(self._path, None)
        try:
            connection.connect()
            began(Call(connection))
            connection.putrequest("POST", "/images/load?quiet=1")
            connection.putheader("Content-Type", "application/x-tar")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            try:
                for block in archive:
                    if block:
                        connection.send(b"%x\r\n" % len(block) + block + b"\r\n")
                connection.send(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError):
                # It refused in the middle, and its answer says why.
                pass
            for _event in _events(connection.getresponse()):
                pass
        except (OSError, http.client.HTTPException) as error:
            raise DaemonError(0, f"{self._path}: {error}") from error
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The lines of a long answer; raises DaemonError with the first one that is an error."""
    if answer.status >= 300:
        raise DaemonError(answer.status, _message(_json(answer.read()), answer.status))
    for line in answer:
        event = _json(line)
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            raise DaemonError(answer.status, str(event["error"]))
        yield event


def _json(text: bytes) -> Any:
    try:
        return json.loads(text or b"null")
    except ValueError:
        return {"message": text[:300].decode("utf-8", "backslashreplace")}


def _message(answer: Any, status: int) -> str:
    said = answer.get("message") if isinstance(answer, Mapping) else None
    return str(said or f"the daemon answered {status}")


def containerd_roots(docker_root: str, config: str = CONTAINERD_CONFIG) -> list[str]:
    """Folders that can be the containerd's that Docker uses: the system's, or one that dockerd starts itself."""
    found = []
    try:
        set_root = re.search(r'^\s*root\s*=\s*["\']([^"\']+)["\']', Path(config).read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        set_root = None
    for root in (set_root[1] if set_root else None, "/var/lib/containerd", f"{docker_root}/containerd/daemon"):
        if root and root not in found and Path(root, "io.containerd.content.v1.content").is_dir():
            found.append(root)
    return found


def _authorization(reference: str, path: str = CREDENTIALS) -> dict[str, str]:
    """root's login for the registry of ``reference``, in the header that the daemon wants; none for no login."""
    head = reference.split("/", 1)[0]
    known = "/" in reference and (any(mark in head for mark in ".:") or head == "localhost")
    registry = head if known else "https://index.docker.io/v1/"
    try:
        entry = json.loads(Path(path).read_text())["auths"][registry]
        user, _, word = base64.b64decode(entry["auth"]).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    said = json.dumps({"username": user, "password": word, "serveraddress": registry})
    return {"X-Registry-Auth": base64.urlsafe_b64encode(said.encode()).decode()}
