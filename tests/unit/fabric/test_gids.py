"""GIDs by the address of their rail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.facts import GidFacts, RdmaDeviceFacts

CASES = yaml.safe_load(Path(__file__).with_name("gids.yml").read_text())
RAIL = {"rail": 1, "netdev": "enP2p1s0f0np0", "address": "192.168.101.11", "rdma_device": "roceP2p1s0f0"}


def device(table: list[str]) -> RdmaDeviceFacts:
    entries: list[GidFacts] = []
    for line in table:
        index, gid, kind, version, netdev = line.split()
        entries.append({"index": int(index), "gid": gid, "type": f"{kind} {version}", "netdev": netdev})
    return {"name": "roceP2p1s0f0", "port": 1, "netdev": "enP2p1s0f0np0", "state": "ACTIVE", "gids": entries}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_exactly_one_entry_is_taken(case: dict[str, Any]) -> None:
    resolved, found = gids.resolve([device(case["table"])], [RAIL], "spark-01")
    assert [item.index for item in resolved] == ([case["index"]] if "index" in case else [])
    assert [item.code for item in found] == ([case["code"]] if "code" in case else [])


def test_a_function_without_its_device() -> None:
    resolved, found = gids.resolve([], [RAIL], "spark-01")
    assert not resolved
    assert [item.code for item in found] == ["RDMA_DEVICE_MISSING"]


def test_the_device_is_found_by_its_interface_where_the_plan_names_none() -> None:
    rail = {**RAIL, "rdma_device": None}
    table = ["1 0000:0000:0000:0000:0000:ffff:c0a8:650b RoCE v2 enP2p1s0f0np0"]
    resolved, found = gids.resolve([device(table)], [rail], "spark-01")
    assert (resolved[0].rdma_device, found) == ("roceP2p1s0f0", [])


def test_an_entry_that_is_still_being_made_is_waited_for() -> None:
    tables: list[list[str]] = [[], [], ["1 0000:0000:0000:0000:0000:ffff:c0a8:650b RoCE v2 enP2p1s0f0np0"]]
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def read() -> list[RdmaDeviceFacts]:
        return [device(tables.pop(0) if len(tables) > 1 else tables[0])]

    resolved, found = gids.wait(read, [RAIL], "spark-01", clock=lambda: now[0], sleep=sleep)
    assert ([item.index for item in resolved], found, now[0]) == ([1], [], 1.0)


def test_one_that_never_comes_is_missing() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    resolved, found = gids.wait(lambda: [device([])], [RAIL], "spark-01", clock=lambda: now[0], sleep=sleep)
    assert (resolved, [item.code for item in found]) == ([], ["GID_MISSING"])
    assert now[0] == gids.PATIENCE_S
