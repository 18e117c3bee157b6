"""A Docker daemon for tests: the real forms of both stores on the disk, and so much of the API as is used."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import socketserver
import tarfile
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ENVIRONMENT = ["PATH=/usr/bin"]


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_of(files: dict[str, bytes]) -> bytes:
    """A layer's archive. A name that ends in > is a link to its content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.rstrip(">"))
            if name.endswith(">"):
                info.type, info.linkname = tarfile.SYMTYPE, content.decode()
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


class DockerDouble:
    def __init__(self, root: Path, kind: str, architecture: str = "amd64") -> None:
        self.root, self.kind, self.architecture = root, kind, architecture
        self.docker_root = root / "docker"
        self.blobs = self.docker_root / "containerd/daemon/io.containerd.content.v1.content/blobs/sha256"
        self.layers = self.docker_root / "image/overlay2/layerdb/sha256"
        self.configs = self.docker_root / "image/overlay2/imagedb/content/sha256"
        for folder in (self.blobs if kind == "containerd" else self.configs, self.docker_root):
            folder.mkdir(parents=True, exist_ok=True)
        self.images: dict[str, dict[str, Any]] = {}
        self.registry: dict[str, Any] = {}
        self.asked: list[str] = []
        self.fails: dict[str, str] = {}
        self.socket = str(root / "docker.sock")
        handler = type("Handler", (_Handler,), {"double": self})
        self.server = type("Server", (socketserver.ThreadingMixIn, socketserver.UnixStreamServer), {})(
            self.socket, handler
        )
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    # What it has

    def plant(self, name: str, layers: list[bytes], *, packed: bool = False, index: bool = False) -> str:
        """An image of these layers under this name; its Id."""
        config = self.config_of([sha(layer) for layer in layers])
        if self.kind == "classic":
            self.keep_layers(config, layers)
            return self.name(name, sha(config), config)
        sent = [gzip.compress(layer, 1, mtime=0) if packed else layer for layer in layers]
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if packed else "")
        parts = [{"mediaType": kind, "digest": sha(item), "size": len(item)} for item in sent]
        manifest = self.manifest_of(config, parts)
        for blob in (*sent, config, manifest):
            self.blob(blob)
        top = manifest
        if index:
            entry = {"digest": sha(manifest), "platform": {"os": "linux", "architecture": self.architecture}}
            other = {"digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "s390x"}}
            unknown = {"digest": f"sha256:{'1' * 64}", "platform": {"os": "unknown", "architecture": "unknown"}}
            top = json.dumps({"schemaVersion": 2, "manifests": [other, unknown, entry]}).encode()
            self.blob(top)
        return self.name(name, sha(top), config)

    def config_of(self, diff_ids: list[str]) -> bytes:
        return json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "config": {"Env": ENVIRONMENT},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            }
        ).encode()

    @staticmethod
    def manifest_of(config: bytes, layers: list[dict[str, Any]]) -> bytes:
        kind = "application/vnd.oci.image.manifest.v1+json"
        described = {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": sha(config),
            "size": len(config),
        }
        return json.dumps({"schemaVersion": 2, "mediaType": kind, "config": described, "layers": layers}).encode()

    def blob(self, data: bytes) -> None:
        (self.blobs / sha(data)[7:]).write_bytes(data)

    def keep_layers(self, config: bytes, layers: list[bytes]) -> None:
        (self.configs / sha(config)[7:]).write_bytes(config)
        chain = ""
        for layer, diff_id in zip(layers, json.loads(config)["rootfs"]["diff_ids"], strict=True):
            chain = sha(f"{chain} {diff_id}".encode()) if chain else diff_id
            folder = self.layers / chain[7:]
            if folder.exists():
                continue
            folder.mkdir(parents=True)
            files = self.docker_root / "overlay2" / chain[7:] / "diff"
            files.mkdir(parents=True)
            lines, size = _split(layer, files)
            with gzip.open(folder / "tar-split.json.gz", "wt") as out:
                out.write("".join(json.dumps(line) + "\n" for line in lines))
            (folder / "diff").write_text(diff_id)
            (folder / "cache-id").write_text(chain[7:])
            (folder / "size").write_text(str(size))

    def name(self, name: str, image_id: str, config: bytes) -> str:
        data = json.loads(config)
        repository = name.partition("@")[0].rpartition(":")[0] if "@" not in name else name.partition("@")[0]
        self.images[name] = {
            "Id": image_id,
            "RepoDigests": [f"{repository}@{image_id}"] if self.kind == "containerd" else [],
            "Config": data["config"],
            "RootFS": {"Type": "layers", "Layers": data["rootfs"]["diff_ids"]},
            "Architecture": data["architecture"],
            "Os": data["os"],
            "Size": 1000,
        }
        return image_id

    def find(self, name: str) -> dict[str, Any] | None:
        found = self.images.get(name)
        if found is None and "@" in name:
            rest, _, digest = name.partition("@")
            repository = rest.rpartition(":")[0] if ":" in rest.rpartition("/")[2] else rest
            found = next((i for i in self.images.values() if f"{repository}@{digest}" in i["RepoDigests"]), None)
        return found or next((item for item in self.images.values() if item["Id"] == name), None)

    # What is done to it

    def pull(self, repository: str, digest: str) -> None:
        def get(what: str, wanted: str) -> bytes:
            host, _, path = repository.partition("/")
            self.asked.append(wanted)
            data: bytes = urllib.request.urlopen(f"http://{host}/v2/{path}/{what}/{wanted}", timeout=20).read()
            if sha(data) != wanted:
                raise ValueError(f"unexpected commit digest {sha(data)}, expected {wanted}")
            self.blob(data)
            return data

        top = json.loads(get("manifests", digest))
        for item in top.get("manifests", []):
            if item["platform"]["architecture"] == self.architecture:
                top = json.loads(get("manifests", item["digest"]))
        config = get("blobs", top["config"]["digest"])
        for layer in top["layers"]:
            if not (self.blobs / layer["digest"][7:]).exists():
                get("blobs", layer["digest"])
        self.name(f"{repository}@{digest}", digest, config)

    def load(self, data: bytes) -> None:
        members = {}
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                members[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
        self.asked += sorted(name for name in members if name.endswith("layer.tar"))
        (entry,) = json.loads(members["manifest.json"])
        config = members[entry["Config"]]
        layers, chain = [], ""
        for diff_id, name in zip(json.loads(config)["rootfs"]["diff_ids"], entry["Layers"], strict=True):
            chain = sha(f"{chain} {diff_id}".encode()) if chain else diff_id
            if (self.layers / chain[7:]).exists():
                layers.append(b"")
                continue
            layer = members[name]
            layer = gzip.decompress(layer) if layer[:2] == b"\x1f\x8b" else layer
            if sha(layer) != diff_id:
                raise ValueError("layers from manifest don't match image configuration")
            layers.append(layer)
        self.keep_layers(config, layers)
        self.name(entry["RepoTags"][0], sha(config), config)


def _split(layer: bytes, files: Path) -> tuple[list[dict[str, Any]], int]:
    lines: list[dict[str, Any]] = []
    at = size = 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        for member in archive:
            if member.issym():
                (files / member.name).symlink_to(member.linkname)
                continue
            path = files / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = layer[member.offset_data : member.offset_data + member.size]
            path.write_bytes(content)
            lines.append({"type": 2, "payload": base64.b64encode(layer[at : member.offset_data]).decode()})
            lines.append({"type": 1, "name": member.name, "size": member.size, "payload": "x"})
            at, size = member.offset_data + member.size, size + member.size
    lines.append({"type": 2, "payload": base64.b64encode(layer[at:]).decode()})
    return lines, size


class _Handler(BaseHTTPRequestHandler):
    double: DockerDouble

    def address_string(self) -> str:
        return "local"

    def log_message(self, *_args: Any) -> None:
        return

    def say(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        double, path = self.double, unquote(urlsplit(self.path).path)
        if path == "/info":
            status = [["driver-type", "io.containerd.snapshotter.v1"]] if double.kind == "containerd" else []
            driver = "overlayfs" if double.kind == "containerd" else "overlay2"
            return self.say(200, {"DockerRootDir": str(double.docker_root), "Driver": driver, "DriverStatus": status})
        if path == "/version":
            return self.say(200, {"ApiVersion": "1.48", "Os": "linux", "Arch": double.architecture})
        if path == "/images/json":
            tags = [
                {"Id": item["Id"], "RepoTags": [name], "RepoDigests": item["RepoDigests"], "Size": 2000}
                for name, item in double.images.items()
            ]
            return self.say(200, tags)
        if match := re.fullmatch(r"/distribution/(.+)/json", path):
            found = double.registry.get(match[1])
            return self.say(200, found) if found else self.say(401, {"message": "dial tcp: no such host"})
        found = double.find(path.removeprefix("/images/").removesuffix("/json"))
        return self.say(200, found) if found else self.say(404, {"message": f"No such image: {path}"})

    def do_DELETE(self) -> None:
        name = unquote(urlsplit(self.path).path).removeprefix("/images/")
        self.say(200 if self.double.images.pop(name, None) else 404, [])

    def do_POST(self) -> None:
        double, parts = self.double, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if match := re.fullmatch(r"/images/(.+)/tag", unquote(parts.path)):
            found = double.find(match[1])
            if not found:
                return self.say(404, {"message": "no such image"})
            copied = dict(found)
            if double.kind == "containerd":
                copied["RepoDigests"] = [f"{query['repo']}@{found['Id']}"]
            double.images[f"{query['repo']}:{query['tag']}"] = copied
            return self.say(201, None)
        data = self.body()
        if said := double.fails.get(parts.path):
            return self.say(200, {"error": said})
        try:
            if parts.path == "/images/load":
                double.load(data)
            else:
                double.pull(query["fromImage"], query["tag"])
        except (ValueError, KeyError, OSError, urllib.error.URLError) as error:
            return self.say(200, {"error": str(error)})
        return self.say(200, {"status": "done"})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline() or b"0", 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data
