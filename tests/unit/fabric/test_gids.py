"""GIDs by the address of their rail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import gids
from ansible.module_utils.spark.facts import GidFacts, RdmaDeviceFacts
from ansible.module_utils.spark.parse.rdma import read_devices

CASES = yaml.safe_load(Path(__file__).with_name("gids.yml").read_text())
RULES = yaml.safe_load(Path(__file__).with_name("gid_rules.yml").read_text())
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


@pytest.mark.parametrize("case", RULES, ids=lambda case: case["name"])
def test_what_nccl_would_take_by_its_own_rule(case: dict[str, Any]) -> None:
    table = device(case["table"])
    resolved, _ = gids.resolve([table], [RAIL], "spark-01")
    assert gids.nccl_choice(table["gids"], case["range"]) == case["takes"]
    said = gids.by_rule([table], resolved, case["range"], "spark-01")
    assert [item.code for item in said] == ([] if case.get("right") else ["GID_OUTSIDE_RANGE"])
    assert gids.by_rule([table], resolved, None, "spark-01") == []


def test_an_address_of_a_gid_and_back() -> None:
    assert str(gids.unmapped(gids.mapped("192.168.101.11"))) == "192.168.101.11"
    for other in ("fe80:0000:0000:0000:5054:00ff:febb:0001", "2001:0db8:0000:0000:0000:ffff:c0a8:650b", ""):
        assert gids.unmapped(other) is None


def test_drift_is_said_once_for_the_devices_that_moved() -> None:
    table = device(["4 0000:0000:0000:0000:0000:ffff:c0a8:650b RoCE v2 enP2p1s0f0np0"])
    resolved, _ = gids.resolve([table], [RAIL], "spark-01")
    moved = gids.drift([{**RAIL, "index": 3}], resolved, "spark-01")
    assert [(item.code, item.severity) for item in moved] == [("GID_DRIFTED", "note")]
    assert (moved[0].found, moved[0].expected) == ("roceP2p1s0f0: index 4", "roceP2p1s0f0: index 3, as planned")
    for planned in ({**RAIL, "index": 4}, {**RAIL, "index": None}, RAIL):
        assert gids.drift([planned], resolved, "spark-01") == []


def test_a_table_of_1024_slots_is_read_in_half_a_second(tmp_path: Path) -> None:
    """As a tree of files: what is measured is the number of reads, which sysfs answers no slower than a file system."""
    rails = [
        {"rail": 0, "netdev": "enp1s0f0np0", "address": "192.168.200.12", "rdma_device": "rocep1s0f0"},
        {"rail": 1, "netdev": "enP2p1s0f0np0", "address": "192.168.201.12", "rdma_device": "roceP2p1s0f0"},
    ]
    for rail in rails:
        port = tmp_path / "sys/class/infiniband" / str(rail["rdma_device"]) / "ports/1"
        for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (port / folder).mkdir(parents=True)
        for index in range(1024):
            held = index == 1000
            gid = gids.mapped(str(rail["address"])) if held else "0000:0000:0000:0000:0000:0000:0000:0000"
            (port / "gids" / str(index)).write_text(gid + "\n")
            if held:
                (port / "gid_attrs/types" / str(index)).write_text("RoCE v2\n")
                (port / "gid_attrs/ndevs" / str(index)).write_text(f"{rail['netdev']}\n")
    # Processor time: what else this machine does is no property of the reading.
    began = time.process_time()
    resolved, found = gids.resolve(read_devices(tmp_path), rails, "spark-01")
    took_s = time.process_time() - began
    assert ([item.index for item in resolved], found) == ([1000, 1000], [])
    assert took_s < 0.5
