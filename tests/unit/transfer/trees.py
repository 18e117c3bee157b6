"""Folders of weights for tests, built from a few words each."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path


def safetensors(size: int = 64, *, fill: int = 7, claim: int | None = None) -> bytes:
    """A whole safetensors file with one tensor of ``size`` bytes; ``claim`` makes its header lie."""
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size if claim is None else claim]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * size


def model(root: Path, shards: int = 2, size: int = 64) -> Path:
    """A model as it is downloaded into a folder."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text('{"model_type": "llama"}')
    (root / "tokenizer.json").write_text("{}")
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        (root / name).write_bytes(safetensors(size, fill=number))
    weight_map = {f"layer.{number}": name for number, name in enumerate(names)}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return root


def hub_cache(root: Path) -> Path:
    """The same model as a Hugging Face cache keeps it: blobs by hash, snapshots of links."""
    snapshot = root / "snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs/main").write_text("0123abcd")
    for name, content in {"config.json": b"{}", "model.safetensors": safetensors()}.items():
        blob = f"{abs(hash(name)):x}"
        (root / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return root


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def downloaded(root: Path, shard: bytes, config: bytes = b"{}", commit: str = COMMIT) -> Path:
    """A hub cache with the names that the hub's client gives: SHA-256 for a large file, git's hash for a small one."""
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs/main").write_text(commit)
    git = hashlib.sha1(b"blob %d\0" % len(config) + config, usedforsecurity=False).hexdigest()
    for name, content, blob in (
        ("model.safetensors", shard, hashlib.sha256(shard).hexdigest()),
        ("config.json", config, git),
    ):
        (root / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return root
