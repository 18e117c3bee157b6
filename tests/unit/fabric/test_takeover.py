"""Units of earlier deployments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.spark import takeover, undo
from ansible.module_utils.spark.runner import Completed

from tests.unit.fabric.machine import Machine, said

UNIT = "vllm-single.service"


class Systemd:
    """One unit that obeys, or does not."""

    def __init__(
        self, machine: Machine, *, enabled: str = "enabled", active: str = "active", obeys: bool = True
    ) -> None:
        self.enabled, self.active, self.obeys = enabled, active, obeys
        machine.answer("systemctl", "show", to=self.show)
        machine.answer("systemctl", "disable", to=self.disable)

    def show(self, argv: Sequence[str]) -> Completed:
        return said(f"Id={UNIT}\nLoadState=loaded\nUnitFileState={self.enabled}\nActiveState={self.active}\n")

    def disable(self, argv: Sequence[str]) -> Completed:
        if self.obeys:
            self.enabled, self.active = "disabled", "inactive"
        return said()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_enabled_unit_is_recorded_then_disabled(machine: Machine, tmp_path: Path) -> None:
    Systemd(machine)
    before = takeover.read(machine, [UNIT])
    after = takeover.disable(machine, before, journal=tmp_path / "undo")
    assert machine.ran("systemctl", "disable", "--now", UNIT)
    assert [item.code for item in takeover.judge("spark-01", before, after)] == ["UNIT_TAKEN_OVER"]
    entry = undo.read(root=tmp_path / "undo")[0]
    assert (entry["unit"], entry["was_enabled"], entry["was_active"]) == (UNIT, True, True)


def test_a_disabled_one_is_left(machine: Machine, tmp_path: Path) -> None:
    Systemd(machine, enabled="disabled", active="inactive")
    before = takeover.read(machine, [UNIT])
    after = takeover.disable(machine, before, journal=tmp_path / "undo")
    assert (after, takeover.judge("spark-01", before, after)) == (before, [])
    assert not machine.ran("systemctl", "disable")
    assert undo.read(root=tmp_path / "undo") == []


def test_one_that_does_not_obey_is_fatal(machine: Machine, tmp_path: Path) -> None:
    Systemd(machine, obeys=False)
    before = takeover.read(machine, [UNIT])
    found = takeover.judge("spark-01", before, takeover.disable(machine, before, journal=tmp_path / "undo"))
    assert [(item.code, item.severity) for item in found] == [("UNIT_STILL_ENABLED", "fatal")]


def test_check_mode_predicts_and_touches_nothing(machine: Machine, tmp_path: Path) -> None:
    Systemd(machine)
    before = takeover.read(machine, [UNIT])
    after = takeover.disable(machine, before, dry=True, journal=tmp_path / "undo")
    assert after[0].state == "disabled, inactive"
    assert not machine.ran("systemctl", "disable")
    assert undo.read(root=tmp_path / "undo") == []


def test_a_unit_that_is_gone_does_not_conflict(machine: Machine) -> None:
    machine.answer(
        "systemctl", "show", stdout=f"Id={UNIT}\nLoadState=not-found\nUnitFileState=\nActiveState=inactive\n"
    )
    assert not takeover.read(machine, [UNIT])[0].conflicts
