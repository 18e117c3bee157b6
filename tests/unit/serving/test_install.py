"""Installing the bundle: nothing to do, edited by hand, interrupted, and only a part of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from ansible.module_utils.spark import bundle, install
from ansible.module_utils.spark.install import Wanted
from ansible.module_utils.spark.rank import Place

FILES = {bundle.RANKCTL: b"zip", bundle.LAUNCH: b"#!/bin/sh\n", bundle.UNIT: b"[Unit]\n"}


def wanted(files: dict[str, bytes]) -> list[Wanted]:
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    manifest = bundle.render_manifest(hashes)
    items = [Wanted(path, "0755", hashes[path], content) for path, content in files.items()]
    return [*items, Wanted(bundle.MANIFEST, "0644", hashlib.sha256(manifest).hexdigest(), manifest)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(root=tmp_path)


@pytest.fixture
def installed(place: Place) -> Place:
    install.apply(install.decide([*wanted(FILES), install.plan_file({"a": 1})], place), "n", place)
    return place


def test_a_fresh_node_gets_everything_with_its_mode_and_a_journal(installed: Place) -> None:
    for path, content in FILES.items():
        assert installed.path(path).read_bytes() == content
        assert installed.path(path).stat().st_mode & 0o777 == 0o755
    assert installed.path(bundle.PLAN).stat().st_mode & 0o777 == 0o600
    assert installed.path(bundle.PLAN).parent.stat().st_mode & 0o777 == 0o700
    assert not installed.path(bundle.PENDING).exists()
    journal = installed.path("/var/lib/spark-cluster/undo/journal.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in journal]
    assert {entry["path"] for entry in entries} == {*FILES, bundle.MANIFEST, bundle.PLAN}
    assert all(entry["before"] is None for entry in entries)


def test_a_second_time_there_is_nothing_to_do(installed: Place) -> None:
    hashes_only = [Wanted(w.path, w.mode, w.sha256) for w in wanted(FILES)]
    decision = install.decide([*hashes_only, install.plan_file({"a": 1})], installed)
    assert not decision.changed
    assert not decision.altered


def test_contents_are_asked_for_only_where_they_differ(installed: Place) -> None:
    newer = {**FILES, bundle.RANKCTL: b"newer zip"}
    decision = install.decide([Wanted(w.path, w.mode, w.sha256) for w in wanted(newer)], installed)
    assert sorted(decision.needed) == sorted([bundle.RANKCTL, bundle.MANIFEST])
    assert not decision.altered


@pytest.mark.parametrize("edit", [b"#!/bin/sh\n# tuned\n", b"", None], ids=["edited", "truncated", "deleted"])
def test_a_file_changed_on_the_node_is_named_with_both_hashes(installed: Place, edit: bytes | None) -> None:
    target = installed.path(bundle.LAUNCH)
    target.unlink() if edit is None else target.write_bytes(edit)
    decision = install.decide(wanted(FILES), installed)
    refused = install.refusals(decision, "spark-02", restore=False)
    assert [(item.code, item.node, item.severity) for item in refused] == [("LAUNCHER_ALTERED", "spark-02", "fatal")]
    assert hashlib.sha256(FILES[bundle.LAUNCH]).hexdigest() in refused[0].expected
    assert ("is gone" if edit is None else hashlib.sha256(edit).hexdigest()) in refused[0].found
    assert "launcher_restore=true" in refused[0].remedy


def test_restoring_keeps_the_edited_copy(installed: Place) -> None:
    installed.path(bundle.LAUNCH).write_bytes(b"mine\n")
    decision = install.decide(wanted(FILES), installed)
    assert install.refusals(decision, "n", restore=True) == []
    said = install.apply(decision, "n", installed)
    assert [item.code for item in said] == ["LAUNCHER_RESTORED"]
    assert installed.path(bundle.LAUNCH).read_bytes() == FILES[bundle.LAUNCH]
    kept = said[0].remedy.split()[-1].rstrip(".")
    assert installed.path(kept).read_bytes() == b"mine\n"


def test_a_newer_version_is_not_taken_for_an_edit(installed: Place) -> None:
    decision = install.decide(wanted({**FILES, bundle.LAUNCH: b"#!/bin/sh\n# version 2\n"}), installed)
    assert not decision.altered
    assert install.apply(decision, "n", installed) == []


def test_an_interrupted_installation_is_not_taken_for_an_edit(installed: Place) -> None:
    newer = b"#!/bin/sh\n# version 2\n"
    installed.path(bundle.PENDING).write_bytes(
        bundle.render_manifest({bundle.LAUNCH: hashlib.sha256(newer).hexdigest()})
    )
    installed.path(bundle.LAUNCH).write_bytes(newer)
    third = wanted({**FILES, bundle.LAUNCH: b"#!/bin/sh\n# version 3\n"})
    assert not install.decide(third, installed).altered


def test_a_part_of_the_bundle_keeps_the_manifest_true(installed: Place) -> None:
    newer = b"newer zip"
    only = [Wanted(bundle.RANKCTL, "0755", hashlib.sha256(newer).hexdigest(), newer)]
    install.apply(install.decide(only, installed), "n", installed)
    manifest = bundle.read_manifest(installed.path(bundle.MANIFEST).read_bytes())
    assert manifest[bundle.RANKCTL] == hashlib.sha256(newer).hexdigest()
    assert installed.path(bundle.LAUNCH).exists()
    assert not install.decide(only, installed).changed


def test_an_overlay_of_another_model_is_removed(place: Place) -> None:
    overlay = f"{bundle.OVERLAYS}/a.py"
    install.apply(install.decide(wanted({**FILES, overlay: b"x"}), place), "n", place)
    install.apply(install.decide(wanted(FILES), place), "n", place)
    assert not place.path(overlay).exists()


def test_somebody_elses_file_is_kept_aside(place: Place) -> None:
    place.path(bundle.UNIT).parent.mkdir(parents=True)
    place.path(bundle.UNIT).write_bytes(b"[Unit]\nDescription=mine\n")
    install.apply(install.decide(wanted(FILES), place), "n", place)
    entries = [json.loads(x) for x in place.path("/var/lib/spark-cluster/undo/journal.jsonl").read_text().splitlines()]
    entry = next(item for item in entries if item["path"] == bundle.UNIT)
    assert place.path(entry["backup"]).read_bytes() == b"[Unit]\nDescription=mine\n"
    assert entry["before"]["sha256"] == hashlib.sha256(b"[Unit]\nDescription=mine\n").hexdigest()


def test_a_mode_that_was_changed_is_put_back(installed: Place) -> None:
    installed.path(bundle.PLAN).chmod(0o644)
    decision = install.decide([*wanted(FILES), install.plan_file({"a": 1})], installed)
    assert [item.path for item in decision.modes] == [bundle.PLAN]
    install.apply(decision, "n", installed)
    assert installed.path(bundle.PLAN).stat().st_mode & 0o777 == 0o600


def test_the_difference_is_shown_as_text(installed: Place) -> None:
    decision = install.decide([*wanted({**FILES, bundle.RANKCTL: b"a\0b"}), install.plan_file({"a": 2})], installed)
    shown = {item["after_header"]: item for item in install.diffs(decision, installed)}
    assert '"a": 1' in shown[bundle.PLAN]["before"]
    assert '"a": 2' in shown[bundle.PLAN]["after"]
    assert shown[bundle.RANKCTL]["after"].startswith("SHA-256 ")
