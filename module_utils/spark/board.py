"""What the hosts of one cluster tell each other while they wait, on the controller."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Board:
    """Each host's action runs in a process of its own, so they share a folder of the run: every host writes its own
    file and reads the others'. A file appears complete or not at all.
    """

    def __init__(self, folder: Path, me: str, members: Sequence[str]) -> None:
        self.folder, self.me, self.members = folder, me, list(members)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def say(self, state: dict[str, Any]) -> None:
        target = self.folder / f"{self.me}.json"
        temporary = target.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(state))
        temporary.replace(target)

    def hear(self) -> dict[str, dict[str, Any]]:
        heard: dict[str, dict[str, Any]] = {}
        for name in self.members:
            try:
                heard[name] = json.loads((self.folder / f"{name}.json").read_text())
            except FileNotFoundError:
                continue
        return heard
