"""The memory of a whole plan: what is said of a model's cache, of unequal nodes, of a rank that is replaced."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.plan.jit import jit_folder
from ansible.module_utils.spark.plan.memory import fit
from ansible.module_utils.spark.plan.needs import decode_bought, load_of, per_token
from ansible.module_utils.spark.plan.recipe import Recipe, choose
from ansible.module_utils.spark.plan.table import HEADINGS, Row, lines, rooms_for, rows
from ansible.module_utils.spark.plan.types import Plan
from ansible.module_utils.spark_controller import load_recipe

from scripts import models

from .conftest import GIB, MODELS, Pair, cluster_of, cluster_with, codes, plan_for, recipe_of, said

MACHINES = {"2x121": (121, 121), "2x64": (64, 64), "1x121": (121,)}


@pytest.fixture
def pair(ready: Pair) -> Pair:
    return ready


def per_token_of(kilobytes: float, **serve: Any) -> Callable[[Any], None]:
    """DeepSeek with a cache of so many kB per token over both ranks; it asks for 6 requests of 1,048,576 tokens."""

    def edit(data: Any) -> None:
        data["architecture"]["kv_bytes_per_token"] = {"value": kilobytes, "unit": "kB", "source": "a test"}
        data["serve"].update(serve)
        data.pop("measured", None)

    return edit


def unknown(data: Any) -> None:
    data["architecture"].pop("kv_bytes_per_token", None)
    data.pop("measured", None)


# The cache


def test_weights_that_fit_with_a_cache_that_does_not_are_refused_with_the_sum(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(60)))
    item = said(plan, "CACHE_TOO_SMALL")
    assert item["severity"] == "fatal"
    assert item["found"] == (
        "weights 156.0 GiB / 2 = 78.0 GiB; the engine takes 0.835 x 121.0 GiB = 101.0 GiB, which leaves 23.0 GiB: "
        "4.0 GiB for activations, graphs and buffers, 19.0 GiB for a cache of 681,289 tokens at 30.0 kB (from the "
        "recipe's figure); one request of 1,048,576 tokens takes 29.3 GiB"
    )
    assert item["remedy"] == (
        "In a recipe that extends deepseek-v4-flash: serve.gpu_memory_utilization 0.835 -> 0.92; or "
        "serve.max_model_len 1048576 -> 680960."
    )
    near = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(38)))
    assert "CACHE_TOO_SMALL" not in codes(near)


def test_what_hangs_on_the_estimate_alone_is_a_warning(pair: Pair) -> None:
    tight = recipe_of("deepseek-v4-flash", per_token_of(1, gpu_memory_utilization=0.66, max_model_len=8192))
    assert "CACHE_TOO_SMALL" in codes(plan_for(cluster_of(), pair, tight), "warn")
    near = recipe_of("deepseek-v4-flash", per_token_of(1, gpu_memory_utilization=0.69, max_model_len=8192))
    assert "CACHE_TOO_SMALL" not in codes(plan_for(cluster_of(), pair, near))


def test_fewer_requests_at_full_length_than_asked_are_a_note(pair: Pair) -> None:
    item = said(plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(20))), "CACHE_SHARED")
    assert item["severity"] == "note"
    assert item["found"] == "its pool holds 1.9 requests of 1,048,576 tokens, not 6"
    assert "max_num_seqs 6 -> 1; or serve.max_model_len 1048576 -> 339968" in item["remedy"]
    one = recipe_of("deepseek-v4-flash", per_token_of(20, max_num_seqs=1))
    assert "CACHE_SHARED" not in codes(plan_for(cluster_of(), pair, one))


def test_an_unknown_cache_is_said(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", unknown))
    assert said(plan, "CACHE_UNKNOWN")["severity"] == "note"
    known = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(3)))
    assert "CACHE_UNKNOWN" not in codes(known)


def test_the_checkpoint_on_the_node_says_how_large_its_cache_is(pair: Pair) -> None:
    def plain(data: Any) -> None:
        unknown(data)
        at = data["serve"]["flags"].index("--kv-cache-dtype")
        data["serve"]["flags"][at + 1] = "fp8_e4m3"

    pair["spark-01"]["weights"]["config"] = {
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "torch_dtype": "bfloat16",
    }
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", plain))
    assert plan["serving"] is not None
    assert "at 30.7 kB (from the checkpoint's config.json)" in plan["serving"]["needs"][1]["memory_sum"]


def test_a_run_is_believed_before_a_figure() -> None:
    def both(data: Any) -> None:
        per_token_of(30)(data)
        data["measured"] = [
            {
                "nodes": 2,
                "image": "x",
                "source": "a test",
                "memory_total": {"value": 121, "unit": "GiB", "source": "a test"},
                "gpu_memory_utilization": 0.835,
                "kv_dtype": "nvfp4_ds_mla",
                "kv_pool_tokens": 2_000_000,
            }
        ]

    recipe = recipe_of("deepseek-v4-flash", both)
    each = per_token(recipe, 2)
    assert each is not None
    assert each.on_rank(2) == pytest.approx((0.835 * 121 - 78 - 4) * GIB / 2_000_000)

    def other_format(data: Any) -> None:
        both(data)
        data["measured"][0]["kv_dtype"] = "fp8"

    figure = per_token(recipe_of("deepseek-v4-flash", other_format), 2)
    assert figure is not None
    assert figure.on_rank(2) == 15_000


@pytest.mark.parametrize(
    ("source", "profile", "nodes", "published"),
    [("STAGED", "SPEED", 2, 2_128_927), ("SPEED", "STAGED", 1, 1_027_392)],
    ids=["one to two", "two to one"],
)
def test_the_catalogue_predicts_each_published_pool_from_the_other(
    source: str, profile: str, nodes: int, published: int
) -> None:
    """Through the recipe as it is shipped: its table on disk or not, its engine share, its heads."""
    recipe = choose(recipe_of("qwen3.8-flash-next"), profile)
    runs = [run for run in recipe.measured if run.profile == source and run.memory_bytes]
    row = rows([replace(recipe, measured=tuple(runs), profiles=())], rooms_for([121 * GIB] * nodes))[0]
    assert row.pool == pytest.approx(published, rel=0.15)
    assert row.pool != published


def test_a_run_of_the_same_profile_is_asked_first() -> None:
    recipe = choose(recipe_of("qwen3.8-flash-next"), "SPEED")
    assert fit(load_of(recipe, 2), rooms_for([121 * GIB] * 2)).pool == pytest.approx(2_128_927, abs=2)


# Nodes


def test_of_unequal_nodes_the_smaller_rules_and_the_sum_says_so(pair: Pair) -> None:
    pair["spark-02"]["memory"].update(total_bytes=100 * GIB, available_bytes=98 * GIB)
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(3, max_num_seqs=1)))
    assert plan["serving"] is not None
    assert "100.0 GiB of spark-02, the smaller one, which rules = 83.5 GiB" in plan["serving"]["needs"][0]["memory_sum"]
    assert plan["serving"]["needs"][0]["memory_bytes"] == int(0.835 * 121 * GIB)


def running(pair: Pair, share: float | None) -> Pair:
    container = {"id": "1", "running": True, "started_at": "", "config_sha256": "x", "memory_share": share}
    for facts in pair.values():
        facts["memory"]["available_bytes"] = 20 * GIB
        facts["rank"]["container"] = container
    return pair


def test_a_rank_that_is_replaced_gives_its_share_back(pair: Pair) -> None:
    """A small one that runs beside something else frees too little for a large one."""
    recipe = recipe_of("deepseek-v4-flash", per_token_of(3, max_num_seqs=1))
    assert "MEMORY_TOO_SMALL" not in codes(plan_for(cluster_of(), running(pair, 0.8), recipe))
    item = said(plan_for(cluster_of(), running(pair, 0.3), recipe), "MEMORY_TOO_SMALL")
    assert item["found"] == "56.3 GiB available, 36.3 GiB of it from the rank that is replaced, of 121.0 GiB"
    assert "MEMORY_TOO_SMALL" not in codes(plan_for(cluster_of(), running(pair, None), recipe))


def test_the_second_node_is_explained(pair: Pair) -> None:
    plan = plan_for(cluster_of(), pair, recipe_of("deepseek-v4-flash", per_token_of(3)))
    assert plan["serving"] is not None
    capacity, decode = plan["serving"]["second_node"]
    assert capacity.startswith("capacity: 242.0 GiB in place of 121.0 GiB, 78.0 GiB of weights on each node; on one")
    assert decode.startswith("decode: not measured on both")
    alone = plan_for(cluster_with(("spark-01",)), pair, recipe_of("deepseek-v4-flash", per_token_of(3)))
    assert alone["serving"] is not None
    assert alone["serving"]["second_node"] == []


def test_what_decode_gains_is_measured_and_never_computed() -> None:
    """The article: 41.7 on one Spark, 51.9 on two."""
    recipe = recipe_of("qwen3.8-flash-next")
    assert decode_bought(choose(recipe, "SPEED"), 2).startswith("decode: 51.9 tok/s in place of 41.7 (+24.5%)")
    assert decode_bought(choose(recipe, "SPEED"), 4).startswith("decode: not measured on both")


# What is compiled


def test_what_is_compiled_stays_on_the_node_apart_for_each_image(pair: Pair) -> None:
    recipe = recipe_of("deepseek-v4-flash")
    folder = jit_folder(recipe)
    assert folder.startswith("/var/lib/spark-cluster/jit/deepseek-v4-flash-")
    plan: Any = plan_for(cluster_of(), pair, recipe)
    for node in plan["nodes"]:
        argv, variables = node["serving"]["argv"], node["serving"]["environment"]
        assert f"{folder}:/jit" in argv
        assert variables["TRITON_CACHE_DIR"] == "/jit/triton"
    other = recipe_of("deepseek-v4-flash", lambda data: data["image"].update(reference="ghcr.io/x/y:1"))
    assert jit_folder(other) != folder
    longer = recipe_of("deepseek-v4-flash", lambda data: data["serve"].update(max_model_len=4096))
    assert jit_folder(longer) == folder
    own = recipe_of("deepseek-v4-flash", lambda data: data["serve"]["environment"].update(TRITON_CACHE_DIR="/own"))
    plan = plan_for(cluster_of(), pair, own)
    assert plan["nodes"][0]["serving"]["environment"]["TRITON_CACHE_DIR"] == "/own"


def test_an_engine_on_the_cpu_compiles_nothing_that_is_kept(pair: Pair) -> None:
    plan: Any = plan_for(cluster_of(fabric_transport="tcp"), pair, recipe_of("lab-tiny"))
    assert not [part for part in plan["nodes"][0]["serving"]["argv"] if "/jit" in part]


# Every recipe


def catalogue() -> list[Recipe]:
    found = []
    for path in sorted(MODELS.glob("*.yml")):
        recipe, errors = load_recipe(path)
        assert recipe is not None, errors
        found.append(recipe)
    return found


def table(machine: str) -> dict[tuple[str, str], Row]:
    return {(row.model, row.profile): row for row in rows(catalogue(), rooms_for([m * GIB for m in MACHINES[machine]]))}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yml")), ids=lambda path: path.stem)
def test_every_recipe_is_planned_on_every_machine(pair: Pair, path: Path, machine: str) -> None:
    """The whole plan, as a play would make it, agrees with the table."""
    recipe, errors = load_recipe(path)
    assert recipe is not None, errors
    memory = MACHINES[machine]
    facts = {name: pair[name] for name, _ in zip(pair, memory, strict=False)}
    for each, size in zip(facts.values(), memory, strict=True):
        each["memory"].update(total_bytes=size * GIB, available_bytes=size * GIB)
        each["weights"].update(present=False, bytes=0, config=None)
    for name in recipe.profiles or ("",):
        chosen = choose(recipe, name)
        plan: Plan = plan_for(cluster_with(tuple(facts)), facts, chosen)
        row = rows([chosen], rooms_for([size * GIB for size in memory]))[-1] if not recipe.profiles else None
        row = row or table(machine)[recipe.name, name]
        short = {"MODEL_TOO_LARGE", "MEMORY_TOO_SMALL", "CACHE_TOO_SMALL"} & set(codes(plan, "fatal"))
        if row.verdict == "fits":
            assert not short
        too_large = load_of(chosen, len(memory)).share > min(memory) * GIB
        assert ("MODEL_TOO_LARGE" in codes(plan)) is too_large
        assert not too_large or row.verdict == "does not fit"
        serving = plan["serving"]
        assert serving is not None
        assert all(need["memory_sum"] and need["disk_sum"] for need in serving["needs"])


@pytest.mark.parametrize(
    ("machine", "model", "verdict"),
    [
        ("2x121", "deepseek-v4-flash", "fits"),
        ("2x64", "deepseek-v4-flash", "does not fit"),
        ("1x121", "deepseek-v4-flash", "does not fit"),
        ("2x121", "qwen3-coder-480b", "does not fit"),
        ("1x121", "qwen3-coder-480b", "does not fit"),
        ("2x121", "lab-tiny", "fits"),
        ("1x121", "lab-tiny", "fits"),
    ],
)
def test_the_table_says_what_the_articles_say(machine: str, model: str, verdict: str) -> None:
    assert table(machine)[model, ""].verdict.startswith(verdict)


def test_planning_every_recipe_takes_less_than_a_second() -> None:
    recipes = catalogue()
    began = time.process_time()
    for memory in MACHINES.values():
        rows(recipes, rooms_for([each * GIB for each in memory]))
    assert time.process_time() - began < 1


def test_the_table_is_read_in_columns() -> None:
    shown = lines(list(table("2x121").values()))
    assert shown[0].split()[:3] == list(HEADINGS[:3])
    start = shown[0].index("weights/node")
    assert all(line[start - 1] == " " and line[start] != " " for line in shown[1:])


def test_make_models_shows_the_sample_and_other_machines(capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(MODELS.parent / "inventory" / "sample")
    assert models.main(["-i", sample]) == 0
    shown = capsys.readouterr().out
    assert "121.0 GiB + 121.0 GiB = 242.0 GiB = 259.8 GB (pair_a, with the memory that a DGX Spark has)" in shown
    assert models.main(["-i", sample, "--on", "121,96.5"]) == 0
    assert capsys.readouterr().out.startswith("121.0 GiB + 96.5 GiB = 217.5 GiB")


@pytest.mark.parametrize("wrong", ["", "2x", "two", "0x121", "121,-1", "2x0"])
def test_machines_that_cannot_be(wrong: str) -> None:
    with pytest.raises(ArgumentTypeError):
        models.sizes(wrong)
