"""The arithmetic of memory and disk, and the command line of each rank."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.spark.gids import mapped
from ansible.module_utils.spark.plan.serving import _range_findings, configuration
from ansible.module_utils.spark.plan.types import CONFIG_LABEL, SECRET_CONFIG_PATH, Plan, PlanFile, Serving
from ansible.module_utils.spark.plan.units import gib

from .conftest import FIXTURES, GIB, Pair, cluster_of, cluster_with, codes, plan_for, recipe_of, said


@pytest.fixture
def pair(ready: Pair) -> Pair:
    return ready


GOLDEN = FIXTURES / "deepseek-v4-flash.plan.json"


def sized(value: float, unit: str) -> Callable[[Any], None]:
    def edit(data: Any) -> None:
        data["weights"]["size"].update(value=value, unit=unit)

    return edit


def without_weights(pair: Pair) -> Pair:
    for facts in pair.values():
        facts["weights"].update(present=False, bytes=0)
    return pair


def serving_of(plan: Plan) -> Serving:
    assert plan["serving"] is not None
    return plan["serving"]


def plan_file_of(plan: Plan, rank: int) -> PlanFile:
    serving = plan["nodes"][rank]["serving"]
    assert serving is not None
    return serving["plan_file"]


def argv_of(plan: Any, rank: int) -> list[str]:
    found: list[str] = plan["nodes"][rank]["serving"]["argv"]
    return found


def variables_of(plan: Any, rank: int) -> dict[str, str]:
    found: dict[str, str] = plan["nodes"][rank]["serving"]["environment"]
    return found


def after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# The whole plan of the real recipe


def test_deepseek_is_planned_completely(pair: Pair) -> None:
    """Every byte that reaches a node. SPARK_WRITE_GOLDEN=1 writes the file anew, to be read as a difference."""
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert codes(plan, "fatal") == []
    got = {
        "serving": plan["serving"],
        "nodes": {
            node["node"]: {
                "netplan": node["netplan"]["text"].splitlines() if node["netplan"] else [],
                "argv": argv_of(plan, node["rank"]),
                "environment": variables_of(plan, node["rank"]),
                "plan.json": {
                    key: value
                    for key, value in plan_file_of(plan, node["rank"]).items()
                    if key not in ("argv", "environment")
                },
            }
            for node in plan["nodes"]
        },
    }
    if os.environ.get("SPARK_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(got, indent=1) + "\n")
    assert got == json.loads(GOLDEN.read_text())


def test_the_ranks_differ_only_where_they_must(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    head, worker = argv_of(plan, 0), argv_of(plan, 1)
    assert [part for part in worker if part not in head] == ["1", "--headless"]
    assert {key for key in variables_of(plan, 0) if variables_of(plan, 0)[key] != variables_of(plan, 1)[key]} == {
        "VLLM_HOST_IP"
    }


# Size


@pytest.mark.parametrize(
    ("value", "unit", "memory_gib", "fits"),
    [
        (255, "GB", 121, True),
        (255, "GiB", 121, False),
        (242, "GiB", 121, True),
        (260, "GB", 121, False),
        (273, "GB", 121, False),
        (273, "GB", 400, True),
        (156, "GiB", 121, True),
    ],
)
def test_size_of_the_weights(pair: Pair, value: float, unit: str, memory_gib: int, fits: bool) -> None:
    for facts in without_weights(pair).values():
        facts["memory"].update(total_bytes=memory_gib * GIB, available_bytes=memory_gib * GIB)
    plan = plan_for(cluster_of(), pair, recipe_of("qwen3-coder-480b", sized(value, unit)))
    assert ("MODEL_TOO_LARGE" in codes(plan)) is not fits


def test_the_refusal_by_size_shows_the_sum(pair: Pair) -> None:
    plan = plan_for(cluster_of(), without_weights(pair), recipe_of("qwen3-coder-480b"))
    item = said(plan, "MODEL_TOO_LARGE")
    assert "273 GB = 254.3 GiB of weights / 2 = 127.1 GiB per node, before any cache" in item["found"]
    assert "at most 121.0 GiB per node" in item["expected"]
    assert "together 242.0 GiB = 259.8 GB" in item["expected"]
    assert "more nodes: 3 of this size would hold the weights" in item["remedy"]
    assert item["severity"] == "fatal"


def test_unequal_memory_the_smaller_node_rules(pair: Pair) -> None:
    pair["spark-02"]["memory"].update(total_bytes=64 * GIB, available_bytes=60 * GIB)
    item = said(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), "MODEL_TOO_LARGE")
    assert "156 GiB of weights / 2 = 78.0 GiB per node" in item["found"]
    assert "more nodes: 4 of this size" in item["remedy"], "three would hold the weights, and not divide the heads"
    assert "64.0 GiB per node, the memory of spark-02, the smaller one, which rules" in item["expected"]


# Memory


def test_an_engine_share_below_the_weights_is_refused(pair: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash", lambda data: data["serve"].update(gpu_memory_utilization=0.64))
    item = said(plan_for(cluster_of(), pair, recipe), "MEMORY_TOO_SMALL")
    assert "weights 156.0 GiB / 2 = 78.0 GiB; the engine takes 0.64 x 121.0 GiB = 77.4 GiB, " in item["found"]
    assert item["found"].endswith("0.6 GiB too little for the weights alone")
    assert "above 0.645" in item["remedy"]
    near = recipe_of("deepseek-v4-flash", lambda data: data["serve"].update(gpu_memory_utilization=0.65))
    assert "MEMORY_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, near))


def test_memory_that_something_else_uses_is_refused_with_what_to_lower(pair: Pair) -> None:
    pair["spark-02"]["memory"]["available_bytes"] = 100 * GIB
    item = said(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), "MEMORY_TOO_SMALL")
    assert (item["node"], item["found"]) == ("spark-02", "100.0 GiB available of 121.0 GiB")
    assert "0.835 x 121.0 GiB = 101.0 GiB" in item["expected"]
    assert "to 0.82" in item["remedy"]
    pair["spark-02"]["memory"]["available_bytes"] = 102 * GIB
    assert "MEMORY_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))


def test_the_memory_of_a_running_rank_is_no_shortage(pair: Pair) -> None:
    for facts in pair.values():
        facts["memory"]["available_bytes"] = 20 * GIB
        facts["rank"]["container"] = {"id": "1", "running": True, "started_at": "", "config_sha256": "x"}
    assert "MEMORY_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))


# Disk


def test_the_disk_must_hold_a_full_copy_the_image_and_the_headroom(pair: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash")
    pair["spark-01"]["image"]["size_bytes"] = 20 * GIB
    for disk in pair["spark-02"]["disks"]:
        disk["free_bytes"] = 196 * GIB - 1
    item = said(plan_for(cluster_of(), pair, recipe), "DISK_TOO_SMALL")
    assert item["node"] == "spark-02"
    assert item["found"] == "196.0 GiB free for /home/nvidia"
    assert item["expected"] == ("196.0 GiB: weights 156.0 GiB to copy + image 20.0 GiB + 20 GiB headroom = 196.0 GiB")
    for disk in pair["spark-02"]["disks"]:
        disk["free_bytes"] = 196 * GIB
    assert "DISK_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, recipe))


def test_two_file_systems_are_judged_apart(pair: Pair) -> None:
    models, docker, _ = pair["spark-02"]["disks"]
    models.update(free_bytes=177 * GIB)
    docker.update(free_bytes=41 * GIB, total_bytes=100 * GIB)
    assert "DISK_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))
    models.update(free_bytes=175 * GIB)
    assert said(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), "DISK_TOO_SMALL")["found"].endswith(
        "/home/nvidia"
    )


def test_what_lies_there_needs_no_room(pair: Pair) -> None:
    pair["spark-02"]["weights"] = pair["spark-01"]["weights"]
    pair["spark-02"]["image"] = pair["spark-01"]["image"]
    for facts in pair.values():
        for disk in facts["disks"]:
            disk["free_bytes"] = 21 * GIB
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert codes(plan, "fatal") == []
    assert serving_of(plan)["needs"][1]["disk_sum"] == "weights are there + image is there + 20 GiB headroom = 20.0 GiB"


# Where weights and image come from


def source(pair: Pair) -> str | None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    return serving_of(plan)["weights"]["source_node"]


def test_the_fullest_copy_is_the_source_and_the_head_wins_a_tie(pair: Pair) -> None:
    assert source(pair) == "spark-01"
    pair["spark-02"]["weights"] = dict(pair["spark-01"]["weights"])
    assert source(pair) == "spark-01"
    pair["spark-01"]["weights"]["bytes"] -= 1
    assert source(pair) == "spark-02"


def test_weights_that_nobody_has(pair: Pair) -> None:
    plan = plan_for(cluster_of(), without_weights(pair), recipe_of("deepseek-v4-flash"))
    item = said(plan, "WEIGHTS_NOWHERE")
    assert item["remedy"] == (
        "On spark-01: hf download deepseek-ai/DeepSeek-V4-Flash-0731 "
        "--revision 9e165c30e2704aec5d9d593cce3eebd58bbef1cb --local-dir /home/nvidia/models/deepseek-v4-flash-0731"
    )
    assert "WEIGHTS_NOWHERE" in codes(plan_for(cluster_of(), pair, recipe_of("lab-tiny")))


def test_a_folder_of_links_is_odd(pair: Pair) -> None:
    pair["spark-01"]["weights"]["bytes"] = 4096
    assert "WEIGHTS_SIZE_ODD" in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), "warn")
    pair["spark-01"]["weights"]["bytes"] = int(156 * GIB * 0.95)
    assert "WEIGHTS_SIZE_ODD" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))


# What is known beforehand


def test_a_recorded_failure_is_fatal_and_an_unknown_width_a_warning(pair: Pair) -> None:
    alone = plan_for(cluster_with(("spark-01",)), pair, recipe_of("lab-tiny"))
    assert not {"MODEL_FAILS_AT_WIDTH", "WIDTH_UNPROVEN"} & set(codes(alone))
    small = recipe_of("deepseek-v4-flash", sized(50, "GiB"))
    item = said(plan_for(cluster_with(("spark-01",)), pair, small), "MODEL_FAILS_AT_WIDTH")
    assert item["severity"] == "fatal"
    assert item["evidence"][-1] == "source: https://github.com/Anemll/dspark-vllm-gx10"
    unproven = recipe_of("deepseek-v4-flash", lambda data: data.pop("widths"))
    assert codes(plan_for(cluster_of(), pair, unproven), "warn") == ["WIDTH_UNPROVEN"]
    assert codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), "warn") == []


def test_heads_must_be_divided_evenly(pair: Pair) -> None:
    pair["spark-03"] = pair["spark-02"]
    three = cluster_with(("spark-01", "spark-02", "spark-03"))
    item = said(plan_for(three, pair, recipe_of("deepseek-v4-flash")), "WIDTH_UNEVEN")
    assert item["found"] == "64 attention heads over 3 nodes"
    assert item["remedy"].endswith("1, 2, 4, 8, 16.")
    assert "WIDTH_UNEVEN" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))


def test_an_image_by_tag_is_a_warning_and_one_of_the_lab_a_note(pair: Pair) -> None:
    tagged = recipe_of("deepseek-v4-flash", lambda data: data["image"].update(reference="ghcr.io/x/y:1"))
    assert "IMAGE_UNPINNED" in codes(plan_for(cluster_of(), pair, tagged), "warn")
    local = plan_for(cluster_of(engine_source="wheels"), pair, tagged)
    assert "IMAGE_UNPINNED" not in codes(local)
    assert "ENGINE_SOURCE" in codes(local, "note")
    pinned = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert not {"IMAGE_UNPINNED", "ENGINE_SOURCE"} & set(codes(pinned))


def test_a_recipe_without_an_image_cannot_be_served(pair: Pair) -> None:
    assert "RECIPE_UNSERVABLE" in codes(plan_for(cluster_of(), pair, recipe_of("qwen3-235b-a22b")), "fatal")
    assert "RECIPE_UNSERVABLE" not in codes(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")))


# Command lines


def test_variables_are_named_on_the_command_line_and_never_valued_or_empty(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    for rank in (0, 1):
        argv, variables = argv_of(plan, rank), variables_of(plan, rank)
        named = [argv[index + 1] for index, part in enumerate(argv) if part == "--env"]
        assert not [name for name in named if "=" in name]
        assert set(variables) <= set(named)
        assert all(variables.values())
        # Named without a value: what the image bakes in under these names is removed.
        assert set(named) - set(variables) == {"NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_NET", "UCX_NET_DEVICES"}


def test_rule_mode_lets_nccl_choose_and_index_mode_leaves_it_to_the_start(pair: Pair) -> None:
    rule = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert variables_of(rule, 0)["NCCL_IB_ADDR_RANGE"] == "192.168.200.0/23"
    assert variables_of(rule, 0)["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert plan_file_of(rule, 0)["resolve"]["gid_index_variable"] is None
    index = plan_for(cluster_of(gid_mode="index"), pair, recipe_of("deepseek-v4-flash"))
    assert variables_of(index, 0)["NCCL_IB_ADDR_RANGE"] == "192.168.200.0/23"
    assert "NCCL_IB_GID_INDEX" not in variables_of(index, 0), "the node looks it up at its start"
    resolve = plan_file_of(index, 1)["resolve"]
    assert resolve["gid_index_variable"] == "NCCL_IB_GID_INDEX"
    assert [(item["rdma_device"], item["netdev"], item["address"]) for item in resolve["gids"]] == [
        ("rocep1s0f0", "enp1s0f0np0", "192.168.200.13"),
        ("roceP2p1s0f0", "enP2p1s0f0np0", "192.168.201.13"),
    ]


def test_the_index_of_now_goes_into_the_plan_file(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert [gid["index"] for gid in plan_file_of(plan, 0)["resolve"]["gids"]] == [None, None]
    devices = {device["name"]: device for device in pair["spark-01"]["rdma_devices"]}
    for name, address in (("rocep1s0f0", "192.168.200.12"), ("roceP2p1s0f0", "192.168.201.12")):
        device = devices[name]
        entry = {"index": 3, "gid": mapped(address), "type": "RoCE v2", "netdev": device["netdev"]}
        device["gids"] = [entry, {**entry, "index": 2, "type": "IB/RoCE v1"}]
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert [gid["index"] for gid in plan_file_of(plan, 0)["resolve"]["gids"]] == [3, 3]


def test_a_device_outside_of_the_range_is_fatal(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash"))
    assert _range_findings(plan) == []
    plan["nodes"][1]["rails"][1]["address"] = "10.9.0.13"
    found = _range_findings(plan)
    assert [(item.code, item.severity, item.node) for item in found] == [("GID_OUTSIDE_RANGE", "fatal", "spark-02")]
    assert _range_findings({**plan, "transport": "tcp"}) == []


def test_tcp_keeps_nccl_away_from_rdma(pair: Pair) -> None:
    plan = plan_for(cluster_of(fabric_transport="tcp"), pair, recipe_of("deepseek-v4-flash"))
    assert variables_of(plan, 0)["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in variables_of(plan, 0)
    assert "/dev/infiniband" not in argv_of(plan, 0)


def test_the_lab_model_needs_no_gpu(pair: Pair) -> None:
    plan = plan_for(cluster_of(fabric_transport="tcp", engine_source="wheels"), pair, recipe_of("lab-tiny"))
    argv = argv_of(plan, 1)
    assert not {"--gpus", "--device", "--ipc"} & set(argv)
    assert after(argv, "--shm-size") == str(GIB)
    assert after(argv, "--entrypoint") == "vllm"
    assert variables_of(plan, 1) == {
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "600",
        "VLLM_HOST_IP": "192.168.200.13",
        "VLLM_NO_USAGE_STATS": "1",
    }


def test_one_node_has_no_ranks_and_no_fabric_variables(pair: Pair) -> None:
    plan = plan_for(cluster_with(("spark-01",)), pair, recipe_of("deepseek-v4-flash", sized(50, "GiB")))
    argv = argv_of(plan, 0)
    assert after(argv, "--tensor-parallel-size") == "1"
    assert not {"--nnodes", "--node-rank", "--master-addr", "--headless", "--device"} & set(argv)
    assert not [name for name in variables_of(plan, 0) if name.startswith(("NCCL", "GLOO", "VLLM_HOST_IP"))]
    assert plan_file_of(plan, 0)["ports"] == [8000]


def test_a_value_with_quotes_dollars_and_newlines_stays_one_argument(pair: Pair) -> None:
    hostile = "a b\"'$(reboot)`x`\n;ü {rank}"

    def edit(data: Any) -> None:
        data["serve"]["flags"] += ["--chat-template", hostile]
        data["serve"]["environment"]["HOSTILE"] = hostile

    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", edit))
    assert after(argv_of(plan, 1), "--chat-template") == hostile
    assert variables_of(plan, 1)["HOSTILE"] == hostile.replace("{rank}", "1")


def test_the_key_of_the_api_is_a_file_on_the_head_and_nothing_else(pair: Pair) -> None:
    plan = plan_for(cluster_of(api_key_file="/etc/spark-cluster/api-key"), pair, recipe_of("deepseek-v4-flash"))
    head, worker = argv_of(plan, 0), argv_of(plan, 1)
    assert after(head, "--config") == SECRET_CONFIG_PATH
    assert f"{SECRET_CONFIG_PATH}:{SECRET_CONFIG_PATH}:ro" in head
    assert "--config" not in worker
    assert "--api-key" not in head
    assert "--config" not in argv_of(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash")), 0)


def test_the_hash_follows_what_runs_and_nothing_else(pair: Pair) -> None:
    def sha(recipe: Any, **variables: Any) -> str:
        plan = plan_for(cluster_of(**variables), pair, recipe)
        value = serving_of(plan)["config_sha256"]
        assert f"{CONFIG_LABEL}={value}" in argv_of(plan, 0)
        assert f"{CONFIG_LABEL}={value}" in argv_of(plan, 1)
        return value

    same = sha(recipe_of("deepseek-v4-flash"))
    assert sha(recipe_of("deepseek-v4-flash"), probe_deadline_s=60) == same
    pair["spark-02"]["weights"] = dict(pair["spark-01"]["weights"])
    assert sha(recipe_of("deepseek-v4-flash")) == same
    assert sha(recipe_of("deepseek-v4-flash"), api_port=8001) != same
    assert sha(recipe_of("deepseek-v4-flash", lambda data: data["serve"].update(max_num_seqs=7))) != same


def test_the_recorded_configuration_is_verbatim_and_without_secrets(pair: Pair) -> None:
    def edit(data: Any) -> None:
        data["serve"]["environment"]["HFTOKEN"] = "hf_secret"

    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", edit))
    recorded = configuration(plan)
    assert recorded["ranks"][1]["argv"] == argv_of(plan, 1)
    assert recorded["image"]["digest"].startswith("sha256:a83948")
    assert recorded["max_num_seqs"] == 6
    assert recorded["fabric"]["transport"] == "rdma"
    assert "hf_secret" not in json.dumps(recorded)
    assert configuration(plan_for(cluster_of(), pair)) == {}


def test_a_worker_has_no_ports_and_the_base_url_may_be_given(pair: Pair) -> None:
    plan = plan_for(cluster_of(api_base_url="https://models.example.org"), pair, recipe_of("deepseek-v4-flash"))
    ports = [node["serving"]["plan_file"]["ports"] for node in plan["nodes"] if node["serving"]]
    assert ports == [[8000, 29501], []]
    assert serving_of(plan)["base_url"] == "https://models.example.org"


def test_units_on_the_screen() -> None:
    assert (gib(156 * GIB), gib(2_900_000), gib(254_251_897_334)) == ("156.0 GiB", "2.8 MiB", "236.8 GiB")


def test_weights_that_nobody_has_and_that_may_be_fetched(pair: Pair) -> None:
    plan = plan_for(cluster_of(weights_download=True), without_weights(pair), recipe_of("deepseek-v4-flash"))
    weights = serving_of(plan)["weights"]
    assert "WEIGHTS_NOWHERE" not in codes(plan)
    assert (weights["source_node"], weights.get("download")) == ("spark-01", True)


def test_weights_that_are_there_are_not_fetched(pair: Pair) -> None:
    plan = plan_for(cluster_of(weights_download=True), pair, recipe_of("deepseek-v4-flash"))
    assert "download" not in serving_of(plan)["weights"]


def test_the_image_comes_from_the_node_that_shows_the_pinned_digest(pair: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash")
    assert recipe.image_reference
    for facts in pair.values():
        facts["image"] |= {"reference": recipe.image_reference, "present": True}
    pair["spark-01"]["image"]["repo_digests"] = []
    pair["spark-02"]["image"]["repo_digests"] = [f"mirror/engine@{recipe.digest}"]
    assert serving_of(plan_for(cluster_of(), pair, recipe))["image"]["source_node"] == "spark-02"
    pair["spark-02"]["image"]["repo_digests"] = []
    assert serving_of(plan_for(cluster_of(), pair, recipe))["image"]["source_node"] == "spark-01"
