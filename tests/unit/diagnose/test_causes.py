"""Causes ranked from evidence: the published cases, and for each code one that is almost it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.codes.diagnose import CODES
from ansible.module_utils.spark.diagnose.case import TESTS
from ansible.module_utils.spark.diagnose.causes import diagnose

from .pair import evidence

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("causes.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_likeliest_cause_comes_first(case: dict[str, Any]) -> None:
    found = diagnose(evidence(copy.deepcopy(case)))
    codes = [cause.finding.code for cause in found.causes]
    assert found.state == case["state"], codes
    if "codes" in case:
        assert codes == case["codes"]
    if "first" in case:
        first = found.causes[0]
        said = {"code": first.finding.code, "likelihood": first.likelihood, "node": first.finding.node}
        assert {**said, **case["first"]} == said, codes
    assert set(case.get("has", ())) <= set(codes)
    assert not set(case.get("not", ())) & set(codes)
    for code in case.get("possible", ()):
        named = [cause for cause in found.causes if cause.finding.code == code]
        assert {(cause.likelihood, cause.finding.severity) for cause in named} == {("possible", "warn")}, code
    for part in case.get("because", ()):
        assert any(part in line for line in found.causes[0].finding.evidence), found.causes[0].finding.evidence
    for part in case.get("ruled_out", ()):
        assert any(part in line for line in found.ruled_out), found.ruled_out
    for part in case.get("not_done", ()):
        assert any(part in line for line in found.not_done), found.not_done
    remarks = [item.code for item in found.remarks]
    assert remarks == case.get("remarks", ["DIAGNOSIS_HEALTHY"] if case["state"] == "healthy" else [])
    for name in case.get("no_help", ()):
        assert name in found.causes[0].finding.no_help


def test_each_cause_has_a_case_a_remedy_and_something_that_settles_it() -> None:
    named = {code.code for code in CODES if code.code.startswith("CAUSE_")}
    raised = {code for case in CASES for code in [*case.get("codes", ()), *case.get("has", ())]}
    raised |= {case["first"]["code"] for case in CASES if "first" in case}
    assert named <= raised
    assert named <= set(TESTS)


def test_scores_fall(project: Path) -> None:
    for case in CASES:
        scores = [cause.score for cause in diagnose(evidence(copy.deepcopy(case))).causes]
        assert scores == sorted(scores, reverse=True), case["name"]


def test_a_node_that_stands_alone_lacks_nothing() -> None:
    alone = evidence({"reads": {"spark-01": {"functions": []}}})
    alone.update(nodes={"spark-01": alone["nodes"]["spark-01"]}, runs=[])
    found = diagnose(alone)
    assert (found.state, found.causes) == ("unmeasured", ())


def test_nothing_known_of_either_node_is_told_and_raises_nothing() -> None:
    silent = {"read": None, "silent": "unreachable", "after": None}
    case: dict[str, Any] = {"nodes": {"spark-01": silent, "spark-02": silent}}
    bare = evidence(case)
    bare["runs"] = []
    found = diagnose(bare)
    assert [cause.finding.code for cause in found.causes] == ["CAUSE_NODE_SILENT", "CAUSE_NODE_SILENT"]
    assert [cause.likelihood for cause in found.causes] == ["likely", "likely"], "it may be the way from here"
    assert all("controller's own way" in cause.finding.evidence[0] for cause in found.causes)
    assert found.state == "sick"


def test_a_node_that_is_silent_beside_one_that_answers_is_certain() -> None:
    found = diagnose(evidence({"nodes": {"spark-02": {"read": None, "silent": "ssh timed out", "after": None}}}))
    assert [(cause.finding.code, cause.likelihood) for cause in found.causes if cause.score > 90] == [
        ("CAUSE_NODE_SILENT", "certain")
    ]
