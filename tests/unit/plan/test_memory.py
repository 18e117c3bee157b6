"""Weights, cache, reserve and the engine's share, against the published figures of the two articles."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from ansible.module_utils.spark.plan.kv import (
    RESERVE_BYTES,
    KvShape,
    PerToken,
    Run,
    element_bytes,
    from_run,
    from_shape,
    nearest,
    read_config,
)
from ansible.module_utils.spark.plan.memory import Load, Room, fit, largest_share, second_node
from ansible.module_utils.spark.plan.units import GIB, gb, gib

SPARK = 121 * GIB
SIZES = {"GB": 10**9, "GiB": GIB}


def rooms(*memory_gib: float, available: float = 1.0) -> list[Room]:
    return [Room(f"spark-0{i}", int(m * GIB), int(m * GIB * available)) for i, m in enumerate(memory_gib, 1)]


# Units


def test_the_pair_in_both_units() -> None:
    assert (gib(2 * SPARK), gb(2 * SPARK)) == ("242.0 GiB", "259.8 GB")


@pytest.mark.parametrize(("unit", "fits"), [("GB", True), ("GiB", False)])
def test_255_of_one_unit_are_in_the_pair_and_of_the_other_are_not(unit: str, fits: bool) -> None:
    assert (Load(255 * SIZES[unit], 2).share <= SPARK) is fits


@pytest.mark.parametrize(
    ("weights", "unit", "memory", "said"),
    [
        (124, "GiB", (121, 121), "fits"),
        (156, "GiB", (121, 121), "fits"),
        (273, "GB", (121, 121), "does not fit"),
        (273, "GB", (400, 400), "fits"),
        (124, "GiB", (121,), "does not fit"),
        (156, "GiB", (64, 64), "does not fit"),
    ],
)
def test_the_articles_models_on_several_machines(weights: int, unit: str, memory: tuple[int, ...], said: str) -> None:
    assert fit(Load(weights * SIZES[unit], len(memory)), rooms(*memory)).verdict == said


# The published pools: one Spark with the n-gram table of 47.68 GiB on disk, and the pair with it in memory.

TABLE = int(47.68 * GIB)
WHOLE = 124 * GIB
ONE = Run(1_027_392, 1, SPARK, 0.80, WHOLE - TABLE, "a run on one Spark", "fp8_e4m3")
PAIR = Run(2_128_927, 2, SPARK, 0.70, WHOLE // 2, "a run on two Sparks", "fp8_e4m3")
CONTEXT = Run(5_874_061, 2, SPARK, 0.80, (WHOLE - TABLE) // 2, "its CONTEXT profile", "fp8_e4m3")


def predicted(source: Run, target: Run, reserve: int = RESERVE_BYTES) -> int:
    each = from_run(source, reserve, splits=2)
    load = Load(target.weights_bytes * target.nodes, target.nodes, each, target.utilization, reserve=reserve)
    pool = fit(load, rooms(*[121] * target.nodes)).pool
    assert pool is not None
    return pool


@pytest.mark.parametrize("reserve", [1 * GIB, RESERVE_BYTES, 6 * GIB])
@pytest.mark.parametrize(("source", "target"), [(ONE, PAIR), (PAIR, ONE)], ids=["one to two", "two to one"])
def test_one_published_pool_predicts_the_other_within_15_percent(source: Run, target: Run, reserve: int) -> None:
    """Whatever the reserve is taken to be: most of it cancels out."""
    assert predicted(source, target, reserve) == pytest.approx(target.tokens, rel=0.15)


def test_the_pair_predicts_its_other_profile_within_10_percent() -> None:
    assert predicted(PAIR, CONTEXT) == pytest.approx(CONTEXT.tokens, rel=0.10)


def test_what_would_be_wrong_without_the_differences_of_the_runs() -> None:
    """The table on disk, the engine's share and the division by rank each matter more than the 15 %."""
    each = from_run(ONE, splits=2)
    assert each is not None
    pair = rooms(121, 121)
    for wrong in (
        Load(2 * (WHOLE - TABLE), 2, each, 0.70),
        Load(WHOLE, 2, each, 0.80),
        Load(WHOLE, 2, PerToken(each.whole, 1, "undivided"), 0.70),
    ):
        assert fit(wrong, pair).pool != pytest.approx(PAIR.tokens, rel=0.15)


def test_a_run_that_names_its_pool_needs_no_reserve() -> None:
    pool = int(52.15 * GIB)
    run = Run(5_874_061, 2, SPARK, 0.80, CONTEXT.weights_bytes, "with the engine's own figure", pool_bytes=pool)
    assert from_run(run, 0, 2) == from_run(run, RESERVE_BYTES, 2)
    assert (from_run(run, splits=2) or PerToken(0, 1, "")).on_rank(2) == pytest.approx(9533, rel=0.001)


def test_a_run_that_cannot_be_is_no_source() -> None:
    assert from_run(Run(1_000_000, 1, SPARK, 0.5, 70 * GIB, "its weights are more than its share")) is None


def test_the_nearest_run_of_the_same_format_is_asked() -> None:
    assert nearest([ONE, PAIR], 1, "fp8_e4m3") is ONE
    assert nearest([ONE, PAIR], 4, "fp8_e4m3") is PAIR
    assert nearest([ONE, PAIR], 2, "bfloat16") is None


# Bytes per token from a shape


@pytest.mark.parametrize(
    ("width", "on_rank"), [(1, 4096), (2, 2048), (4, 2048)], ids=["all", "half", "a head is not divided"]
)
def test_heads_are_divided_and_then_kept_twice(width: int, on_rank: int) -> None:
    each = from_shape(KvShape(4, kv_heads=2, head_dim=128), Fraction(2), "")
    assert each.on_rank(width) == on_rank


def test_a_latent_is_whole_on_every_rank() -> None:
    each = from_shape(KvShape(61, latent=576), Fraction(2), "")
    assert each.on_rank(1) == each.on_rank(2) == 61 * 576 * 2


@pytest.mark.parametrize(
    ("kv_dtype", "model_dtype", "size"),
    [
        (None, "bfloat16", 2),
        ("auto", "float16", 2),
        ("auto", None, None),
        ("fp8_e4m3", "bfloat16", 1),
        ("nvfp4", None, Fraction(9, 16)),
        ("nvfp4_ds_mla", "bfloat16", None),
        ("turbo3", "bfloat16", None),
    ],
)
def test_sizes_of_a_number(kv_dtype: str | None, model_dtype: str | None, size: object) -> None:
    assert element_bytes(kv_dtype, model_dtype) == size


LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 1024}


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (LLAMA, KvShape(4, 2, 128)),
        ({"text_config": {**LLAMA, "head_dim": 64}}, KvShape(4, 2, 64)),
        ({**LLAMA, "num_key_value_heads": None}, KvShape(4, 8, 128)),
        ({**LLAMA, "full_attention_interval": 4}, KvShape(1, 2, 128)),
        ({**LLAMA, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}, KvShape(1, 2, 128)),
        ({**LLAMA, "layer_types": ["full_attention"] * 3 + ["unheard_of"]}, None),
        ({**LLAMA, "hybrid_override_pattern": "M-M-M*-M*-"}, KvShape(2, 2, 128)),
        ({**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, KvShape(4, latent=576)),
        ({**LLAMA, "kv_lora_rank": 512}, None),
        ({**LLAMA, "compress_ratios": [0, 4, 128]}, None),
        ({**LLAMA, "index_topk": 2048}, None),
        ({"model_type": "deepseek_v4"}, None),
        (None, None),
    ],
)
def test_shapes_from_a_checkpoint(config: dict[str, Any] | None, shape: KvShape | None) -> None:
    assert read_config(config)[0] == shape


def test_the_number_format_of_a_checkpoint() -> None:
    assert read_config({**LLAMA, "torch_dtype": "bfloat16"})[1] == "bfloat16"
    assert read_config({"text_config": LLAMA, "torch_dtype": "float16"})[1] == "float16"
    assert read_config({**LLAMA, "dtype": 2})[1] is None


# Verdicts

EACH = PerToken(20_000.0, 2, "a test")


def load(**other: Any) -> Load:
    """Of 121 GiB on two nodes 84.7 GiB are the engine's: 62 weights, 4 reserve, 18.7 for 2,007,000 tokens."""
    asked: dict[str, Any] = {"utilization": 0.70, "context": 262_144, "sequences": 6, **other}
    return Load(124 * GIB, 2, asked.pop("per_token", EACH), **asked)


def test_what_fits_is_said_with_its_sum() -> None:
    found = fit(load(), rooms(121, 121))
    assert (found.verdict, found.lower, found.starts) == ("fits", (), True)
    assert found.sum == (
        "weights 124.0 GiB / 2 = 62.0 GiB; the engine takes 0.7 x 121.0 GiB = 84.7 GiB, which leaves 22.7 GiB: "
        "4.0 GiB for activations, graphs and buffers, 18.7 GiB for a cache of 2,007,897 tokens at 10.0 kB (from a "
        "test); one request of 262,144 tokens takes 2.4 GiB"
    )


def test_weights_that_fit_and_a_cache_that_does_not() -> None:
    found = fit(load(context=3_000_000), rooms(121, 121))
    assert (found.verdict, found.starts, found.certain) == ("fits with", False, True)
    assert found.said == ("fits with gpu_memory_utilization 0.7 -> 0.78; or max_model_len 3000000 -> 2007040")
    assert "one request of 3,000,000 tokens takes 27.9 GiB" in found.sum
    raised = fit(load(context=3_000_000, sequences=1, utilization=0.78), rooms(121, 121))
    assert raised.verdict == "fits"
    lowered = fit(load(context=2_007_040, sequences=1), rooms(121, 121))
    assert lowered.verdict == "fits"


def test_a_cache_that_no_share_holds_needs_a_shorter_context() -> None:
    found = fit(load(context=9_000_000), rooms(121, 121))
    assert found.said == "fits with max_model_len 9000000 -> 5255168, gpu_memory_utilization 0.7 -> 0.95"
    again = fit(load(context=5_255_168, sequences=1, utilization=0.95), rooms(121, 121))
    assert again.verdict == "fits"


def test_fewer_requests_at_full_length_are_said_and_start() -> None:
    found = fit(load(sequences=8), rooms(121, 121))
    assert (found.verdict, found.starts) == ("fits with", True)
    assert found.said == "fits with max_num_seqs 8 -> 7; or max_model_len 262144 -> 250880"
    assert found.because == "its pool holds 7.7 requests of 262,144 tokens, not 8"
    assert fit(load(sequences=7), rooms(121, 121)).verdict == "fits"
    assert fit(load(sequences=8, context=250_880), rooms(121, 121)).verdict == "fits"


def test_memory_that_others_use_lowers_the_share() -> None:
    found = fit(load(), rooms(121, 121, available=0.65))
    assert (found.verdict, found.unavailable, found.starts) == ("fits with", True, False)
    assert found.said == "fits with gpu_memory_utilization 0.7 -> 0.65"
    assert fit(load(), rooms(121, 121, available=0.701)).verdict == "fits"
    assert fit(load(), rooms(121, 121, available=0.5)).because == "only 60.5 GiB are available now"


def test_weights_that_leave_nothing() -> None:
    found = fit(Load(230 * GIB, 2, EACH), rooms(121, 121))
    assert found.verdict == "does not fit"
    assert found.because == "115.0 GiB of weights per node leave nothing of 121.0 GiB for a cache"
    assert (
        fit(Load(250 * GIB, 2, EACH), rooms(121, 121)).because == "125.0 GiB of weights per node, 121.0 GiB of memory"
    )


def test_the_reserve_alone_makes_no_certain_refusal() -> None:
    """It is an estimate: a share that holds the weights and two of its four GiB may well start."""
    tight = fit(load(utilization=0.53, per_token=None), rooms(121, 121))
    assert (tight.starts, tight.certain) == (False, False)
    assert tight.because == "the engine's share does not hold weights and reserve"
    assert fit(load(utilization=0.50, per_token=None), rooms(121, 121)).certain
    assert fit(load(utilization=0.55, per_token=None), rooms(121, 121)).verdict == "fits"


def test_an_unknown_cache_is_not_guessed() -> None:
    found = fit(load(per_token=None), rooms(121, 121))
    assert (found.verdict, found.pool) == ("fits", None)
    assert found.sum.endswith("18.7 GiB for a cache, of which nothing says how much a token takes")


def test_of_unequal_nodes_the_smaller_rules() -> None:
    found = fit(load(), rooms(121, 96))
    assert found.rules == "spark-02"
    assert "0.7 x 96.0 GiB of spark-02, the smaller one, which rules = 67.2 GiB" in found.sum
    assert found.pool == fit(load(), rooms(96, 96)).pool


def test_the_share_that_is_left_is_the_least_of_all_nodes() -> None:
    assert largest_share([Room("a", 100, 90), Room("b", 200, 150)]) == 0.75
    assert largest_share([Room("a", 100, 99)]) == 0.95


def test_one_node_is_a_plan_too() -> None:
    found = fit(Load(62 * GIB, 1, EACH, 0.7, 262_144, 3), rooms(121))
    assert found.verdict == "fits"
    assert found.sum.startswith("weights 62.0 GiB / 1 = 62.0 GiB; the engine takes 0.7 x 121.0 GiB = 84.7 GiB")


# What the second node buys


def test_the_second_node_buys_capacity_or_cache() -> None:
    capacity = second_node(load(), rooms(121, 121))
    assert capacity == [
        "capacity: 242.0 GiB in place of 121.0 GiB, 62.0 GiB of weights on each node; on one node it does not fit: "
        "124.0 GiB of weights per node, 121.0 GiB of memory"
    ]
    both = second_node(Load(60 * GIB, 2, EACH, 0.7), rooms(121, 121))
    assert both[1] == "cache: 5,443,871 tokens in place of 1,111,322, 4.90 times"
    assert second_node(Load(60 * GIB, 1, EACH, 0.7), rooms(121)) == []
