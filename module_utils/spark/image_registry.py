"""A registry of one image on this node's loopback, for this node's Docker to pull from.

A pull does what a load does not: Docker asks only for the layers that it lacks, fetches several at a time while it
unpacks others, checks each against its hash, takes the one platform it needs of an index, and keeps the digest. Docker
speaks plain HTTP with 127.0.0.0/8 by its own default.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any

_PATH = re.compile(r"/v2/(?P<name>[a-z0-9/-]+)/(?P<what>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_TLS_HELLO = b"\x16"
REPOSITORY = "spark-cluster"

Read = Callable[[str, int], Iterator[bytes]]


class Registry:
    """``documents`` are manifests and configuration, ``sizes`` those of the layers, ``read`` gives a layer from an
    offset on. What ``read`` raises ends the answer and is kept in ``errors``.
    """

    def __init__(self, documents: Mapping[str, tuple[str, bytes]], sizes: Mapping[str, int], read: Read) -> None:
        self.documents, self.sizes, self.read = dict(documents), dict(sizes), read
        self.errors: list[Exception] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": self}))
        self._server.daemon_threads = True
        # A name that nobody knows beforehand, as every process of this node can ask.
        self.name = f"{REPOSITORY}/{secrets.token_hex(8)}"
        self.repository = f"127.0.0.1:{self._server.server_port}/{self.name}"

    def __enter__(self) -> Registry:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def handle_one_request(self) -> None:
        # Docker tries TLS first, and goes on in plain words only if what comes back looks like HTTP/1.
        if self.rfile.peek(1)[:1] == _TLS_HELLO:  # type: ignore[attr-defined]
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.close_connection = True
            return
        super().handle_one_request()

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        if self.path == "/v2/":
            return self._head(200, 0)
        asked = _PATH.fullmatch(self.path)
        if not asked or asked["name"] != self.registry.name:
            return self._head(404, 0)
        digest = asked["digest"]
        if digest in self.registry.documents:
            kind, text = self.registry.documents[digest]
            self._head(200, len(text), {"Content-Type": kind, "Docker-Content-Digest": digest})
            if body:
                self.wfile.write(text)
            return None
        if asked["what"] == "manifests" or digest not in self.registry.sizes:
            return self._head(404, 0)
        return self._layer(digest, self.registry.sizes[digest], body=body)

    def _layer(self, digest: str, size: int, *, body: bool) -> None:
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2]), size - 1) if wanted and wanted[2] else size - 1
        if first > last:
            return self._head(416, 0, {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Type": "application/octet-stream", "Docker-Content-Digest": digest}
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self._head(206 if wanted else 200, last - first + 1, headers)
        if not body:
            return None
        left = last - first + 1
        # From here on there is no way back to an error's status: the connection ends early, and Docker notices.
        self.close_connection = True
        try:
            for block in self.registry.read(digest, first):
                self.wfile.write(block[:left])
                left -= len(block)
                if left <= 0:
                    break
        except (BrokenPipeError, ConnectionResetError):
            return None
        except Exception as error:
            self.registry.errors.append(error)
            return None
        self.close_connection = left != 0
        return None

    def _head(self, status: int, length: int, headers: Mapping[str, str] | None = None) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
