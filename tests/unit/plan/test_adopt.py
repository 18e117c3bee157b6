"""Networks that are right already: taken over as they are, joined by a node without one, or not taken over."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.spark.plan.present import plan_lines

from .conftest import Pair, cluster_of, codes, plan_for, said

FUNCTIONS = ("enp1s0f0np0", "enP2p1s0f0np0")
BY_HAND = {
    "spark-01": ("10.9.0.1/24", "10.9.1.1/24"),
    "spark-02": ("10.9.0.2/24", "10.9.1.2/24"),
}


def device(pair: Pair, node: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in pair[node]["netdevs"] if one["name"] == name)
    return found


def make(pair: Pair, node: str, addresses: tuple[str, ...], by: str = "netplan", mtu: int = 1500) -> None:
    """Give a node's functions addresses, by a file, a profile, or only by hand."""
    for name, address in zip(FUNCTIONS, addresses, strict=True):
        device(pair, node, name).update(addresses=[address], mtu=mtu, arp_ignore=1)
    facts = pair[node]
    if by in ("netplan", "ours"):
        path = "/etc/netplan/40-cx7.yaml" if by == "netplan" else "/etc/netplan/40-spark-fabric.yaml"
        kind = "yaml" if by == "netplan" else "ours"
        facts["netplan"]["files"].append({"path": path, "class": kind, "error": None, "netdevs": list(FUNCTIONS)})
    elif by == "profile":
        facts["networkmanager"]["profiles"] += [
            {
                "uuid": f"u-{name}",
                "name": name,
                "device": name,
                "file": f"/etc/NetworkManager/system-connections/{name}.nmconnection",
                "netdevs": [name],
                "autoconnect": True,
                "lasting": True,
            }
            for name in FUNCTIONS
        ]


def addresses(plan: Any) -> list[list[str]]:
    return [[f"{rail['address']}/{rail['prefix']}" for rail in node["rails"]] for node in plan["nodes"]]


@pytest.mark.parametrize("by", ["netplan", "profile"])
def test_a_network_made_by_hand_becomes_the_plan(pair: Pair, by: str) -> None:
    for node, given in BY_HAND.items():
        make(pair, node, given, by)
    plan = plan_for(cluster_of(), pair)
    assert addresses(plan) == [list(given) for given in BY_HAND.values()]
    assert [rail["subnet"] for rail in plan["rails"]] == ["10.9.0.0/24", "10.9.1.0/24"]
    assert plan["address_range"] == "10.9.0.0/23"
    assert plan["nodes"][0]["rails"][1]["peer_addresses"] == {"spark-02": "10.9.1.2"}
    assert all(rail["adopted"] for node in plan["nodes"] for rail in node["rails"])
    assert all(node["adopted_from"] and node["sysctl"] is None for node in plan["nodes"])
    assert codes(plan, "fatal") == []
    note = said(plan, "FABRIC_SUBNETS_FOUND")
    assert note["severity"] == "note"
    assert "10.9.0.1/24 on enp1s0f0np0" in note["evidence"][0]
    assert "FABRIC_ARP_FLUX" not in codes(plan)
    shown = "\n".join(plan_lines(plan))
    assert shown.count(" and stays as it is") == 2
    assert "10.9.0.1/24" in shown


def test_the_planned_addresses_by_another_file_are_adopted_without_a_word_about_subnets(pair: Pair) -> None:
    make(pair, "spark-01", ("192.168.200.12/24", "192.168.201.12/24"))
    make(pair, "spark-02", ("192.168.200.13/24", "192.168.201.13/24"), "profile")
    plan = plan_for(cluster_of(), pair)
    assert [bool(node["adopted_from"]) for node in plan["nodes"]] == [True, True]
    assert "FABRIC_SUBNETS_FOUND" not in codes(plan)
    assert codes(plan, "fatal") == []


def test_twins_that_answer_for_each_other_are_left_alone_and_said(pair: Pair) -> None:
    for node, given in BY_HAND.items():
        make(pair, node, given)
        device(pair, node, "enP2p1s0f0np0")["arp_ignore"] = 0
    plan = plan_for(cluster_of(), pair)
    assert codes(plan, "warn") == ["FABRIC_ARP_FLUX", "FABRIC_ARP_FLUX"]
    assert "net.ipv4.conf.enP2p1s0f0np0.arp_ignore=1" in said(plan, "FABRIC_ARP_FLUX")["remedy"]
    assert plan["nodes"][0]["sysctl"] is None


def test_a_node_without_addresses_joins_the_one_that_has_some(pair: Pair) -> None:
    make(pair, "spark-02", ("10.9.0.13/24", "10.9.1.13/24"), mtu=9000)
    plan = plan_for(cluster_of(), pair)
    assert addresses(plan) == [["10.9.0.12/24", "10.9.1.12/24"], ["10.9.0.13/24", "10.9.1.13/24"]]
    assert [bool(node["adopted_from"]) for node in plan["nodes"]] == [False, True]
    assert plan["mtu"] == 9000
    assert "mtu: 9000" in (plan["nodes"][0]["netplan"] or {"text": ""})["text"]
    assert plan["nodes"][0]["sysctl"] is not None
    assert "spark-01 will join" in said(plan, "FABRIC_SUBNETS_FOUND")["found"]


def test_the_one_that_joins_takes_a_free_host_of_a_small_subnet(pair: Pair) -> None:
    make(pair, "spark-01", ("10.9.0.1/30", "10.9.0.5/30"))
    plan = plan_for(cluster_of(), pair)
    assert addresses(plan)[1] == ["10.9.0.2/30", "10.9.0.6/30"]


def test_rails_in_the_other_order_on_one_node_are_paired_by_subnet(pair: Pair) -> None:
    make(pair, "spark-01", BY_HAND["spark-01"])
    make(pair, "spark-02", tuple(reversed(BY_HAND["spark-02"])))
    plan = plan_for(cluster_of(), pair)
    assert addresses(plan)[1] == list(BY_HAND["spark-02"])
    assert [rail["netdev"] for rail in plan["nodes"][1]["rails"]] == list(reversed(FUNCTIONS))


@pytest.mark.parametrize(
    ("given", "fatal"),
    [
        # Both functions of a node in one subnet, as the vendor's script leaves them.
        (
            {"spark-01": ("10.9.0.1/24", "10.9.0.11/24"), "spark-02": ("10.9.0.2/24", "10.9.0.12/24")},
            "FABRIC_ONE_SUBNET",
        ),
        # Nodes that do not agree.
        (
            {"spark-01": ("10.9.0.1/24", "10.9.1.1/24"), "spark-02": ("10.9.2.1/24", "10.9.3.1/24")},
            "NETPLAN_FOREIGN_CLAIM",
        ),
        # Two owners of one address.
        (
            {"spark-01": ("10.9.0.1/24", "10.9.1.1/24"), "spark-02": ("10.9.0.1/24", "10.9.1.1/24")},
            "NETPLAN_FOREIGN_CLAIM",
        ),
        # Addresses that nobody chose.
        (
            {"spark-01": ("169.254.3.1/16", "169.254.4.1/16"), "spark-02": ("169.254.3.2/16", "169.254.4.2/16")},
            "NETPLAN_FOREIGN_CLAIM",
        ),
    ],
)
def test_a_network_that_is_not_right_is_refused(pair: Pair, given: dict[str, tuple[str, str]], fatal: str) -> None:
    for node, own in given.items():
        make(pair, node, own)
    plan = plan_for(cluster_of(), pair)
    assert fatal in codes(plan, "fatal")
    assert [rail["subnet"] for rail in plan["rails"]] == ["192.168.200.0/24", "192.168.201.0/24"]
    assert not any(node["adopted_from"] for node in plan["nodes"])


def test_one_function_without_an_address_is_not_right(pair: Pair) -> None:
    make(pair, "spark-01", BY_HAND["spark-01"])
    device(pair, "spark-01", "enP2p1s0f0np0")["addresses"] = []
    assert codes(plan_for(cluster_of(), pair), "fatal") == ["NETPLAN_FOREIGN_CLAIM", "NETPLAN_FOREIGN_CLAIM"]


def test_mtus_that_differ_are_not_right(pair: Pair) -> None:
    make(pair, "spark-01", BY_HAND["spark-01"], mtu=9000)
    make(pair, "spark-02", BY_HAND["spark-02"])
    assert "NETPLAN_FOREIGN_CLAIM" in codes(plan_for(cluster_of(), pair), "fatal")


@pytest.mark.parametrize("wish", [{"fabric_subnets": ["10.5.0.0/24", "10.5.1.0/24"]}, {"fabric_mtu": 9000}])
def test_what_somebody_asked_for_is_not_replaced_by_what_was_found(pair: Pair, wish: dict[str, Any]) -> None:
    for node, given in BY_HAND.items():
        make(pair, node, given)
    plan = plan_for(cluster_of(**wish), pair)
    assert not any(node["adopted_from"] for node in plan["nodes"])
    assert "NETPLAN_FOREIGN_CLAIM" in codes(plan, "fatal")


@pytest.mark.parametrize("by", ["ours", "nothing"])
def test_addresses_that_are_ours_or_will_not_last_give_way_to_the_plan(pair: Pair, by: str) -> None:
    """A changed fabric_subnets must move a network of ours; one that only a hand set is gone after the next boot."""
    for node, given in BY_HAND.items():
        make(pair, node, given, by)
    plan = plan_for(cluster_of(), pair)
    assert addresses(plan)[0] == ["192.168.200.12/24", "192.168.201.12/24"]
    assert not any(node["adopted_from"] for node in plan["nodes"])
    assert codes(plan, "fatal") == []
