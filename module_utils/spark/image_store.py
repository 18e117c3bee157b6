"""Layers of an image straight out of Docker's own store, without ``docker save``.

``docker save`` stages every layer on the disk before its first byte (classic store) or reads them in small pieces
through two daemons (containerd store), also those that the other side has. The containerd store keeps blobs under
their hashes. The classic one keeps a layer's files and, in ``tar-split.json.gz``, everything else of the archive it
came from, so that the same bytes can be put together again. Nothing here writes, and whatever arrives is verified by
the other side's Docker against the same hashes.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .image_daemon import Store, containerd_roots

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}
BLOCK = 1 << 20

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DOCUMENT_LIMIT = 16 << 20


class StoreError(Exception):
    """The store does not hold the image in a form that is known here."""


@dataclass(frozen=True)
class Layer:
    """``digest`` names the bytes that are sent, ``diff_id`` the same layer unpacked. ``size`` is exact where a manifest
    goes with it, else the sum of its files.
    """

    digest: str
    diff_id: str
    media_type: str
    size: int


@dataclass(frozen=True)
class Described:
    """An image as its store holds it. ``top`` is the digest that a pull names: the manifest's, or that of an index
    around it. ``documents`` are the texts of index, manifest and configuration by their digests.
    """

    top: str
    config: str
    layers: tuple[Layer, ...]
    documents: Mapping[str, tuple[str, bytes]]

    def as_data(self) -> dict[str, Any]:
        texts = {name: [kind, base64.b64encode(text).decode()] for name, (kind, text) in self.documents.items()}
        return {"top": self.top, "config": self.config, "layers": [asdict(i) for i in self.layers], "documents": texts}


def described_from(data: Mapping[str, Any]) -> Described:
    """The inverse of ``as_data``; raises StoreError unless every text has the hash that names it."""
    try:
        documents = {str(k): (str(kind), base64.b64decode(text)) for k, (kind, text) in data["documents"].items()}
        layers = tuple(Layer(**item) for item in data["layers"])
        found = Described(str(data["top"]), str(data["config"]), layers, documents)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise StoreError(f"not a description of an image: {error!r}") from error
    for name, (_kind, text) in documents.items():
        if name != digest_of(text):
            raise StoreError(f"{name} has other contents")
    if not {found.top, found.config} <= set(documents) or not all(_DIGEST.fullmatch(i.digest) for i in layers):
        raise StoreError("a description of an image without its manifest, configuration or layers")
    return found


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """The names under which a store keeps each layer on top of those below it."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def describe(store: Store, image: Mapping[str, Any], *, sizes: bool = False) -> Described:
    """The image that ``docker image inspect`` showed, as this store holds it."""
    image_id = str(image.get("Id") or "")
    if not _DIGEST.fullmatch(image_id):
        raise StoreError(f"{image_id!r} is not the id of an image")
    if store.kind == "containerd":
        return _describe_blobs(store, image_id, image)
    return _describe_layers(store, image_id, sizes=sizes)


def open_layer(store: Store, described: Described, digest: str) -> tuple[int, Callable[[int], Iterator[bytes]]]:
    """Size of one of its layers, and what reads it from an offset on."""
    at = next((number for number, layer in enumerate(described.layers) if layer.digest == digest), None)
    if at is None:
        raise StoreError(f"{digest} is not a layer of the image")
    if store.kind == "containerd":
        path = blob_path(store, digest)
        return described.layers[at].size, lambda offset: _read_file(path, offset)
    layer = ClassicLayer(store, chain_ids([item.diff_id for item in described.layers])[at])
    return layer.size(), layer.read


# The containerd store


def blob_path(store: Store, digest: str) -> Path:
    name = digest.removeprefix("sha256:")
    roots = [store.root, *containerd_roots(store.docker_root)]
    paths = [Path(root, "io.containerd.content.v1.content/blobs/sha256", name) for root in dict.fromkeys(roots)]
    return next((path for path in paths if path.is_file()), paths[0])


def has_blob(store: Store, digest: str) -> bool:
    return store.kind == "containerd" and blob_path(store, digest).is_file()


def _document(store: Store, digest: str) -> bytes:
    path = blob_path(store, digest)
    try:
        if path.stat().st_size > _DOCUMENT_LIMIT:
            raise StoreError(f"{digest} is no manifest: it is too large")
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{digest}: {error.strerror or error}") from error
    if digest_of(text) != digest:
        raise StoreError(f"{digest} has other contents on the disk")
    return text


def _parsed(text: bytes, digest: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{digest} is not JSON") from error
    if not isinstance(data, dict):
        raise StoreError(f"{digest} is not an object")
    return data


def _describe_blobs(store: Store, image_id: str, image: Mapping[str, Any]) -> Described:
    documents: dict[str, tuple[str, bytes]] = {}
    text = _document(store, image_id)
    data = _parsed(text, image_id)
    documents[image_id] = (str(data.get("mediaType") or OCI_MANIFEST), text)
    if "manifests" in data:
        chosen = pick(data["manifests"], image, lambda digest: blob_path(store, digest).is_file())
        text = _document(store, chosen)
        data = _parsed(text, chosen)
        documents[chosen] = (str(data.get("mediaType") or OCI_MANIFEST), text)
    try:
        config, wanted = str(data["config"]["digest"]), list(data["layers"])
        config_text = _document(store, config)
        diff_ids = [str(item) for item in _parsed(config_text, config)["rootfs"]["diff_ids"]]
        documents[config] = (str(data["config"].get("mediaType") or OCI_CONFIG), config_text)
        layers = tuple(
            Layer(str(item["digest"]), diff_id, str(item["mediaType"]), int(item["size"]))
            for item, diff_id in zip(wanted, diff_ids, strict=True)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{image_id} is not the manifest of an image: {error!r}") from error
    for layer in layers:
        path = blob_path(store, layer.digest)
        if not path.is_file() or path.stat().st_size != layer.size:
            # A store may drop the packed form of a layer that it has unpacked.
            raise StoreError(f"the store does not keep the layer {layer.digest}")
    return Described(image_id, config, layers, documents)


def pick(manifests: Sequence[Mapping[str, Any]], image: Mapping[str, Any], there: Callable[[str], bool]) -> str:
    """The manifest of this machine's platform in an index of several; those that are not there are passed over."""
    wanted = (str(image.get("Os") or "linux"), str(image.get("Architecture") or MACHINES.get(os.uname().machine, "")))
    offered = []
    for item in manifests:
        platform = item.get("platform") or {}
        digest = str(item.get("digest") or "")
        if not _DIGEST.fullmatch(digest) or platform.get("os") == "unknown":
            continue
        offered.append(f"{platform.get('os')}/{platform.get('architecture')}")
        same = not platform or (platform.get("os"), platform.get("architecture")) == wanted
        if same and there(digest):
            return digest
    raise StoreError(f"no manifest for {'/'.join(wanted)} is here; the index offers {', '.join(offered) or 'none'}")


def _read_file(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while block := file.read(BLOCK):
            yield block
        # On these machines the page cache is the GPU's memory.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# The classic store


def _layer_folder(store: Store, chain_id: str) -> Path:
    return Path(store.docker_root, "image", store.driver, "layerdb/sha256", chain_id.removeprefix("sha256:"))


def has_chain(store: Store, chain_id: str) -> bool:
    """Whether Docker would find this layer, on top of those below it, when it loads an image."""
    return store.kind == "classic" and (_layer_folder(store, chain_id) / "diff").is_file()


def _describe_layers(store: Store, image_id: str, *, sizes: bool) -> Described:
    path = Path(store.docker_root, "image", store.driver, "imagedb/content/sha256", image_id.removeprefix("sha256:"))
    try:
        text = path.read_bytes()
        diff_ids = [str(item) for item in json.loads(text)["rootfs"]["diff_ids"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: {error}") from error
    if digest_of(text) != image_id:
        raise StoreError(f"{image_id} has other contents on the disk")
    layers = []
    for chain_id, diff_id in zip(chain_ids(diff_ids), diff_ids, strict=True):
        layer = ClassicLayer(store, chain_id)
        if layer.diff_id != diff_id:
            raise StoreError(f"the layer {chain_id} is another one than the image says")
        layers.append(Layer(diff_id, diff_id, OCI_LAYER, layer.size() if sizes else layer.content_bytes))
    documents = {image_id: (OCI_CONFIG, text)}
    if not sizes:
        # Without sizes there is no manifest, and the configuration stands in its place.
        return Described(image_id, image_id, tuple(layers), documents)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": image_id, "size": len(text)},
        "layers": [{"mediaType": item.media_type, "digest": item.digest, "size": item.size} for item in layers],
    }
    made = json.dumps(manifest, separators=(",", ":")).encode()
    documents[digest_of(made)] = (OCI_MANIFEST, made)
    return Described(digest_of(made), image_id, tuple(layers), documents)


class ClassicLayer:
    """One layer of the overlay2 driver, read as the archive it was unpacked from."""

    def __init__(self, store: Store, chain_id: str) -> None:
        self._folder = _layer_folder(store, chain_id)
        if store.driver not in ("overlay2", "fuse-overlayfs"):
            raise StoreError(f"layers of the driver {store.driver} are not read here")
        try:
            self.diff_id = (self._folder / "diff").read_text().strip()
            cache_id = (self._folder / "cache-id").read_text().strip()
            self.content_bytes = int((self._folder / "size").read_text())
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._folder}: {error}") from error
        if not re.fullmatch(r"[0-9a-f]{64}", cache_id):
            raise StoreError(f"{self._folder}: {cache_id!r} is not the name of a layer's folder")
        self._files = os.path.join(store.docker_root, store.driver, cache_id, "diff")
        self._parents: dict[str, str] = {}

    def _pieces(self) -> Iterator[tuple[bytes | None, str, int]]:
        """(bytes, "", size) of what is between the files, (None, name, size) of a file, in the archive's order."""
        try:
            with gzip.open(self._folder / "tar-split.json.gz", "rb") as lines:
                for line in lines:
                    entry = json.loads(line)
                    if entry["type"] == 2:
                        data = base64.b64decode(entry.get("payload") or "")
                        yield data, "", len(data)
                    elif entry["type"] == 1:
                        size = int(entry.get("size") or 0)
                        if size:
                            yield None, _name(entry), size
                    else:
                        raise StoreError(f"{self._folder}: an entry of type {entry['type']}")
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self._folder}/tar-split.json.gz: {error}") from error

    def size(self) -> int:
        return sum(size for _data, _name, size in self._pieces())

    def read(self, offset: int = 0) -> Iterator[bytes]:
        gathered, waiting = [], 0
        for data, name, size in self._pieces():
            if offset >= size:
                offset -= size
                continue
            blocks = iter([data[offset:]]) if data is not None else self._read(name, size, offset)
            offset = 0
            for block in blocks:
                # Headers and small files go out together: a system call each would be what the copy waits for.
                gathered.append(block)
                waiting += len(block)
                if waiting >= BLOCK:
                    yield b"".join(gathered)
                    gathered, waiting = [], 0
        if gathered:
            yield b"".join(gathered)

    def _read(self, name: str, size: int, offset: int) -> Iterator[bytes]:
        left = size - offset
        try:
            with open(self._open(name), "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != size:
                    raise StoreError(f"{name} of {self._files} is not {size} bytes long")
                file.seek(offset)
                while left and (block := file.read(min(left, BLOCK))):
                    left -= len(block)
                    yield block
                if size >= BLOCK:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise StoreError(f"{name} of {self._files}: {error.strerror or error}") from error
        if left:
            raise StoreError(f"{name} of {self._files} ended {left} bytes early")

    def _open(self, name: str) -> int:
        """Never out of the layer's folder, whatever links the image brings along."""
        parent, base = os.path.split(os.path.normpath(name))
        real = self._parents.get(parent)
        if real is None:
            if len(self._parents) > 4096:
                self._parents.clear()
            real = self._parents[parent] = os.path.realpath(os.path.join(self._files, parent.lstrip("/")))
        top = os.path.realpath(self._files)
        if base in ("", "..") or not (real == top or real.startswith(f"{top}/")):
            raise StoreError(f"{name!r} leads out of {self._files}")
        return os.open(os.path.join(real, base), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _name(entry: Mapping[str, Any]) -> str:
    raw = entry.get("name_raw")
    return os.fsdecode(base64.b64decode(raw)) if raw else str(entry["name"])
