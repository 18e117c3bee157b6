"""Ranks, names and the agreement of members."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import cluster_of, cluster_with


def found(cluster: Any) -> list[tuple[str, str]]:
    return [(item.code, item.found) for item in cluster.findings]


def test_the_order_of_the_group_gives_the_ranks() -> None:
    cluster = cluster_of()
    assert found(cluster) == []
    assert [(m.node, m.rank, m.management_address, m.user) for m in cluster.members] == [
        ("spark-01", 0, "192.0.2.11", "nvidia"),
        ("spark-02", 1, "192.0.2.12", "nvidia"),
    ]
    assert cluster.models_dir == "/home/nvidia/models"


def test_a_rank_overrides_the_order_and_the_others_fill_up() -> None:
    cluster = cluster_with(("a", "b", "c"), own={"c": {"rank": "0"}})
    assert found(cluster) == []
    assert [member.node for member in cluster.members] == ["c", "a", "b"]
    assert cluster.head.node == "c"


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"a": 0, "b": 0}, "a is 0, b is 0"),
        ({"a": 0, "b": 2}, "a is 0, b is 2"),
        ({"b": 2}, "a has none, b is 2"),
    ],
)
def test_duplicates_and_gaps_are_refused(ranks: dict[str, int], said: str) -> None:
    cluster = cluster_with(("a", "b"), own={name: {"rank": rank} for name, rank in ranks.items()})
    assert found(cluster) == [("RANKS_INVALID", said)]
    assert [member.rank for member in cluster.members] == [0, 1]


def test_a_rank_that_is_no_number_is_a_bad_variable() -> None:
    ((code, text),) = found(cluster_with(("a", "b"), own={"b": {"rank": "head"}}))
    assert code == "VARIABLE_INVALID"
    assert "'head' on b" in text


def test_members_must_agree() -> None:
    cluster = cluster_with(("a", "b"), own={"b": {"fabric_mtu": 9000}})
    assert found(cluster) == [("VARIABLES_DIFFER", "fabric_mtu: a has none, b has 9000")]
    assert found(cluster_with(("a", "b"), fabric_mtu=9000)) == []


def test_a_bad_name_of_one_host_is_blamed_on_it() -> None:
    (item,) = cluster_with(("a", "b"), own={"b": {"fabric_netdevs": ["enp1s0f0np0"]}}).findings
    assert (item.code, item.node) == ("VARIABLE_INVALID", "b")
    assert "1 devices and 2 subnets" in item.found


def test_homes_of_different_users_need_a_common_folder() -> None:
    own = {"a": {"ansible_user": "ann"}, "b": {"ansible_user": "ben"}}
    assert [code for code, _ in found(cluster_with(("a", "b"), own=own))] == ["VARIABLES_DIFFER"]
    assert found(cluster_with(("a", "b"), own=own, models_dir="/srv/models")) == []


def test_the_folder_of_root() -> None:
    assert cluster_of(ansible_user="root").models_dir == "/root/models"
    assert cluster_of(models_dir="/srv/models/").models_dir == "/srv/models"


def test_a_misspelt_variable_is_a_warning() -> None:
    (item,) = cluster_of(fabric_mtus=9000).findings
    assert (item.code, item.severity) == ("VARIABLE_UNKNOWN", "warn")
    assert item.remedy == "Rename fabric_mtus to fabric_mtu, or remove it."
