"""What is installed on every node, byte for byte the same: the zipapp, the launcher, the unit and the manifest of
their hashes.

Packing is reproducible: names sorted, times fixed, nothing compressed (two builds of zlib need not agree), so that
two controllers with
the same checkout produce the same bytes, and a hash says which code a node runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from .parse.whole import document

PREFIX = "/usr/local/lib/spark-cluster"
RANKCTL = f"{PREFIX}/rankctl.pyz"
LAUNCH = f"{PREFIX}/launch"
ALLREDUCE = f"{PREFIX}/allreduce.py"
MANIFEST = f"{PREFIX}/manifest.json"
PENDING = f"{PREFIX}/manifest.pending.json"
OVERLAYS = f"{PREFIX}/overlays"
PLAN = "/etc/spark-cluster/plan.json"
UNIT_NAME = "spark-rank.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"

_PYTHON = "/usr/bin/python3"
_PACKAGE = "spark"
_EPOCH = (1980, 1, 1, 0, 0, 0)

_MAIN = """import sys

from spark.rankctl import main

sys.exit(main(sys.argv[1:]))
"""

_LAUNCH = f"""#!/bin/sh
# Starts this node's rank as /etc/spark-cluster/plan.json says. The same bytes on every node; nothing here depends on
# a model or a rank.
exec {_PYTHON} {RANKCTL} run "$@"
"""

# A worker needs 8 to 13 s to react to SIGTERM, so the limit lies well above that. Logs are not rate-limited: the
# cause of a failure is
# read from them.
_UNIT = f"""[Unit]
Description=One rank of the served model
Wants=docker.service network-online.target
After=docker.service network-online.target

[Service]
Type=exec
ExecStart={LAUNCH}
ExecStop=-{_PYTHON} {RANKCTL} stop
Restart=no
SuccessExitStatus=143
TimeoutStopSec=60
KillMode=mixed
LogRateLimitIntervalSec=0

[Install]
WantedBy=multi-user.target
"""


class InstalledFile(TypedDict):
    """One file as a plan names it: where it goes, how, which bytes, and where the controller keeps them."""

    path: str
    mode: str
    sha256: str
    source: str


@dataclass(frozen=True)
class BundleFile:
    path: str
    mode: str
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def build_rankctl(package_dir: Path) -> bytes:
    """The package ``spark`` as one executable archive."""
    members: dict[str, bytes] = {"__main__.py": _MAIN.encode()}
    for source in sorted(package_dir.rglob("*.py")):
        members[f"{_PACKAGE}/{source.relative_to(package_dir).as_posix()}"] = source.read_bytes()
    packed = io.BytesIO()
    packed.write(f"#!{_PYTHON}\n".encode())
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, members[name])
    return packed.getvalue()


def render_manifest(hashes: Mapping[str, str]) -> bytes:
    """The manifest's one spelling, so that it can be compared by its bytes."""
    return (json.dumps({"schema": 1, "files": dict(hashes)}, sort_keys=True, indent=1) + "\n").encode()


def read_manifest(raw: bytes) -> dict[str, str]:
    """Path to SHA-256; raises ValueError if it is not a manifest."""
    data = document(raw)
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, dict):
        raise ValueError("not a manifest: it has no table of files")
    return {str(path): str(sha) for path, sha in files.items()}


def build_bundle(project_root: Path, overlays: Iterable[tuple[str, bytes]] = ()) -> list[BundleFile]:
    """Every file of the bundle, the manifest last: while it is missing, nothing starts.

    ``overlays`` are (name, content) of files that a recipe mounts into its image.
    """
    files = [
        BundleFile(RANKCTL, "0755", build_rankctl(project_root / "module_utils" / _PACKAGE)),
        BundleFile(LAUNCH, "0755", _LAUNCH.encode()),
        BundleFile(ALLREDUCE, "0644", (project_root / "in_container" / "allreduce.py").read_bytes()),
        BundleFile(UNIT, "0644", _UNIT.encode()),
    ]
    for name, content in sorted(overlays):
        if not name or name.startswith("/") or ".." in Path(name).parts:
            raise ValueError(f"overlay {name!r} would leave {OVERLAYS}")
        files.append(BundleFile(f"{OVERLAYS}/{name}", "0644", content))
    files.append(BundleFile(MANIFEST, "0644", render_manifest({f.path: f.sha256 for f in files})))
    return files


def store(files: Iterable[BundleFile], cache: Path) -> list[InstalledFile]:
    """Keep the files under ``cache``, each named by its hash, and say where each one lies.

    Safe to call from several processes at once: a file appears complete or not at all, and its name is its content.
    """
    cache.mkdir(parents=True, exist_ok=True)
    stored: list[InstalledFile] = []
    for item in files:
        target = cache / f"{item.sha256}-{Path(item.path).name}"
        if not target.is_file():
            handle, name = tempfile.mkstemp(dir=cache)
            with os.fdopen(handle, "wb") as out:
                out.write(item.content)
            os.replace(name, target)
        stored.append({"path": item.path, "mode": item.mode, "sha256": item.sha256, "source": str(target)})
    return stored
