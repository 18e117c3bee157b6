"""The variables: defaults, limits, and errors that need no manual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.plan.policy import RUN_VARIABLES, VARIABLES, Policy, describe, misspelt, read_rank


def errors_of(**variables: Any) -> list[str]:
    return [str(error) for error in Policy.read({"cluster_name": "pair_a", **variables})[1]]


def test_every_default_passes_its_own_check() -> None:
    policy, errors = Policy.read({"cluster_name": "pair_a"})
    assert errors == []
    assert Policy.read(policy.as_dict()) == (policy, [])


def test_the_name_of_the_cluster_has_no_default() -> None:
    (error,) = Policy.read({})[1]
    assert str(error).startswith("cluster_name is not set; allowed: ")


@pytest.mark.parametrize(
    ("variable", "good", "bad"),
    [
        ("cluster_name", "pair-1", "Pair 1"),
        ("model", "qwen3.8-flash-next", "../etc/passwd"),
        ("recipe", "~/recipes/mine.yaml", ["mine.yaml"]),
        ("profile", "SPEED", "a profile"),
        ("profile_values", "SEQS=8,GRAPHS=eager", "SEQS"),
        ("profile_values", ["GMU=0.75"], ["GMU=$(reboot)"]),
        ("fabric_transport", "tcp", "roce"),
        ("fabric_subnets", ["10.0.0.0/24", "10.0.1.0/24"], ["10.0.0.1/24", "10.0.1.0/24"]),
        ("fabric_subnets", ["10.0.0.0/24", "10.0.1.0/24"], ["8.8.8.0/24", "10.0.1.0/24"]),
        ("fabric_first_host", "200", 0),
        ("fabric_netdevs", ["enp1s0f0np0", "enP2p1s0f0np0"], ["enp1s0f0np0", "enp1s0f0np0"]),
        ("fabric_mtu", 9000, 9001),
        ("fabric_renderer", "networkd", "netplan"),
        ("fabric_rollback_s", 15, 14),
        ("link_check_min_gbps", "0.05", 0),
        ("link_check_min_both_ways_gbps", "0.05", 0),
        ("link_check_seconds", 2, 1),
        ("link_check_ports", [13000, 13001], [80, 81]),
        ("takeover", "yes", "maybe"),
        ("models_dir", "/srv/models", "models"),
        ("models_dir", "/srv/models", "/etc"),
        ("models_dir", "/srv/models", "//etc/"),
        ("models_dir", "/var/lib/models", "/"),
        ("models_dir", "/usr/share/models", "/usr/lib/models"),
        ("models_dir", "/home/nvidia/models", "/home"),
        ("models_dir", "/srv/models", "/srv/a:b"),
        ("models_dir", "/srv/models", "/srv/../etc"),
        ("spark_models_path", "~/recipes, more", 7),
        ("api_host", "127.0.0.1", "localhost"),
        ("api_port", "8001", 80),
        ("api_base_url", "https://models.example.org/v", "models.example.org"),
        ("api_key_file", "/etc/spark-cluster/api-key", "api-key"),
        ("master_port", 29502, "29502.5"),
        ("probe_deadline_s", 5, True),
        ("gid_mode", "index", 3),
        ("disk_headroom_gib", 0, -1),
        ("launcher_restore", False, 1),
        ("weights_verify", "full", "none"),
        ("weights_sync_encrypt", False, "perhaps"),
        ("weights_download", True, "perhaps"),
        ("hub_endpoint", "https://hub.example.org", "hub.example.org"),
        ("hub_endpoint", "https://[fd00::1]:8443/hub", "https://[x"),
        ("hub_endpoint", "https://hub.example.org", "https://[]"),
        ("hub_endpoint", "http://hub:8080", "http://hub:99999"),
        ("hub_token_file", "/etc/spark-cluster/hub-login", "hub-login"),
        ("engine_source", "wheels", "pypi"),
    ],
)
def test_limits(variable: str, good: Any, bad: Any) -> None:
    assert errors_of(**{variable: good}) == []
    (error,) = errors_of(**{variable: bad})
    assert error.startswith(f"{variable} is ")
    assert "; allowed: " in error
    assert "; example: " in error


def test_every_variable_has_its_limits_tested() -> None:
    tested = {mark.args[1][index][0] for mark in test_limits.pytestmark for index in range(len(mark.args[1]))}
    assert tested == set(VARIABLES)


def test_text_of_the_command_line_becomes_what_it_means() -> None:
    policy, errors = Policy.read(
        {
            "cluster_name": "p",
            "takeover": "true",
            "link_check_ports": "[13000, 13001]",
            "fabric_subnets": "10.0.0.0/24,10.0.1.0/24",
            "link_check_min_gbps": "0.05",
        }
    )
    assert errors == []
    assert (policy.takeover, policy.link_check_ports, policy.link_check_min_gbps) == (True, (13000, 13001), 0.05)
    assert policy.fabric_subnets == ("10.0.0.0/24", "10.0.1.0/24")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (
            {"fabric_subnets": ["10.0.0.0/16", "10.0.1.0/24"]},
            "fabric_subnets is 10.0.0.0/16 and 10.0.1.0/24, which overlap",
        ),
        ({"fabric_netdevs": ["enp1s0f0np0"]}, "fabric_netdevs and fabric_subnets is 1 devices and 2 subnets"),
        ({"link_check_ports": [12000]}, "link_check_ports and fabric_subnets is 1 ports and 2 subnets"),
        ({"api_port": 29501}, "api_port and master_port is 29501 both"),
    ],
)
def test_two_variables_limit_each_other(variables: dict[str, Any], named: str) -> None:
    (error,) = errors_of(**variables)
    assert error.startswith(named)


def test_a_refused_variable_is_not_blamed_twice() -> None:
    (error,) = errors_of(fabric_subnets=["10.0.0.1/24"], link_check_ports=[12000, 12001])
    assert error.startswith("fabric_subnets is ")


def test_the_last_rank_must_fit_into_each_subnet() -> None:
    policy = Policy.read({"cluster_name": "p", "fabric_subnets": ["10.0.0.0/28", "10.0.1.0/28"]})[0]
    assert policy.room_for(3) == []
    errors = policy.room_for(4)
    assert [error.variable for error in errors] == ["fabric_first_host", "fabric_first_host"]
    assert "host 15 of 10.0.0.0/28" in errors[0].given


def test_the_ports_of_all_runs_must_exist() -> None:
    policy = Policy.read({"cluster_name": "p", "link_check_ports": [65000, 65001]})[0]
    assert policy.room_for(2) == []
    policy = Policy.read({"cluster_name": "p", "link_check_ports": [60000, 65001]})[0]
    assert [error.variable for error in policy.room_for(2)] == ["link_check_ports"]


def test_ranks() -> None:
    assert read_rank("1") == 1
    for bad in (-1, 64, "one", True):
        with pytest.raises(ValueError, match=r"^$"):
            read_rank(bad)


def test_misspelt_names_are_found_and_others_left_alone() -> None:
    given = ["fabric_mtus", "fabric_mtu", "link_check_min_gps", "ansible_host", "preflight_node", "rank"]
    assert misspelt(["api_prot", "rail_subnet"]) == [("api_prot", "api_port"), ("rail_subnet", "fabric_subnets")]
    assert misspelt(["reset_wieghts", "reset_stop"]) == [("reset_wieghts", "reset_weights")]
    assert misspelt(["ansible_port", "model_name", "ports", "master", "api_token"]) == []
    assert misspelt(given) == [("fabric_mtus", "fabric_mtu"), ("link_check_min_gps", "link_check_min_gbps")]


def test_a_variable_of_one_run_is_one_of_a_role(project: Path) -> None:
    said = "".join(path.read_text() for path in (project / "roles").glob("*/defaults/main.yml"))
    assert all(f"\n{name}:" in said for name in RUN_VARIABLES)


def test_the_description_has_every_variable_with_its_reason() -> None:
    rows = describe()
    assert {row.name for row in rows} == {*VARIABLES, "rank"}
    assert all(row.allowed and row.example and row.reason.endswith(".") for row in rows)
    assert next(row for row in rows if row.name == "fabric_subnets").default == "[192.168.200.0/24, 192.168.201.0/24]"
