"""The command line: refusals are one clear text, and only what needs root asks for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab import cli
from lab.errors import LabError


class Recorder:
    """A pair that notes what it is asked to do."""

    root_commands = frozenset({"up"})

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.is_up = True

    def up(self) -> None:
        self.asked.append(("up",))

    def reset(self) -> None:
        raise LabError("cannot", "do otherwise")

    def reboot(self, node: str) -> None:
        self.asked.append(("reboot", node))

    def status(self) -> dict[str, Any]:
        return {"up": self.is_up}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(cli, "pair_of", lambda machines, progress: recorder)
    monkeypatch.setattr(cli, "PROJECT", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return recorder


def test_commands_reach_the_pair(pair: Recorder) -> None:
    assert cli.main(["up"]) == 0
    assert cli.main(["reboot", "spark-02"]) == 0
    assert pair.asked == [("up",), ("reboot", "spark-02")]


def test_status_says_it_twice(pair: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 0
    pair.is_up = False
    capsys.readouterr()
    assert cli.main(["status"]) == 3
    assert json.loads(capsys.readouterr().out) == {"up": False}


def test_a_refusal_is_text_and_remedy(pair: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reset"]) == 1
    assert capsys.readouterr().err == "lab: cannot\n  remedy: do otherwise\n"
    assert cli.main(["reboot", "spark-09"]) == 1
    assert "no node spark-09" in capsys.readouterr().err
    assert cli.main(["--machines", "none", "up"]) == 1
    assert "no machines file" in capsys.readouterr().err


def test_root_commands_start_again_under_sudo(pair: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/sudo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/cache")
    monkeypatch.setenv("SECRET", "x")
    called: list[Sequence[str]] = []

    def probe(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(argv, 0, b"", b"")

    def call(argv: Sequence[str]) -> int:
        called.append(argv)
        return 7

    monkeypatch.setattr("subprocess.run", probe)
    monkeypatch.setattr("subprocess.call", call)
    assert cli.main(["--machines", "lab", "up"]) == 7
    assert called[0][:3] == ["sudo", "-n", "env"]
    assert "XDG_CACHE_HOME=/home/me/cache" in called[0]
    assert not any(word.startswith("SECRET") for word in called[0])
    assert called[0][-5:] == ["-m", "lab", "--machines", "lab", "up"]
    assert pair.asked == []


def test_no_sudo_says_so(pair: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert cli.main(["up"]) == 1
    assert "there is no sudo here" in capsys.readouterr().err
