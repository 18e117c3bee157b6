"""Who made what on this host: one record per pair name in /run, so that two clones do not take each other's things."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.state import write_atomic

FOLDER = Path("/run/spark-lab")


@dataclass(frozen=True)
class Record:
    """The project and the state folder of the clone that made the pair."""

    project: str
    state: str


class Registry:
    """The record of one pair name."""

    def __init__(self, name: str) -> None:
        self.folder = FOLDER / name
        self.file = self.folder / "owner.json"

    def read(self) -> Record | None:
        try:
            return Record(**json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, record: Record) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps(asdict(record)) + "\n", 0o644)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if FOLDER.is_dir() and not any(FOLDER.iterdir()):
            FOLDER.rmdir()
