"""KVM or emulation: the verdict of a trial, and how long it holds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from lab.shell import Progress
from lab.vm import accel

IMAGE = Path("/cache/vm-0123456789abcdef")


def says(*lines: str, then: str = "time.sleep(60)") -> list[str]:
    return [sys.executable, "-c", f"import time\nprint({os.linesep.join(lines)!r}, flush=True)\n{then}"]


@pytest.mark.parametrize(
    ("argv", "works", "why"),
    [
        (says("Linux version 6.12", "Kernel panic - not syncing: VFS: Unable to mount root fs"), True, "started"),
        (says("KVM internal error. Suberror: 1", "emulation failure"), False, "KVM internal error. Suberror: 1"),
        (says("qemu: failed to set MSR 0x10a to 0x69", then=""), False, "failed to set MSR 0x10a"),
        (says("[    0.0] Linux version 6.12", then=""), False, "Linux version"),
        ([sys.executable, "-c", ""], False, "without a word"),
    ],
)
def test_trial(argv: list[str], works: bool, why: str) -> None:
    found = accel.trial(argv, 20)
    assert found[0] is works
    assert why in found[1]


def test_a_machine_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    argv = [sys.executable, "-c", f"import os,time\nopen({str(pid)!r},'w').write(str(os.getpid()))\ntime.sleep(60)"]
    begin = time.monotonic()
    works, why = accel.trial(argv, 1.5)
    assert (works, why) == (False, "the kernel did not start within 2 s")
    assert time.monotonic() - begin < 15
    assert not Path(f"/proc/{pid.read_text()}").exists()


class Trials:
    def __init__(self, works: bool) -> None:
        self.works = works
        self.count = 0

    def __call__(self, argv: list[str]) -> tuple[bool, str]:
        self.count += 1
        return self.works, "as told"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: True)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("works", "verdict"), [(True, "kvm"), (False, "tcg")])
def test_a_verdict_holds_for_this_kernel(works: bool, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(works)
    monkeypatch.setattr(accel, "trial", trials)
    assert [accel.choose("auto", IMAGE, Progress()) for _ in range(2)] == [verdict] * 2
    assert trials.count == 1
    accel.choose("auto", IMAGE.with_name("vm-other"), Progress())
    assert trials.count == 2


@pytest.mark.usefixtures("device")
def test_a_verdict_does_not_outlive_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(False)
    monkeypatch.setattr(accel, "trial", trials)
    accel.choose("auto", IMAGE, Progress())
    monkeypatch.setattr(accel, "subject", lambda image: ["another boot", image.name])
    accel.choose("auto", IMAGE, Progress())
    assert trials.count == 2


@pytest.mark.usefixtures("device")
def test_what_the_boot_of_the_pair_taught_overrides_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "trial", Trials(True))
    assert accel.choose("auto", IMAGE, Progress()) == "kvm"
    accel.remember("tcg", IMAGE)
    assert accel.choose("auto", IMAGE, Progress()) == "tcg"


def test_no_trial_where_there_is_nothing_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(True)
    monkeypatch.setattr(accel, "trial", trials)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert accel.choose("auto", IMAGE, Progress()) == "tcg"
    assert accel.choose("kvm", IMAGE, Progress()) == "kvm"
    assert trials.count == 0
