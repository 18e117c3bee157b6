"""The verdict about a link, on the numbers of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.findings import Finding
from ansible.module_utils.spark.link import verdict
from ansible.module_utils.spark.link.path import path_of
from ansible.module_utils.spark.link.samples import Together
from ansible.module_utils.spark.parse import perftest

CASES = yaml.safe_load(Path(__file__).with_name("verdict.yml").read_text())
NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0")
# What has to be the answer to each way of failing. The rest is unknown on purpose.
FAILURES = {
    "no_server": "LINK_NO_LISTENER",
    "device_not_found": "LINK_DEVICE_NOT_FOUND",
    "no_devices": "RDMA_DEVICE_MISSING",
    "port_down": "LINK_PORT_DOWN",
    "gid_unusable": "LINK_GID_UNUSABLE",
    "gid_family_mismatch": "LINK_GID_FAMILY",
    "gid_out_of_range": "LINK_GID_RANGE",
    "wrong_peer": "LINK_WRONG_PEER",
    "completion_error": "LINK_TRANSFER_FAILED",
    "port_in_use": "LINK_PORT_BUSY",
    "peer_lost": "LINK_PEER_LOST",
    "memory_lock": "LINK_MEMLOCK",
    "bad_option": "LINK_OPTION_UNKNOWN",
    "tool_missing": "LINK_TOOL_MISSING",
    "timed_out": "LINK_TIMED_OUT",
    "no_result": "UNKNOWN_CAUSE",
    "unknown": "UNKNOWN_CAUSE",
}


def streams_of(case: dict[str, Any]) -> list[verdict.Stream]:
    return [
        verdict.Stream(
            rail=rail,
            netdev=NETDEVS[rail],
            peer="spark-02",
            port=12000 + rail,
            began=began,
            ended=ended,
            gbps=gbps,
            failure=None if gbps is not None else verdict.Failure(case["failure"], "as told"),
            speed_mbps=speed,
        )
        for rail, gbps, began, ended, speed in case["streams"]
    ]


def judged(case: dict[str, Any]) -> list[Finding]:
    counted = case.get("counters")
    path = None
    if counted:
        path = path_of("spark-01", "spark-02", NETDEVS, counted["own"], counted.get("peer"))
    flow = case.get("together")
    return verdict.judge(
        "spark-01",
        streams_of(case),
        min_gbps=case.get("min_gbps", 170),
        transport=case.get("transport", "rdma"),
        both=case.get("both", False),
        one_way_gbps=case.get("one_way_gbps", 170),
        flow=Together(flow[0], flow[0] / flow[1], flow[1]) if flow else None,
        path=path,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_verdict(case: dict[str, Any]) -> None:
    found = judged(case)
    assert [item.code for item in found] == case["codes"]
    assert [item.severity for item in found] == case.get("severities", [item.severity for item in found])
    decisive = found[-1]
    assert case.get("says", "") in decisive.found
    assert case.get("remedy", "") in decisive.remedy
    assert case.get("on", decisive.node) == decisive.node
    assert case.get("evidence", "") in "\n".join(decisive.evidence)
    assert set(case.get("no_help", ())) <= set(decisive.no_help)


def test_the_cures_of_a_degraded_link_come_in_order() -> None:
    case = next(case for case in CASES if case["codes"] == ["LINK_DEGRADED"])
    remedy = judged(case)[0].remedy
    assert remedy.index("Reboot both") < remedy.index("pull their power")
    assert "30 seconds" in remedy


@pytest.mark.parametrize("kind", sorted(perftest.FAILURES))
def test_every_failure_of_perftest_is_a_finding(kind: str) -> None:
    failure = verdict.Failure(kind, perftest.FAILURES[kind], ("what it printed",))
    stream = verdict.Stream(1, NETDEVS[1], "spark-02", 12001, 0.0, 1.0, failure=failure)
    found = verdict.failed("spark-01", stream, ("what the other end printed",))
    assert found.code == FAILURES[kind]
    assert found.severity == "fatal"
    assert found.evidence == ("what it printed", "what the other end printed")
    assert "{" not in found.remedy


def test_overlap_of_nothing_is_nothing() -> None:
    assert verdict.overlap([]) == verdict.Overlap(0.0, 0.0)


def test_one_rail_is_said_to_be_half() -> None:
    assert [item.code for item in verdict.one_rail("spark-01", NETDEVS[:1])] == ["LINK_HALF"]
    assert verdict.one_rail("spark-01", NETDEVS) == []
