"""The unit of speech: findings and their registry."""

from __future__ import annotations

import string

import pytest
from ansible.module_utils.spark.codes import DOMAINS, REGISTRY
from ansible.module_utils.spark.findings import SEVERITIES, fatal, finding, from_dict, render, worst


def test_a_finding_survives_the_way_through_json() -> None:
    said = finding(
        "UNKNOWN_CAUSE",
        node="spark-02",
        found="exit 1",
        expected="a running rank",
        evidence=["log line"],
        attach="rank.log",
    )
    assert from_dict(said.as_dict()) == said
    assert said.remedy.endswith("attach rank.log to a report.")


def test_an_unregistered_code_and_a_missing_field_are_our_own_mistakes() -> None:
    with pytest.raises(KeyError):
        finding("NO_SUCH_CODE", node="n", found="", expected="")
    with pytest.raises(KeyError):
        finding("UNKNOWN_CAUSE", node="n", found="", expected="")


def test_only_the_worst_severity_counts() -> None:
    note = finding("NOT_PROVEN_IN_CHECK_MODE", node="n", found="nothing was loaded", expected="a measurement")
    stop = finding("UNKNOWN_CAUSE", node="n", found="x", expected="y", attach="f")
    assert worst([]) == "ok"
    assert worst([note]) == "note"
    assert worst([note, stop]) == "fatal"
    assert fatal([note, stop]) == [stop]


def test_rendering_names_everything_a_reader_needs() -> None:
    text = render(
        finding("UNKNOWN_CAUSE", node="spark-02", found="exit 1", expected="a rank", evidence=["line 7"], attach="f")
    )
    for part in ("FATAL", "UNKNOWN_CAUSE", "spark-02", "exit 1", "a rank", "line 7", "remedy"):
        assert part in text


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_every_registered_code_is_complete(code: str) -> None:
    kind = REGISTRY[code]
    assert kind.code == code == code.upper()
    assert kind.severity in SEVERITIES
    assert kind.title
    assert kind.explanation
    assert kind.remedy or kind.severity in ("ok", "note"), "a warning or refusal without a remedy helps nobody"
    list(string.Formatter().parse(kind.remedy))


def test_codes_are_registered_once() -> None:
    names = [code.code for codes in DOMAINS.values() for code in codes]
    assert len(names) == len(set(names))
