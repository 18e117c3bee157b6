"""Ports matched by frames: cables straight and crossed, one and two, switches, rings, and wires that say nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from ansible.module_utils.spark.plan.fabric import wire_question

from .conftest import Pair, cluster_of, cluster_with, codes, plan_for, said

NAMES = {0: ("enp1s0f0np0", "enP2p1s0f0np0"), 1: ("enp1s0f1np1", "enP2p1s0f1np1")}
FOUR = {
    "fabric_subnets": ["192.168.200.0/24", "192.168.201.0/24", "192.168.202.0/24", "192.168.203.0/24"],
    "link_check_ports": [12000, 12001, 12002, 12003],
}

Segment = Sequence[tuple[str, int]]


def linked(facts: dict[str, Any], *ports: int) -> None:
    """Only these ports of a node have a link."""
    for device in facts["netdevs"][1:]:
        device["carrier"] = any(device["name"] in NAMES[port] for port in ports)


def heard(facts: Pair, *segments: Segment) -> dict[str, Any]:
    """What every node reports where these ports lie on one segment each: every function hears every other there."""
    reports: dict[str, Any] = {
        node: {"netdevs": list(NAMES[0] + NAMES[1]), "heard": [], "answered": [], "met": True} for node in facts
    }
    for segment in segments:
        ends = [(node, name) for node, port in segment for name in NAMES[port]]
        for node, name in ends:
            reports[node]["heard"] += [
                {"netdev": name, "peer": peer, "peer_netdev": far} for peer, far in ends if (peer, far) != (node, name)
            ]
    return reports


def rails(plan: Any) -> list[list[str]]:
    return [[rail["netdev"] for rail in node["rails"]] for node in plan["nodes"]]


@pytest.fixture
def both(pair: Pair) -> Pair:
    """Both ports of both nodes have a link."""
    for facts in pair.values():
        linked(facts, 0, 1)
    return pair


def test_a_cable_between_different_ports_is_followed(both: Pair) -> None:
    """The other two ports lead to something else."""
    plan = plan_for(cluster_of(), both, wire=heard(both, [("spark-01", 0), ("spark-02", 1)]))
    assert rails(plan) == [list(NAMES[0]), list(NAMES[1])]
    assert "PORT_UNSURE" not in codes(plan)
    assert codes(plan, "fatal") == []
    unheard = plan_for(cluster_of(), both)
    assert rails(unheard) == [list(NAMES[0]), list(NAMES[0])]
    assert codes(unheard).count("PORT_UNSURE") == 2


@pytest.mark.parametrize("crossed", [False, True])
def test_two_cables_give_one_pair_of_rails_over_one_of_them(both: Pair, crossed: bool) -> None:
    far = (1, 0) if crossed else (0, 1)
    wire = heard(both, [("spark-01", 0), ("spark-02", far[0])], [("spark-01", 1), ("spark-02", far[1])])
    plan = plan_for(cluster_of(), both, wire=wire)
    assert rails(plan) == [list(NAMES[0]), list(NAMES[far[0]])]
    assert codes(plan, "fatal") == []


@pytest.mark.parametrize("crossed", [False, True])
def test_two_cables_and_four_subnets_are_four_rails_none_of_which_changes_over(both: Pair, crossed: bool) -> None:
    far = (1, 0) if crossed else (0, 1)
    wire = heard(both, [("spark-01", 0), ("spark-02", far[0])], [("spark-01", 1), ("spark-02", far[1])])
    plan = plan_for(cluster_of(**FOUR), both, wire=wire)
    assert rails(plan) == [[*NAMES[0], *NAMES[1]], [*NAMES[far[0]], *NAMES[far[1]]]]
    assert len(plan["nodes"][0]["sysctl"]["values"]) == 8  # type: ignore[index]
    assert codes(plan, "fatal") == []
    # Once they have their addresses no frames are needed to find them again.
    for node in plan["nodes"]:
        for device in both[node["node"]]["netdevs"]:
            device["addresses"] = [
                f"{rail['address']}/{rail['prefix']}" for rail in node["rails"] if rail["netdev"] == device["name"]
            ] or device["addresses"][:1]
    again = plan_for(cluster_of(**FOUR), both)
    assert rails(again) == rails(plan)
    assert not wire_question(cluster_of(**FOUR), both, "spark-01")["ask"]


def test_a_cable_that_has_the_addresses_is_kept(both: Pair) -> None:
    for rank, facts in enumerate(both.values()):
        for subnet, name in zip((200, 201), NAMES[1], strict=True):
            device = next(device for device in facts["netdevs"] if device["name"] == name)
            device["addresses"] = [f"192.168.{subnet}.{12 + rank}/24"]
    wire = heard(both, [("spark-01", 0), ("spark-02", 0)], [("spark-01", 1), ("spark-02", 1)])
    assert rails(plan_for(cluster_of(), both, wire=wire)) == [list(NAMES[1])] * 2


def trio(pair: Pair) -> tuple[Any, Pair]:
    facts = {**pair, "spark-03": copy.deepcopy(pair["spark-02"])}
    facts["spark-03"]["hostname"] = "spark-03"
    return cluster_with(("spark-01", "spark-02", "spark-03")), facts


def test_three_nodes_at_a_switch_each_with_another_port(pair: Pair) -> None:
    cluster, facts = trio(pair)
    for port, own in zip((0, 1, 0), facts.values(), strict=True):
        linked(own, port)
    wire = heard(facts, [("spark-01", 0), ("spark-02", 1), ("spark-03", 0)])
    plan = plan_for(cluster, facts, wire=wire)
    assert rails(plan) == [list(NAMES[0]), list(NAMES[1]), list(NAMES[0])]
    assert plan["nodes"][2]["rails"][1]["peer_addresses"] == {
        "spark-01": "192.168.201.12",
        "spark-02": "192.168.201.13",
    }
    assert codes(plan, "fatal") == []


def test_both_ports_of_three_nodes_at_one_switch(pair: Pair) -> None:
    cluster, facts = trio(pair)
    for own in facts.values():
        linked(own, 0, 1)
    wire = heard(facts, [(node, port) for node in facts for port in (0, 1)])
    assert rails(plan_for(cluster, facts, wire=wire)) == [list(NAMES[0])] * 3


def test_three_nodes_in_a_ring_are_refused(pair: Pair) -> None:
    cluster, facts = trio(pair)
    for own in facts.values():
        linked(own, 0, 1)
    nodes = list(facts)
    wire = heard(facts, *([(nodes[place], 1), (nodes[place - 2], 0)] for place in range(3)))
    plan = plan_for(cluster, facts, wire=wire)
    refusal = said(plan, "FABRIC_PORTS_UNMATCHED")
    assert refusal["severity"] == "fatal"
    assert "one switch for more" in refusal["expected"]
    assert any("spark-02" in line for line in refusal["evidence"])


def test_frames_that_nobody_heard_stop_a_choice_and_not_a_single_cable(pair: Pair) -> None:
    silent = heard(pair)
    plan = plan_for(cluster_of(), pair, wire=silent)
    assert said(plan, "FABRIC_PORTS_UNMATCHED")["severity"] == "warn"
    assert rails(plan) == [list(NAMES[0])] * 2
    linked(pair["spark-02"], 0, 1)
    plan = plan_for(cluster_of(), pair, wire=silent)
    assert said(plan, "FABRIC_PORTS_UNMATCHED")["severity"] == "fatal"
    assert "fabric_netdevs: [enp1s0f0np0, enP2p1s0f0np0]" in said(plan, "FABRIC_PORTS_UNMATCHED")["remedy"]


def test_named_functions_on_different_cables_are_refused_with_those_that_fit(both: Pair) -> None:
    own = {"spark-01": {"fabric_netdevs": list(NAMES[0])}, "spark-02": {"fabric_netdevs": list(NAMES[0])}}
    cluster = cluster_with(("spark-01", "spark-02"), own=own)
    wire = heard(both, [("spark-01", 0), ("spark-02", 1)])
    plan = plan_for(cluster, both, wire=wire)
    refusal = said(plan, "FABRIC_PORTS_MISMATCHED")
    assert "spark-02: [enp1s0f1np1, enP2p1s0f1np1]" in refusal["remedy"]
    assert "enp1s0f0np0 of spark-01" in refusal["found"]
    straight = heard(both, [("spark-01", 0), ("spark-02", 0)])
    assert codes(plan_for(cluster, both, wire=straight), "fatal") == []


def test_a_name_on_one_node_decides_the_port_of_the_other(both: Pair) -> None:
    cluster = cluster_with(("spark-01", "spark-02"), own={"spark-02": {"fabric_netdevs": list(NAMES[1])}})
    wire = heard(both, [("spark-01", 0), ("spark-02", 0)], [("spark-01", 1), ("spark-02", 1)])
    assert rails(plan_for(cluster, both, wire=wire)) == [list(NAMES[1])] * 2


def test_twins_on_cables_of_their_own_are_paired_as_they_hear_each_other(pair: Pair) -> None:
    """As in a lab, where each function has a cable: here they cross over."""
    wire = heard(pair)
    for own, far in zip(NAMES[0], reversed(NAMES[0]), strict=True):
        wire["spark-01"]["heard"].append({"netdev": own, "peer": "spark-02", "peer_netdev": far})
    assert rails(plan_for(cluster_of(), pair, wire=wire)) == [list(NAMES[0]), list(reversed(NAMES[0]))]


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        ([], []),
        ([("192.168.200.12", "00:00:5e:00:53:01")], ["FABRIC_ADDRESS_ANSWERED"]),
        ([("192.168.200.99", "00:00:5e:00:53:01")], []),
        # A member that answers for an address which it shows is FABRIC_ADDRESS_TAKEN's; one that hides it is not.
        ([("192.168.200.12", "02:00:00:00:02:01:00")], ["FABRIC_ADDRESS_ANSWERED"]),
    ],
)
def test_a_planned_address_that_somebody_answers_for(pair: Pair, answered: list[Any], expected: list[str]) -> None:
    wire = heard(pair, [("spark-01", 0), ("spark-02", 0)])
    wire["spark-01"]["answered"] = [
        {"netdev": "enp1s0f0np0", "address": address, "mac": mac} for address, mac in answered
    ]
    plan = plan_for(cluster_of(), pair, wire=wire)
    assert codes(plan, "fatal") == expected
    for item in (said(plan, code) for code in expected):
        assert "fabric_first_host: 14" in item["remedy"]


def test_a_member_that_shows_the_address_is_told_once(pair: Pair) -> None:
    peer = pair["spark-02"]["netdevs"][1]
    peer["addresses"] = ["192.168.200.12/24"]
    wire = heard(pair, [("spark-01", 0), ("spark-02", 0)])
    wire["spark-01"]["answered"] = [{"netdev": "enp1s0f0np0", "address": "192.168.200.12", "mac": peer["mac"]}]
    assert codes(plan_for(cluster_of(), pair, wire=wire), "fatal") == ["FABRIC_ADDRESS_TAKEN"]


def test_the_wire_is_asked_before_addresses_are_set_and_not_afterwards(pair: Pair, ready: Pair) -> None:
    question = wire_question(cluster_of(), ready, "spark-02")
    assert (question["ask"], question["netdevs"]) == (False, [])
    for facts in pair.values():
        for device in facts["netdevs"][1:]:
            device["addresses"] = []
    question = wire_question(cluster_of(), pair, "spark-02")
    assert question == {
        "ask": True,
        "why": "addresses are to be set",
        "cluster": "pair_a",
        "node": "spark-02",
        "peers": ["spark-01"],
        "netdevs": sorted(NAMES[0]),
        "addresses": ["192.168.200.13", "192.168.201.13"],
    }


def test_the_wire_is_not_asked_where_it_could_not_answer_or_a_rank_runs(pair: Pair) -> None:
    assert wire_question(cluster_of(), pair, "spark-01")["ask"]
    assert not wire_question(cluster_of(), {"spark-01": pair["spark-01"]}, "spark-01")["ask"]
    assert not wire_question(cluster_with(("spark-01",)), pair, "spark-01")["ask"]
    off = copy.deepcopy(pair)
    for device in off["spark-02"]["netdevs"][1:]:
        device["admin_up"] = False
    assert not wire_question(cluster_of(), off, "spark-01")["ask"]
    pair["spark-02"]["rank"] = {"unit_state": "active", "container": {"running": True}}
    assert not wire_question(cluster_of(), pair, "spark-01")["ask"]
