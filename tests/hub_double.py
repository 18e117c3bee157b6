"""The Hugging Face hub for tests: so much of it as its own client asks for."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/tiny"
_API = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+))?/?")
_FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


class HubDouble:
    """``token`` makes the repository gated. ``cut_after`` ends the next answers' bodies after so many bytes, as often
    as ``cuts`` says; ``silent_s`` keeps a file's answer back.
    """

    def __init__(self, files: dict[str, bytes], address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.files = files
        self.token = ""
        self.cut_after, self.cuts, self.silent_s = 0, 0, 0.0
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.server = ThreadingHTTPServer(address, type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.endpoint = f"http://{address[0]}:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: Any) -> None:
        return

    def say(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, text: str) -> None:
        self.say(status, json.dumps({"error": text}).encode(), {"X-Error-Code": code, "X-Error-Message": text})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.seen.append((self.command, path, dict(self.headers)))
        asked = _API.fullmatch(path) or _FILE.fullmatch(path)
        if not asked or asked["repository"] != REPOSITORY:
            # Nobody is to learn which private repositories there are.
            status = 404 if self.headers.get("Authorization") else 401
            return self.refuse(status, "RepoNotFound", "Repository not found")
        if (asked["revision"] or "main") not in ("main", COMMIT):
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {asked['revision']}")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            status = 403 if self.headers.get("Authorization") else 401
            return self.refuse(status, "GatedRepo", f"Access to model {REPOSITORY} is restricted.")
        if "name" not in asked.re.groupindex:
            said = self.tree() if asked["what"] == "tree" else self.info()
            return self.say(200, json.dumps(said).encode(), {"Content-Type": "application/json"})
        data = hub.files.get(asked["name"])
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        return self.file(data)

    def info(self) -> dict[str, Any]:
        siblings = [{"rfilename": name, "size": len(data), "blobId": "x"} for name, data in self.hub.files.items()]
        return {
            "_id": "1",
            "id": REPOSITORY,
            "modelId": REPOSITORY,
            "sha": COMMIT,
            "private": False,
            "siblings": siblings,
        }

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "oid": hashlib.sha256(data).hexdigest()[:40], "size": len(data), "path": name}
            for name, data in self.hub.files.items()
        ]

    def file(self, data: bytes) -> None:
        hub, size = self.hub, len(data)
        if self.command == "GET" and hub.silent_s:
            time.sleep(hub.silent_s)
        headers = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status = 200
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
            if first >= size:
                return self.say(416, b"", {"Content-Range": f"bytes */{size}"})
            data, status = data[first : last + 1], 206
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        if self.command == "GET" and hub.cuts > 0 and len(data) > hub.cut_after:
            hub.cuts -= 1
            self.close_connection = True
            return self.say(status, data[: hub.cut_after], headers, len(data))
        return self.say(status, data, headers)


def main(arguments: list[str]) -> int:
    """``hub_double.py PORT FOLDER [TOKEN]``: serve a folder's files until ended."""
    folder = Path(arguments[1])
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub = HubDouble(files, ("127.0.0.1", int(arguments[0])))
    hub.token = arguments[2] if len(arguments) > 2 else ""
    print(hub.endpoint, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
