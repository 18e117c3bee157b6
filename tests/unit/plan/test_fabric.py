"""Which functions carry which rail, and what netplan is told."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.plan.fabric import covering_network

from .conftest import Pair, cluster_of, cluster_with, codes, plan_for, said


def netdevs(pair: Pair, node: str) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for device in pair[node]["netdevs"]}


def rails(plan: Any, node: int) -> list[tuple[int, str, str | None, str]]:
    return [
        (r["rail"], r["netdev"], r["rdma_device"], f"{r['address']}/{r['prefix']}")
        for r in plan["nodes"][node]["rails"]
    ]


def test_both_functions_of_the_cabled_port_become_the_rails(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair)
    assert rails(plan, 0) == [
        (0, "enp1s0f0np0", "rocep1s0f0", "192.168.200.12/24"),
        (1, "enP2p1s0f0np0", "roceP2p1s0f0", "192.168.201.12/24"),
    ]
    assert rails(plan, 1)[1] == (1, "enP2p1s0f0np0", "roceP2p1s0f0", "192.168.201.13/24")
    assert plan["nodes"][0]["rails"][1]["peer_addresses"] == {"spark-02": "192.168.201.13"}
    assert plan["address_range"] == "192.168.200.0/23"
    assert plan["renderer"] == "NetworkManager"
    assert codes(plan) == ["NETPLAN_ORPHAN", "NETPLAN_ORPHAN"]
    assert plan["nodes"][0]["orphans"] == ["/etc/netplan/90-NM-0b1f7c52-5a0e-4d0c-9a53-6f2f5c1f7a10.yaml"]


def test_the_netplan_file_is_yaml_and_says_exactly_this(pair: Pair) -> None:
    file = plan_for(cluster_of(fabric_mtu=9000, fabric_renderer="networkd"), pair)["nodes"][1]["netplan"]
    assert file is not None
    assert file["path"] == "/etc/netplan/40-spark-fabric.yaml"
    common = {"renderer": "networkd", "dhcp4": False, "dhcp6": False, "link-local": [], "mtu": 9000, "optional": True}
    assert yaml.safe_load(file["text"]) == {
        "network": {
            "version": 2,
            "ethernets": {
                "enp1s0f0np0": {**common, "addresses": ["192.168.200.13/24"]},
                "enP2p1s0f0np0": {**common, "addresses": ["192.168.201.13/24"]},
            },
        }
    }


def test_networkd_where_networkmanager_does_not_run(pair: Pair) -> None:
    for facts in pair.values():
        facts["networkmanager"]["running"] = False
    assert plan_for(cluster_of(), pair)["renderer"] == "networkd"


def test_the_second_port_where_that_one_is_cabled(pair: Pair) -> None:
    for device in pair["spark-02"]["netdevs"][1:]:
        device["carrier"] = not device["carrier"]
    plan = plan_for(cluster_of(), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert [rail["netdev"] for rail in plan["nodes"][1]["rails"]] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert "PORT_UNSURE" not in codes(plan)


@pytest.mark.parametrize("carrier", [True, False])
def test_two_ports_that_look_alike_are_a_guess_that_is_said(pair: Pair, carrier: bool) -> None:
    for device in pair["spark-01"]["netdevs"][1:]:
        device.update(carrier=carrier)
    plan = plan_for(cluster_of(), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    note = said(plan, "PORT_UNSURE")
    assert (note["severity"], note["node"]) == ("note", "spark-01")


def test_a_port_that_has_the_addresses_already_is_kept(pair: Pair) -> None:
    devices = netdevs(pair, "spark-01")
    for name in ("enp1s0f1np1", "enP2p1s0f1np1"):
        devices[name].update(carrier=True)
    devices["enp1s0f1np1"]["addresses"] = ["192.168.200.12/24"]
    devices["enP2p1s0f1np1"]["addresses"] = ["192.168.201.12/24"]
    node = plan_for(cluster_of(), pair)["nodes"][0]
    assert [(rail["netdev"], rail["adopted"]) for rail in node["rails"]] == [
        ("enp1s0f1np1", True),
        ("enP2p1s0f1np1", True),
    ]


def test_rails_that_are_numbered_the_other_way_round_are_kept(pair: Pair) -> None:
    devices = netdevs(pair, "spark-01")
    devices["enP2p1s0f0np0"]["addresses"] = ["192.168.200.12/24"]
    devices["enp1s0f0np0"]["addresses"] = ["192.168.201.12/24"]
    assert [rail["netdev"] for rail in plan_for(cluster_of(), pair)["nodes"][0]["rails"]] == [
        "enP2p1s0f0np0",
        "enp1s0f0np0",
    ]


def test_named_devices_overrule_discovery_and_may_be_missing(pair: Pair) -> None:
    plan = plan_for(cluster_of(fabric_netdevs=["enp1s0f1np1", "eth9"]), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["enp1s0f1np1", "eth9"]
    assert plan["nodes"][0]["rails"][1]["rdma_device"] is None
    assert "FABRIC_FUNCTION_MISSING" in codes(plan, "fatal")


def test_each_node_may_have_names_of_its_own(pair: Pair) -> None:
    own = {"spark-02": {"fabric_netdevs": ["enp1s0f1np1", "enP2p1s0f1np1"]}}
    plan = plan_for(cluster_with(("spark-01", "spark-02"), own=own), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert [rail["netdev"] for rail in plan["nodes"][1]["rails"]] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert "VARIABLES_DIFFER" not in codes(plan)


def test_functions_with_other_names_are_known_by_driver_and_pci_address(pair: Pair) -> None:
    for facts in pair.values():
        for index, device in enumerate(facts["netdevs"]):
            device["name"] = f"eth{index}"
    plan = plan_for(cluster_of(), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["eth1", "eth3"]


def test_a_node_without_functions_has_no_rails_and_a_finding(pair: Pair) -> None:
    pair["spark-02"]["netdevs"] = pair["spark-02"]["netdevs"][:1]
    plan = plan_for(cluster_of(), pair)
    assert plan["nodes"][1]["rails"] == []
    assert plan["nodes"][1]["netplan"] is None
    assert len(plan["nodes"][0]["rails"]) == len(plan["rails"]) == 2
    assert codes(plan, "fatal") == ["FABRIC_FUNCTION_MISSING"]


def test_the_poorest_node_sets_the_number_of_rails_and_is_named(pair: Pair) -> None:
    pair["spark-02"]["netdevs"] = [device for device in pair["spark-02"]["netdevs"] if "P2p" not in device["name"]]
    plan = plan_for(cluster_of(), pair)
    assert [len(node["rails"]) for node in plan["nodes"]] == [1, 1]
    assert plan["address_range"] == "192.168.200.0/24"
    assert plan["link_check"]["ports"] == [12000]
    assert codes(plan, "fatal") == ["FABRIC_TWIN_MISSING"]
    missing = said(plan, "FABRIC_TWIN_MISSING")
    assert missing["node"] == "spark-02"
    assert "fabric_subnets: [192.168.200.0/24]" in missing["remedy"]


@pytest.mark.parametrize(
    "chosen",
    [
        {"fabric_subnets": ["192.168.200.0/24"]},
        {"fabric_subnets": ["192.168.200.0/24"], "fabric_netdevs": ["enp1s0f0np0"]},
    ],
)
def test_one_rail_by_choice_is_half_and_no_refusal(pair: Pair, chosen: dict[str, Any]) -> None:
    pair["spark-02"]["netdevs"] = [device for device in pair["spark-02"]["netdevs"] if "P2p" not in device["name"]]
    plan = plan_for(cluster_of(**chosen), pair)
    assert codes(plan, "fatal") == []
    assert codes(plan, "warn") == ["FABRIC_HALF", "FABRIC_HALF"]
    assert [node["sysctl"] for node in plan["nodes"]] == [None, None]


def test_functions_that_share_a_port_answer_arp_for_themselves_only(pair: Pair) -> None:
    file = plan_for(cluster_of(), pair)["nodes"][1]["sysctl"]
    assert file is not None
    assert file["path"] == "/etc/sysctl.d/40-spark-fabric.conf"
    assert file["values"] == {
        "net.ipv4.conf.enp1s0f0np0.arp_ignore": "1",
        "net.ipv4.conf.enp1s0f0np0.arp_announce": "2",
        "net.ipv4.conf.enP2p1s0f0np0.arp_ignore": "1",
        "net.ipv4.conf.enP2p1s0f0np0.arp_announce": "2",
    }
    lines = [line for line in file["text"].splitlines() if not line.startswith("#")]
    assert dict(line.split(" = ") for line in lines) == file["values"]
    # One function of each port: no twin that could answer for it.
    apart = plan_for(cluster_of(fabric_netdevs=["enp1s0f0np0", "enp1s0f1np1"]), pair)
    assert apart["nodes"][0]["sysctl"] is None


def test_a_function_that_carries_the_operators_connection_is_no_candidate(pair: Pair) -> None:
    """A ConnectX port that leads to the network of the house."""
    for facts in pair.values():
        uplink = next(device for device in facts["netdevs"] if device["name"] == "enp1s0f1np1")
        uplink.update(carrier=True, addresses=["10.20.0.5/24"])
        facts["default_routes"] = [{"dst": "default", "dev": "enp1s0f1np1", "gateway": "10.20.0.1", "metric": 0}]
    plan = plan_for(cluster_of(), pair)
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert "PORT_UNSURE" not in codes(plan)


@pytest.mark.parametrize(
    ("subnets", "cover"),
    [
        (["192.168.200.0/24", "192.168.201.0/24"], "192.168.200.0/23"),
        (["192.168.201.0/24", "192.168.202.0/24"], "192.168.200.0/22"),
        (["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"], "10.0.0.0/22"),
        (["10.0.0.0/24"], "10.0.0.0/24"),
    ],
)
def test_the_smallest_network_that_covers_the_rails(subnets: list[str], cover: str) -> None:
    assert covering_network(subnets) == cover


def test_a_range_that_covers_more_than_the_rails_is_said(pair: Pair) -> None:
    apart = {"fabric_subnets": ["192.168.201.0/24", "192.168.202.0/24"]}
    assert said(plan_for(cluster_of(**apart), pair), "RANGE_UNPLANNED")["found"].startswith("192.168.200.0/22 for")
    assert "RANGE_UNPLANNED" not in codes(plan_for(cluster_of(), pair))
    assert "RANGE_UNPLANNED" not in codes(plan_for(cluster_of(**apart, fabric_transport="tcp"), pair))


def test_tcp_is_a_warning_in_every_plan(pair: Pair) -> None:
    assert "TRANSPORT_TCP" in codes(plan_for(cluster_of(fabric_transport="tcp"), pair), "warn")
    assert "TRANSPORT_TCP" not in codes(plan_for(cluster_of(), pair))


def test_one_node_is_a_plan_without_a_fabric(pair: Pair) -> None:
    plan = plan_for(cluster_with(("spark-01",)), pair)
    assert plan["rails"] == []
    assert plan["address_range"] is None
    assert plan["nodes"][0]["netplan"] is None
    assert codes(plan, "fatal") == []
