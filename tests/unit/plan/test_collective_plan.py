"""How many bytes one token's activation has, and who says so."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.spark.plan.collective import plan_collective

from .conftest import cluster_of, plan_for, recipe_of


def test_deepseek_reduces_8_kib_for_each_token(ready: Any) -> None:
    serving = plan_for(cluster_of(), ready, recipe_of("deepseek-v4-flash"))["serving"]
    assert serving is not None
    about = serving["collective"]
    assert [(item["tokens"], item["bytes"]) for item in about["activations"]] == [
        (1, 8 * 1024),
        (6, 6 * 8 * 1024),
        (8192, 64 * 2**20),
    ]
    assert (about["hidden_size"], about["dtype_bytes"], about["calls_per_token"]) == (4096, 2, 46)
    assert "Lab 014" in about["calls_source"]


def without_architecture(data: Any) -> None:
    del data["architecture"]


def test_the_configuration_beside_the_weights_is_asked_where_the_recipe_is_silent() -> None:
    recipe = recipe_of("gemma-4-31b", without_architecture)
    facts = {"spark-01": {"weights": {"config": {"text_config": {"hidden_size": 5376}}}}, "spark-02": {}}
    about = plan_collective(recipe, facts)
    assert about["hidden_size"] == 5376
    assert about["hidden_source"] == "config.json of the weights on spark-01"
    assert about["activations"][0]["bytes"] == 10752


def test_what_nobody_says_is_null() -> None:
    about = plan_collective(recipe_of("gemma-4-31b", without_architecture), {"spark-01": {"weights": None}})
    assert (about["hidden_size"], about["activations"], about["calls_per_token"]) == (None, [], None)
