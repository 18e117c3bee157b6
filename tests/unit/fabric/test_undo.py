"""The journal: durable, append-only, readable after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.spark import undo


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    undo.record({"kind": "unit_disabled", "unit": "a.service", "was_enabled": True, "was_active": False}, root=tmp_path)
    undo.record({"kind": "something_new", "path": "/x"}, root=tmp_path)
    first, second = undo.read(root=tmp_path)
    assert (first["kind"], first["unit"], second["path"]) == ("unit_disabled", "a.service", "/x")
    assert first["at"].endswith("Z")
    assert (tmp_path / undo.JOURNAL).stat().st_mode & 0o777 == 0o600


def test_no_journal_is_no_entries(tmp_path: Path) -> None:
    assert undo.read(root=tmp_path / "none") == []


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    undo.record({"kind": "first"}, root=tmp_path)
    with (tmp_path / undo.JOURNAL).open("ab") as journal:
        journal.write(b'{"kind": "torn", "pa')
    undo.record({"kind": "second"}, root=tmp_path)
    assert [entry["kind"] for entry in undo.read(root=tmp_path)] == ["first", "second"]


@pytest.mark.parametrize("action", [{}, {"kind": ""}, {"kind": 3}, {"kind": "unit_disabled", "unit": "a.service"}])
def test_what_could_not_be_undone_is_not_recorded(action: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(undo.JournalError):
        undo.record(action, root=tmp_path)
    assert undo.read(root=tmp_path) == []
