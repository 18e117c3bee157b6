"""perftest: every form of its table, and every way to give none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.parse import perftest
from ansible.module_utils.spark.parse.whole import whole

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures" / "perftest"
CASES = yaml.safe_load((HERE / "perftest.yml").read_text())


@pytest.mark.parametrize("case", CASES["runs"], ids=lambda case: case["name"])
def test_a_run_is_read_with_its_conditions(case: dict[str, Any]) -> None:
    run = perftest.parse_run((FIXTURES / case["file"]).read_text())
    for name, value in case["expect"].items():
        got = getattr(run, name)
        assert got == (pytest.approx(value, abs=1e-3) if isinstance(value, float) else value), name
    rows = [
        [row.message_bytes, row.iterations, row.peak_gbps, row.average_gbps, row.message_rate_mpps, row.cpu_percent]
        for row in run.rows
    ]
    assert rows == [[pytest.approx(value, abs=1e-4) for value in row] for row in case["rows"]]


@pytest.mark.parametrize("case", CASES["failures"], ids=lambda case: case["name"])
def test_a_failure_has_a_name(case: dict[str, Any]) -> None:
    stdout = (FIXTURES / case["stdout_file"]).read_text() if "stdout_file" in case else ""
    failed = perftest.failure(case["rc"], stdout, case["stderr"])
    assert failed is not None
    assert failed.kind == case["kind"]
    assert case.get("says", "") in failed.meaning
    if failed.line:
        assert failed.line in case["stderr"]


def test_every_kind_of_failure_has_a_case() -> None:
    assert {case["kind"] for case in CASES["failures"]} == set(perftest.FAILURES)


def test_a_good_run_is_no_failure() -> None:
    assert perftest.failure(0, (FIXTURES / "bw-dual-b-client.out").read_text(), "") is None
    assert perftest.failure(0, (FIXTURES / "lat-ok-client.out").read_text(), "") is None


def test_latency() -> None:
    run = perftest.parse_run((FIXTURES / "lat-ok-client.out").read_text())
    assert run.test == "RDMA_Write Latency Test"
    assert run.rows == ()
    assert run.latency == (perftest.LatencyRow(2, 200, 168.61, 5314.15, 430.57, 1065.87, 4964.36),)


def test_json_has_no_unit_of_its_own() -> None:
    text = (FIXTURES / "bw.json").read_text()
    assert perftest.parse_json(text, gbits=True).average_gbps == 0.30
    assert perftest.parse_json(text, gbits=False).average_gbps == pytest.approx(0.30 * 8 * 2**20 / 1e9)
    assert perftest.parse_json(text, gbits=True).gid_index == 1


@pytest.mark.parametrize("text", ["", "[]", '{"test_info": {}}', '{\n"test_info": {\n"test": "x"\n"Device": "y"\n}\n}'])
def test_what_is_no_json_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a perftest result"):
        perftest.parse_json(text, gbits=True)


def test_the_version_is_read_although_the_exit_status_is_1() -> None:
    assert perftest.parse_version("Version: 6.24\n") == "6.24"
    assert perftest.parse_version("ib_write_bw: no such program") is None


@pytest.mark.parametrize(
    ("version", "known"), [("6.24", True), ("6.20", True), ("6.06", False), ("5.90", False), ("", False), (None, False)]
)
def test_json_is_asked_for_since_it_is_valid(version: str | None, known: bool) -> None:
    assert perftest.writes_json(version) is known


@pytest.mark.parametrize("word", ["inf", "nan", "-inf"])
def test_a_row_that_holds_no_number_is_none(word: str) -> None:
    assert perftest._bandwidth_row(f"65536 1000 {word} 92.57 0.17", 1.0) is None
    assert perftest._bandwidth_row("65536 1000 92.60 92.57 0.17", 1.0) is not None


def test_a_digit_that_is_no_number_is_none() -> None:
    assert whole("²") is None
