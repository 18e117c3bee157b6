"""Which legs are run, on which ports; what lies under a link; and the numbers that need a denominator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.link import hardware
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.link.legs import Leg, ask_port, from_dict, highest_port, link_legs, ports_of
from ansible.module_utils.spark.link.path import bit_error_rate, path_of

from tests.unit.fabric.machine import Machine

RAILS: list[dict[str, Any]] = [
    {"rail": 0, "netdev": "enp1s0f0np0", "rdma_device": "rocep1s0f0", "pci": "0000:01:00.0"},
    {"rail": 1, "netdev": "enP2p1s0f0np0", "rdma_device": "roceP2p1s0f0", "pci": "0002:01:00.0"},
]
LSPCI = """\
0000:01:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported
\t\tLnkSta:\tSpeed {speed}, Width x{width}
0002:01:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x4
"""
MODULE = "\tIdentifier    : 0x11 (QSFP28)\n\tVendor name    : {vendor}\n\tVendor PN      : {part}\n"
DMESG = """\
[    1.150104] mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)
[    1.533198] mlx5_core 0000:01:00.0: mlx5_pcie_event:326:(pid 12): Detected insufficient power on the PCIe slot (27W).
[    9.100000] mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged
"""
REPLUG = """\
[ 7210.100000] mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged
[ 7225.100000] cx7-pcie-hotplug MTKP0001:00: Cable plugin
"""


def test_both_directions_of_a_pair_and_both_at_once() -> None:
    legs = link_legs(["spark-01", "spark-02"], transport="rdma", seconds=12)
    assert [(leg.kind, leg.source, leg.target) for leg in legs] == [
        ("latency", "spark-01", "spark-02"),
        ("write", "spark-01", "spark-02"),
        ("both", "spark-01", "spark-02"),
        ("write", "spark-02", "spark-01"),
    ]
    assert [leg.kind for leg in link_legs(["a", "b"], transport="tcp", seconds=5)] == ["tcp", "tcp"]
    assert link_legs(["a"], transport="rdma", seconds=5) == []


def test_every_node_of_many_is_loaded_in_each_direction() -> None:
    nodes = [f"spark-{number:02}" for number in range(1, 5)]
    legs = [leg for leg in link_legs(nodes, transport="rdma", seconds=12) if leg.kind == "write"]
    assert {leg.source for leg in legs} == {leg.target for leg in legs} == set(nodes)
    assert len(legs) == 6


@pytest.mark.parametrize("base", [(12000, 12001), (12001, 12000), (12000, 12007), (13000,)])
@pytest.mark.parametrize("count", [2, 5])
def test_no_two_legs_of_a_node_share_a_port(base: tuple[int, ...], count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    legs = link_legs(nodes, transport="rdma", seconds=12)
    for node in nodes:
        ports = [port for leg in legs if leg.target == node for port in ports_of(base, leg.slot)]
        ports.append(ask_port(base))
        assert len(ports) == len(set(ports))
        assert max(ports) <= highest_port(base, count)


def test_legs_travel_as_plain_data() -> None:
    leg = Leg("write", "a", "b", 4, 12)
    assert from_dict(leg.as_dict()) == leg
    with pytest.raises(ValueError, match="'read' is not one of"):
        from_dict({**leg.as_dict(), "kind": "read"})


def test_a_loopback_leg_stays_on_its_node() -> None:
    leg = Leg("tcp", "spark-01", "spark-01", 20, 5)
    rails = [{"rail": 0, "netdev": "lo", "address": "192.168.200.12", "peer_addresses": {}}]
    (lane,) = link.lanes_of(leg, "spark-01", rails, (12000,))
    assert (lane.address, lane.peer_address, lane.port) == ("192.168.200.12", "192.168.200.12", 12020)


# --- hardware --------------------------------------------------------------------------------------------------------


def looked_at(tmp_path: Path, **given: Any) -> dict[str, Any]:
    machine = Machine(tmp_path)
    machine.answer("lspci", stdout=LSPCI.format(speed=given.get("speed", "32GT/s"), width=given.get("width", 4)))
    cable = MODULE.format(vendor=given.get("vendor", "Amphenol"), part=given.get("part", "NJAAKK0006"))
    machine.answer("ethtool", "-m", stdout=cable, rc=0 if given.get("module", True) else 75)
    machine.answer("dmesg", stdout=given.get("dmesg", ""))
    for rail in RAILS:
        net = tmp_path / "sys/class/net" / rail["netdev"]
        port = tmp_path / "sys/class/infiniband" / rail["rdma_device"] / "ports/1"
        for folder in (net, port):
            folder.mkdir(parents=True)
        (net / "speed").write_text(f"{given.get('speed_mbps', 200000)}\n")
        (port / "state").write_text(f"{given.get('state', '4: ACTIVE')}\n")
    found = hardware.read(link.Place(machine, tmp_path), RAILS)
    assert len(machine.ran("ethtool", "-m")) == 1, "one cable carries both functions of a port"
    return found


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({}, []),
        ({"width": 2}, ["LINK_PCIE_SLOW"]),
        ({"speed": "2.5GT/s"}, ["LINK_PCIE_SLOW"]),
        ({"state": "1: DOWN"}, ["LINK_PORT_DOWN", "LINK_PORT_DOWN"]),
        ({"speed_mbps": 100000}, ["LINK_SPEED_LOW", "LINK_SPEED_LOW"]),
        ({"speed_mbps": -1}, []),
        ({"vendor": "OEM", "part": "Q112P-400G-0.5M"}, ["LINK_CABLE_UNKNOWN"]),
        ({"vendor": "Luxshare", "part": "LMTQF022-SD-R"}, []),
        ({"module": False}, []),
        ({"dmesg": DMESG}, ["LINK_POWER_LINE"]),
        ({"dmesg": DMESG + REPLUG}, ["LINK_REPLUGGED", "LINK_POWER_LINE"]),
    ],
)
def test_what_lies_under_a_link(given: dict[str, Any], codes: list[str], tmp_path: Path) -> None:
    found = hardware.judge("spark-01", looked_at(tmp_path, **given))
    assert [item.code for item in found] == codes
    severities = {item.code: item.severity for item in found}
    assert severities.get("LINK_CABLE_UNKNOWN", "note") == "note", "the second article's cable reached 185"
    assert severities.get("LINK_POWER_LINE", "note") == "note"
    assert severities.get("LINK_PCIE_SLOW", "fatal") == "fatal"


def test_a_replugged_cable_is_evidence_for_a_slow_link(tmp_path: Path) -> None:
    lines = hardware.evidence(looked_at(tmp_path, dmesg=DMESG + REPLUG))
    assert "Cable plugin" in lines[1]
    assert "enp1s0f0np0: PCIe 32 GT/s x4" in lines


def test_a_machine_that_answers_nothing_is_no_fault(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.answer("lspci", rc=127)
    machine.answer("ethtool", rc=75)
    found = hardware.read(link.Place(machine, tmp_path), RAILS)
    assert hardware.judge("spark-01", found) == []
    assert [rail["pcie"] for rail in found["rails"]] == [None, None]


# --- paths and denominators ------------------------------------------------------------------------------------------


def test_a_bit_error_rate_has_physical_bits_as_its_denominator() -> None:
    second_article = {"rx_corrected_bits_phy": 10214, "rx_bytes_phy": 8_600_000_000}
    assert bit_error_rate(second_article) is None, "application bytes are not it"
    assert bit_error_rate({**second_article, "rx_bits_phy": 1_000_000_000_000}) == pytest.approx(1.02e-8, rel=0.01)


def test_equal_counts_of_both_functions_are_told_once() -> None:
    counts = {"tx_bytes_phy": 10, "rx_pcs_symbol_err_phy": 386}
    path = path_of("a", "b", ["x", "y"], [counts, counts], [{"rx_discards_phy": 3}, {"rx_discards_phy": 4}])
    assert [str(item) for item in path.uncorrected] == ["a x: rx_pcs_symbol_err_phy +386"]
    assert [str(item) for item in path.receiver_drops] == ["b x: rx_discards_phy +3", "b y: rx_discards_phy +4"]
    assert path.known
    assert len(path.sent) == 2
