"""The record of a play."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import results

ENDED = datetime(2026, 11, 30, 21, 45, 0, tzinfo=UTC)


def a_result(**changes: Any) -> dict[str, Any]:
    return {
        "play": "site",
        "cluster": "pair_a",
        "verdict": "ok",
        "duration_s": 61.4,
        "ended_utc": ENDED.isoformat(),
        "findings": [],
        "measurements": {},
        "failures": [],
        "plan": {},
        "module_executions": {"spark-01": {"modules": 14, "polls": 3}},
        **changes,
    }


@pytest.mark.parametrize(
    ("failed", "check_mode", "expected"),
    [(False, False, "ok"), (False, True, "predicted"), (True, False, "failed"), (True, True, "failed")],
)
def test_verdict(failed: bool, check_mode: bool, expected: str) -> None:
    assert results.verdict(failed=failed, check_mode=check_mode) == expected


def test_the_latest_file_names_the_newest_result(tmp_path: Path) -> None:
    first = results.write(tmp_path, a_result(), ENDED)
    second = results.write(tmp_path, a_result(verdict="failed"), ENDED)
    assert first != second, "two runs in one second keep a folder each"
    assert json.loads(first.read_text())["verdict"] == "ok"
    latest = json.loads((tmp_path / "results/latest/pair_a/site.json").read_text())
    assert tmp_path / latest["result"] == second
    assert latest["verdict"] == "failed"
    assert not list(tmp_path.rglob(".*")), "no temporary file is left"


def test_repetitions_are_said_once() -> None:
    item = {"code": "A", "severity": "note", "node": "n", "found": "f"}
    assert results.unique([item, dict(item), {**item, "node": "m"}]) == [item, {**item, "node": "m"}]


def test_the_summary_puts_the_worst_first_and_fits_a_screen() -> None:
    def said(code: str, severity: str, remedy: str = "") -> dict[str, Any]:
        return {"code": code, "severity": severity, "node": "spark-02", "found": f"found {code}", "remedy": remedy}

    findings = [said(f"NOTE_{n}", "note") for n in range(30)] + [said("LINK_DEGRADED", "fatal", "Reboot both.")]
    link = {
        "rails": [{"rail": 0, "gbps": 92.57}, {"rail": 1, "gbps": 92.57}],
        "sum_gbps": 185.14,
        "min_gbps": 170,
        "overlap_share": 0.98,
    }
    text = results.summary(
        a_result(
            verdict="failed",
            findings=findings,
            measurements={"spark-01": {"link": link}},
            plan={
                "nodes": [
                    {"node": "spark-01", "role": "head", "rank": 0},
                    {"node": "spark-02", "role": "worker", "rank": 1},
                ],
                "rails": [{"rail": 0, "subnet": "192.168.200.0/24"}],
                "transport": "rdma",
                "mtu": 1500,
            },
        ),
        "results/x/result.json",
    )
    lines = text.splitlines()
    assert lines[0] == "site on pair_a: FAILED in 61 s"
    assert "92.57 + 92.57 = 185.14 Gb/s (needs 170, 98% of the time together)" in text
    assert text.index("LINK_DEGRADED") < text.index("NOTE_0")
    assert "remedy: Reboot both." in text
    assert "and 23 more in the result file" in text
    assert len(lines) <= 24


@pytest.mark.parametrize(
    ("severity", "remedy", "shown"),
    [
        ("note", "Leave it, or on spark-02: docker image rm x takes it away.", True),
        ("warn", "Rename it.", True),
        ("note", "None needed; as it is.", False),
        ("note", "", False),
    ],
)
def test_what_somebody_may_want_to_do_is_on_the_screen(severity: str, remedy: str, shown: bool) -> None:
    said = {"code": "RESET_KEPT", "severity": severity, "node": "spark-02", "found": "image x", "remedy": remedy}
    text = results.summary(a_result(findings=[said]), "results/x/result.json")
    assert (f"remedy: {remedy}" in text) == shown


def test_files_of_a_run_lie_beside_its_result(tmp_path: Path) -> None:
    made = tmp_path / "cache"
    made.mkdir()
    (made / "diagnosis.md").write_text("# x")
    path = results.write(tmp_path, a_result(), ENDED)
    names = results.attach(path.parent, [str(made / "diagnosis.md"), str(made / "gone.tar.gz")])
    assert names == ["diagnosis.md"]
    assert (path.parent / "diagnosis.md").read_text() == "# x"
    text = results.summary(a_result(attachments=names), "results/x/result.json")
    assert "results/x/diagnosis.md" in text


def test_a_diagnosis_comes_before_the_findings_and_says_nothing_twice() -> None:
    cause = {
        "code": "CAUSE_NO_CARRIER",
        "node": "spark-01",
        "found": "enp1s0f0np0 has no carrier",
        "likelihood": "certain",
        "evidence": [],
        "remedy": "Reseat the cable.",
        "no_help": [],
    }
    told = {"state": "sick", "causes": [cause], "ruled_out": [], "not_done": [], "runs": []}
    same = [
        {"code": code, "severity": "fatal", "node": "spark-01", "found": "down", "remedy": "r"}
        for code in ("CAUSE_NO_CARRIER", "FABRIC_LINK_DOWN", "FABRIC_MTU_DIFFERS")
    ]
    text = results.summary(a_result(findings=same, measurements={"spark-01": {"diagnosis": told}}), "r.json")
    assert text.count("CAUSE_NO_CARRIER") == 1
    assert "FABRIC_LINK_DOWN" not in text
    assert text.index("Reseat the cable.") < text.index("FABRIC_MTU_DIFFERS")


def test_a_stream_that_failed_leaves_a_summary() -> None:
    link = {
        "from": "spark-01",
        "to": "spark-02",
        "rails": [{"rail": 0, "gbps": 92.57}, {"rail": 1, "gbps": None}],
        "sum_gbps": None,
        "min_gbps": 170,
        "overlap_share": 1.0,
        "directions": [{"kind": "write", "sum_gbps": None}, {"kind": "both", "sum_gbps": 369.28}],
        "latency": [{"typical_us": 1.99}, {"typical_us": None}],
    }
    text = results.summary(a_result(measurements={"spark-01": {"link": link}}), "results/x/result.json")
    row = "spark-01 to spark-02 92.57 + none = no sum (needs 170, 100% of the time together); both ways 369.28; 2.0 us"
    assert row in text
