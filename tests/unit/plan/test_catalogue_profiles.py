"""Profiles and guards: what a recipe's variables become, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.plan.build import add_serving, build_plan
from ansible.module_utils.spark.plan.known import chosen, figures, overlay_findings, same_image
from ansible.module_utils.spark.plan.present import plan_lines
from ansible.module_utils.spark.plan.recipe import Recipe, choose, flag_value
from ansible.module_utils.spark.plan.serving import configuration, plan_serving
from ansible.module_utils.spark.plan.types import OVERLAY_DIR
from ansible.module_utils.spark_controller import overlays_of, recipe_for

from .conftest import Pair, cluster_of, cluster_with, codes, plan_for, recipe_of, said
from .test_catalogue import errors_after

QWEN = "qwen3.8-flash-next"
SPEED = "PLE_MODE=none GRAPHS=nocompile MTP=3 SEQS=6 CHUNK=4096 KV=fp8_e4m3 GMU=0.7 MAXLEN=262144"
CONTEXT = "PLE_MODE=mmap GRAPHS=piecewise MTP=4 SEQS=8 KV=fp8_e4m3 GMU=0.8 MAXLEN=262144"


def qwen(profile: str = "", *values: str) -> Recipe:
    recipe, found = chosen(recipe_of(QWEN), profile, values, node="pair_a")
    assert recipe is not None, found
    return recipe


def targets(recipe: Recipe) -> list[str]:
    return [overlay.target.partition("/vllm/")[2] for overlay in recipe.overlays]


@pytest.mark.parametrize(("profile", "values"), [("", SPEED), ("SPEED", SPEED), ("CONTEXT", CONTEXT)])
def test_the_profiles_are_those_of_their_author(profile: str, values: str) -> None:
    assert qwen(profile).values == dict(item.split("=") for item in values.split())


def test_speed_on_the_command_line() -> None:
    recipe = qwen()
    assert recipe.profile == "SPEED"
    assert (recipe.max_num_seqs, recipe.gpu_memory_utilization, recipe.max_model_len) == (6, 0.7, 262144)
    assert flag_value(recipe.flags, "--compilation-config") == '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'
    assert flag_value(recipe.flags, "--speculative-config") == '{"method":"mtp","num_speculative_tokens":3}'
    assert flag_value(recipe.flags, "--max-num-batched-tokens") == "4096"
    assert recipe.kv_dtype == "fp8_e4m3"
    assert (len(recipe.overlays), recipe.on_disk_bytes) == (5, 0)
    assert not [name for name in recipe.environment if name.startswith("QWEN4EXP")]


def test_context_leaves_the_table_on_the_disk() -> None:
    recipe = qwen("CONTEXT")
    assert (recipe.max_num_seqs, recipe.gpu_memory_utilization) == (8, 0.8)
    assert flag_value(recipe.flags, "--compilation-config") == '{"cudagraph_mode":"PIECEWISE"}'
    assert flag_value(recipe.flags, "--speculative-config") == '{"method":"mtp","num_speculative_tokens":4}'
    assert flag_value(recipe.flags, "--max-num-batched-tokens") is None
    assert recipe.environment["QWEN4EXP_PLE_MMAP"] == "1"
    assert recipe.on_disk_bytes == int(47.68 * 2**30)
    added = ["models/qwen4_exp/nvidia/ple_layer.py", "models/qwen4_exp/nvidia/ops/ple_mmap.py", "config/compilation.py"]
    assert targets(recipe) == [*targets(qwen("SPEED")), *added]


def test_a_value_on_top_of_the_profile() -> None:
    recipe = qwen("SPEED", "SEQS=8", "MTP=0", "CHUNK=2048", "SEQS=9")
    assert (recipe.max_num_seqs, recipe.values["GMU"]) == (9, "0.7")
    assert flag_value(recipe.flags, "--speculative-config") is None
    assert flag_value(recipe.flags, "--max-num-batched-tokens") == "2048"


def test_the_ports_and_the_plan_follow_the_profile(ready: Pair) -> None:
    plan = plan_for(cluster_of(), ready, qwen("CONTEXT"))
    recorded = configuration(plan)
    assert (recorded["profile"], recorded["profile_values"]["GRAPHS"]) == ("CONTEXT", "piecewise")
    assert any(f"{QWEN} [CONTEXT: {CONTEXT}] as" in line for line in plan_lines(plan))
    argv = recorded["ranks"][1]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "8"
    speed = configuration(plan_for(cluster_of(), ready, qwen("SPEED")))
    assert speed["config_sha256"] != recorded["config_sha256"]


def test_a_profile_of_the_inventory() -> None:
    recipe, found = recipe_for(cluster_of(model=QWEN, profile="CONTEXT", profile_values="SEQS=4"))
    assert found == []
    assert recipe is not None
    assert (recipe.profile, recipe.max_num_seqs) == ("CONTEXT", 4)


@pytest.mark.parametrize(
    ("model", "variables", "code", "remedy"),
    [
        (QWEN, {"profile": "FAST"}, "PROFILE_UNKNOWN", "Use -e profile= with one of: SPEED, CONTEXT, STAGED"),
        ("lab-tiny", {"profile": "SPEED"}, "PROFILE_UNKNOWN", "Leave profile away."),
        (QWEN, {"profile_values": "GRAPHS=none"}, "PROFILE_VALUE_INVALID", "Set GRAPHS to one of eager, nocompile, "),
        (QWEN, {"profile_values": "SEQS=many"}, "PROFILE_VALUE_INVALID", "Set SEQS to a whole number."),
        (QWEN, {"profile_values": "GRAPH=eager"}, "PROFILE_VALUE_INVALID", "Remove GRAPH; the recipe knows: PLE_MODE"),
        ("lab-tiny", {"profile_values": "SEQS=1"}, "PROFILE_VALUE_INVALID", "Remove SEQS; the recipe knows: none"),
    ],
)
def test_what_a_recipe_does_not_know(model: str, variables: dict[str, Any], code: str, remedy: str) -> None:
    recipe, (item,) = recipe_for(cluster_of(model=model, **variables))
    assert recipe is None
    assert (item.code, item.severity) == (code, "fatal")
    assert item.remedy.startswith(remedy)


# Guards


@pytest.mark.parametrize(
    ("values", "width", "refused"),
    [
        ("SPEED GRAPHS=compile", 2, True),
        ("SPEED GRAPHS=piecewise", 2, True),
        ("SPEED GRAPHS=full", 2, True),
        ("SPEED", 2, False),
        ("SPEED GRAPHS=eager", 2, False),
        ("CONTEXT GRAPHS=compile", 2, False),
        ("CONTEXT", 2, False),
        ("SPEED GRAPHS=compile", 4, False),
        ("SPEED GRAPHS=compile", 1, True),
        ("STAGED GRAPHS=compile", 1, False),
    ],
)
def test_compiling_with_a_resident_table_is_refused(ready: Pair, values: str, width: int, refused: bool) -> None:
    nodes = tuple(f"spark-0{number}" for number in range(1, width + 1))
    facts = {node: ready["spark-01"] if node == "spark-01" else ready["spark-02"] for node in nodes}
    profile, *own = values.split()
    plan = plan_for(cluster_with(nodes), facts, qwen(profile, *own))
    assert ("GUARD_REFUSES" in codes(plan, "fatal")) is refused


def test_a_guard_says_what_would_happen(ready: Pair) -> None:
    item = said(plan_for(cluster_of(), ready, qwen("SPEED", "GRAPHS=compile")), "GUARD_REFUSES")
    assert item["found"] == "GRAPHS=compile PLE_MODE=none on 2 nodes"
    assert item["evidence"][1] == "it takes 24 GiB more per rank"
    assert "rebooted" in item["evidence"][0]
    assert item["remedy"].startswith("Use GRAPHS=nocompile")


def test_a_guard_without_nodes_holds_on_any_number() -> None:
    def always(data: Any) -> None:
        data["guards"] = [{"when": {"MTP": [3]}, "because": "b", "cure": "c", "source": "s"}]

    recipe = recipe_of(QWEN, always)
    assert [guard.refuses(recipe.values, width) for guard in recipe.guards for width in (1, 2, 7)] == [True] * 3
    assert not recipe.guards[0].refuses({}, 2)


# Figures


def test_figures_are_those_of_width_and_profile() -> None:
    assert [item["value"] for item in figures(qwen("CONTEXT"), 2)] == [35.8]
    assert [item["value"] for item in figures(qwen("STAGED"), 1)] == [41.7]
    assert figures(qwen("CONTEXT"), 1) == []


def test_a_figure_judges_only_the_image_that_it_was_measured_on() -> None:
    digest = f"sha256:{'a' * 64}"
    assert same_image(f"x/y:1@{digest}", f"mirror/y@{digest}")
    assert not same_image(f"x/y:1@{digest}", f"x/y:1@sha256:{'b' * 64}")
    assert not same_image("x/y:1", f"x/y:1@{digest}")
    assert same_image("x/y:1", "x/y:1")
    assert not same_image("", "")

    def measured_here(data: Any) -> None:
        data["expected"][0]["image"] = data["image"]["reference"]

    assert [item["same_image"] for item in figures(recipe_of("deepseek-v4-flash", measured_here), 2)][:2] == [
        True,
        False,
    ]
    assert not any(item["same_image"] for item in figures(recipe_of("deepseek-v4-flash"), 2))


def test_measured_memory_carries_its_units_and_what_stays_on_disk() -> None:
    runs = {run.kv_pool_tokens: run for run in recipe_of(QWEN).measured}
    assert runs[2128927].available_after_load_bytes == 25 * 10**9
    assert runs[2128927].on_disk_bytes == 0
    assert runs[1027392].on_disk_bytes == choose(recipe_of(QWEN), "STAGED").on_disk_bytes > 0
    assert runs[5874061].kv_pool_bytes == int(52.15 * 2**30)


def test_ports_of_a_recipe_must_be_free_where_they_are_opened(ready: Pair) -> None:
    def ports(data: Any) -> None:
        data["serve"]["ports"] = [{"port": 5600, "on": "all", "about": "x"}, {"port": 5700, "about": "y"}]

    plan = plan_for(cluster_of(), ready, recipe_of("deepseek-v4-flash", ports))
    found = [node["serving"]["plan_file"]["ports"] for node in plan["nodes"] if node["serving"]]
    assert found == [[8000, 29501, 5600, 5700], [5600]]


# Broken recipes


@pytest.mark.parametrize(
    ("edit", "field", "problem", "cure"),
    [
        (
            lambda d: d["profiles"]["SPEED"]["values"].update(SEQ=8),
            "profiles.SPEED.values.SEQ",
            "no such",
            "variables.SEQ",
        ),
        (lambda d: d["profiles"]["SPEED"]["values"].update(MTP=7), "profiles.SPEED.values.MTP", "none of", "0, 3, 4"),
        (
            lambda d: d["profiles"]["SPEED"]["values"].update(GMU="x"),
            "profiles.SPEED.values.GMU",
            "none of",
            "a number",
        ),
        (lambda d: d["profiles"]["SPEED"]["values"].update(KV=False), "profiles.SPEED.values.KV", "type", 'KV: "none"'),
        (lambda d: d["profiles"]["SPEED"].pop("values"), "profiles.SPEED.values", "missing", "add values"),
        (lambda d: d["profiles"].update({"A B": {"values": {}}}), "profiles.A B", "wrong form", "rename it"),
        (lambda d: d.update(default_profile="FAST"), "default_profile", "no profile FAST", "correct its name"),
        (lambda d: d["guards"][0]["when"].update(GRAPH=["x"]), "guards[0].when.GRAPH", "no such", "correct its name"),
        (lambda d: d["guards"][0]["when"].update(MTP=[5]), "guards[0].when.MTP", "none of", "0, 3, 4"),
        (lambda d: d["guards"][0].pop("cure"), "guards[0].cure", "missing", "add cure"),
        (lambda d: d["guards"][0].update(nodes=[]), "guards[0].nodes", "too few", "nodes: [2]"),
        (lambda d: d["variables"].update(seqs={"about": "x"}), "variables.seqs", "wrong form", "SEQS"),
        (lambda d: d["variables"]["SEQS"].update(kind="word"), "variables.SEQS.kind", "max_num_seqs", "kind: integer"),
        (
            lambda d: d["variables"]["CHUNK"].update(sets="max_num_seqs"),
            "variables.CHUNK.sets",
            "too",
            "let CHUNK or SEQS",
        ),
        (
            lambda d: d["variables"]["CHUNK"].update(flags=["--port", "1"]),
            "variables.CHUNK.flags[0]",
            "planner's",
            "remove",
        ),
        (
            lambda d: d["variables"]["KV"]["values"]["auto"].update(environment={"NCCL_IB_HCA": "x"}),
            "variables.KV.values.auto.environment.NCCL_IB_HCA",
            "planner's",
            "remove it",
        ),
        (lambda d: d["expected"][0].update(profile="FAST"), "expected[0].profile", "no profile", "correct its name"),
        (lambda d: d["measured"][0].update(profile="FAST"), "measured[0].profile", "no profile", "correct its name"),
        (lambda d: d["measured"][0].update(kv_pool_tokens="2M"), "measured[0].kv_pool_tokens", "type", "2128927"),
        (lambda d: d["widths"][2].pop("cause"), "widths[2].cause", "missing", "verdict: unproven"),
        (
            lambda d: d["architecture"]["total_parameters"].update(unit="B"),
            "architecture.total_parameters.unit",
            "no",
            "billion",
        ),
        (lambda d: d["image"]["overlays"][0].update(file="../x"), "image.overlays[0].file", "wrong form", "overlays/"),
        (
            lambda d: d["image"]["overlays"][0].update(target="/a/../b"),
            "image.overlays[0].target",
            "wrong form",
            "/usr",
        ),
        (lambda d: d["image"]["overlays"][0].update(target="/a:/b"), "image.overlays[0].target", "wrong form", "/usr"),
        (
            lambda d: d["serve"]["flags"].append("--tool-call-parser=x"),
            "serve.parsers.tool_calls",
            "too",
            "serve.flags",
        ),
        (
            lambda d: d["serve"]["parsers"].update(reasoning="a b"),
            "serve.parsers.reasoning",
            "wrong form",
            "deepseek_v4",
        ),
        (lambda d: d["serve"].update(ports=[{"port": 80, "about": "x"}]), "serve.ports[0].port", "range", "port: 8998"),
    ],
)
def test_a_broken_recipe_names_field_problem_and_cure(
    edit: Callable[[Any], object], field: str, problem: str, cure: str
) -> None:
    (error,) = errors_after(edit, QWEN)
    assert error.field == field
    assert problem in error.problem
    assert cure in error.cure


# Overlays


def bundled(plan_recipe: Recipe, sha256: str | None = None) -> Any:
    files = [
        {"path": f"{OVERLAY_DIR}/{item.name}", "mode": "0644", "sha256": sha256 or item.sha256 or "", "source": "x"}
        for item in plan_recipe.overlays
    ]
    return {"rankctl_sha256": "f" * 64, "files": files}


def test_overlays_that_are_not_there_are_refused_with_their_source(ready: Pair) -> None:
    item = said(plan_for(cluster_of(), ready, qwen()), "OVERLAY_MISSING")
    assert item["severity"] == "fatal"
    assert item["found"].startswith("5 of 5 overlay files")
    assert "overlays/qwen3.8-flash-next/modelopt.py" in item["expected"]
    assert "tonyd2wild" in item["evidence"][0]
    assert overlay_findings(qwen(), bundled(qwen()), node="x") == []
    assert "OVERLAY_MISSING" not in codes(plan_for(cluster_of(), ready, recipe_of("deepseek-v4-flash")))


def test_an_overlay_with_other_bytes_is_refused_with_both_hashes() -> None:
    (first, *_) = overlay_findings(qwen(), bundled(qwen(), "e" * 64), node="x")
    assert first.code == "OVERLAY_DIFFERS"
    assert first.found == f"overlays/qwen3.8-flash-next/ops_ple.py has the SHA-256 {'e' * 64}"
    assert first.expected == qwen().overlays[0].sha256


def test_overlays_are_mounted_read_only_and_count_as_configuration(ready: Pair) -> None:
    def planned(bundle: Any) -> Any:
        cluster = cluster_of()
        plan = build_plan(cluster, ready, bundle, purpose="serve")
        return add_serving(plan, *plan_serving(cluster, plan, qwen("CONTEXT"), ready))

    plan = planned(bundled(qwen("CONTEXT")))
    argv = plan["nodes"][1]["serving"]["argv"]
    mount = f"{OVERLAY_DIR}/qwen3.8-flash-next/ple_mmap.py:/usr/local/lib/python3.12/dist-packages/vllm/"
    assert [part for part in argv if part.startswith(mount)] == [f"{mount}models/qwen4_exp/nvidia/ops/ple_mmap.py:ro"]
    assert not {"OVERLAY_MISSING", "OVERLAY_DIFFERS"} & set(codes(plan))
    other = planned(bundled(qwen("CONTEXT"), "e" * 64))
    assert other["serving"]["config_sha256"] != plan["serving"]["config_sha256"]


def test_overlays_are_found_in_the_folders_of_recipes(tmp_path: Path) -> None:
    folder = tmp_path / "overlays" / "qwen3.8-flash-next"
    folder.mkdir(parents=True)
    (folder / "qsa.py").write_bytes(b"x = 1\n")
    cluster = cluster_of(spark_models_path=[str(tmp_path)])
    assert overlays_of(cluster, qwen()) == [("qwen3.8-flash-next/qsa.py", b"x = 1\n")]
