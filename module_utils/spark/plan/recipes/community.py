"""The YAML of eugr/spark-vllm-docker (version 1) and of sparkrun as a document of our own schema.

Only what is said is taken over. What has no place here is listed, and what would change the meaning if it were left
out is refused. The size of the weights stands in neither; it is that of the copy which is found on a node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..recipe import PLANNED_VARIABLES, SECRET, RecipeError
from .command import ShellError, fill, used, words
from .engine import REPOSITORY, Engine, EngineError, read_command

WIDEST = 8
SHARED_MEMORY = {"value": 16, "unit": "GiB", "source": "room for the engine's processes to talk in"}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.I)
# Set or removed by the planner, and no error in a recipe of ours.
CHOSEN_HERE = ("NCCL_NET", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "UCX_NET_DEVICES")
COMMIT = re.compile(r"[0-9a-f]{40}")
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
# Read, or about the other launcher's own ways: nothing is lost without them.
READ = frozenset(
    "recipe_version sparkrun_version name description maintainer model model_revision runtime runtime_version builder "
    "container defaults env command cluster_only solo_only min_nodes max_nodes mode metadata executor_config".split()
)
SHAPE: Mapping[str, str] = {"num_layers": "layers", "num_kv_heads": "kv_heads", "head_dim": "head_dim"}
# Keys of sparkrun's defaults that become flags where a recipe has no command.
GENERATED = frozenset(
    "port host gpu_memory_utilization max_model_len max_num_batched_tokens max_num_seqs served_model_name dtype "
    "quantization trust_remote_code kv_cache_dtype enforce_eager enable_prefix_caching tool_call_parser "
    "reasoning_parser enable_auto_tool_choice load_format block_size seed attention_backend moe_backend "
    "speculative_config compilation_config hf_overrides distributed_executor_backend".split()
)
RENAMED: Mapping[str, str] = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size"}


@dataclass(frozen=True)
class Imported:
    """Our document, and what of theirs it does not hold: one line each."""

    document: dict[str, Any]
    unmapped: tuple[str, ...]


def is_ours(data: Any) -> bool:
    return isinstance(data, Mapping) and "schema" in data


def name_of(stem: str) -> str:
    """A name of ours from a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:128] or "recipe"


def import_recipe(data: Any, *, name: str, file: str) -> tuple[Imported | None, list[RecipeError]]:
    """A recipe of eugr's or sparkrun's as a document of ours, or what keeps it from being one."""
    errors = list(_shape_errors(data))
    if errors:
        return None, errors
    first = _version(data) == "1"
    if not first and not _is_vllm(str(data.get("runtime", "vllm"))):
        problem = f"{data['runtime']} is another engine"
        return None, [RecipeError("runtime", problem, "vllm or one of its kinds", "name a recipe that vLLM serves")]
    unmapped = [f"{key}: {_reason(key)}" for key in data if key not in READ]
    unmapped = [line for line in unmapped if not _empty(data[line.partition(":")[0]])]
    try:
        argv = _argv(data, first, unmapped)
        engine = read_command(argv, _text(data.get("model")))
    except ShellError as error:
        cure = "take the step out of command and do it in the image"
        return None, [RecipeError("command", str(error), "one command with its arguments, for no shell", cure)]
    except EngineError as error:
        cure = "name a recipe whose command is vllm serve"
        return None, [RecipeError("command", str(error), "vllm serve MODEL, split over the nodes by tensors", cure)]
    document, errors = _document(data, engine, name, file, unmapped)
    return (None, errors) if errors else (Imported(document, tuple(unmapped + engine.unmapped)), [])


def _shape_errors(data: Any) -> list[RecipeError]:
    if not isinstance(data, Mapping) or not {"container", "command", "runtime"} & set(data):
        expected = "a recipe of eugr/spark-vllm-docker, of sparkrun, or of this project"
        cure = "name a file with container and command, or one that begins with schema: 1"
        return [RecipeError("", "it is no recipe of a known form", expected, cure)]
    errors = []
    for key, kind, words_ in (
        ("container", str, "the name of an image"),
        ("command", str, "one command, as text"),
        ("defaults", Mapping, "names with their values"),
        ("env", Mapping, "names with their values"),
        ("metadata", Mapping, "names with their values"),
        ("executor_config", Mapping, "names with their values"),
    ):
        if data.get(key) is not None and not isinstance(data[key], kind):
            errors.append(RecipeError(key, f"it is {data[key]!r}", words_, f"write {key} as {words_}"))
    if not data.get("container"):
        errors.append(RecipeError("container", "it is missing", "the name of an image", "add container: IMAGE"))
    elif isinstance(data["container"], str) and not IMAGE.fullmatch(data["container"]):
        cure = "write the image's name in small letters"
        errors.append(RecipeError("container", f"{data['container']!r} names no image", "the name of an image", cure))
    return errors


def _version(data: Mapping[str, Any]) -> str:
    if "sparkrun_version" in data:
        return str(data["sparkrun_version"])
    return str(data.get("recipe_version", "2" if "runtime" in data else "1"))


def _is_vllm(runtime: str) -> bool:
    return runtime == "eugr-vllm" or runtime.partition("-")[0] == "vllm"


def _reason(key: str) -> str:
    return {
        "mods": "changes the image before the start; build an image that has them, or use image.overlays",
        "pre_exec": "commands in the container before the start; build an image that has their result",
        "build_args": "the image is used as it is and not built",
        "patches": "changes the image before the start; build an image that has them, or use image.overlays",
        "volumes": "only the weights are mounted; other files of the nodes are no part of the plan",
        "draft_model": "only the weights of model are copied",
        "distribution_config": "only the weights of model are copied, from the node that has them",
        "benchmark": "figures of its author; write them into expected, with the image they were measured on",
        "runtime_config": "settings of the other launcher",
    }.get(key, "has no place here")


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _argv(data: Mapping[str, Any], first: bool, unmapped: list[str]) -> list[str]:
    defaults = {str(key): _text(value) for key, value in (data.get("defaults") or {}).items()}
    model = _text(data.get("model"))
    template = data.get("command")
    if not template:
        return _generated(data, unmapped)
    values = defaults if first else {"model": model, **defaults}
    argv = words(fill(template, values, doubled=first))
    planners = {"host", "port", "tensor_parallel", "pipeline_parallel"}
    known = used(template).union(planners, *(used(value) for value in defaults.values()))
    # Some authors say a switch twice, as a default and as a flag.
    known |= {key for key in defaults if f"--{key.replace('_', '-')}" in argv}
    unmapped += [f"defaults.{key}: command does not use it" for key in defaults if key not in known]
    return argv


def _generated(data: Mapping[str, Any], unmapped: list[str]) -> list[str]:
    """sparkrun writes the command itself where there is none: each default is a flag of that name."""
    argv = ["vllm", "serve", _text(data.get("model"))]
    for key, value in (data.get("defaults") or {}).items():
        if key not in GENERATED and key not in RENAMED:
            unmapped.append(f"defaults.{key}: no flag of that name is known")
        elif value is not False and value is not None:
            argv.append(f"--{RENAMED.get(key, str(key).replace('_', '-'))}")
            argv += [] if value is True else [str(value)]
    return argv


def _document(
    data: Mapping[str, Any], engine: Engine, name: str, file: str, unmapped: list[str]
) -> tuple[dict[str, Any], list[RecipeError]]:
    model = engine.model
    named = _text(data.get("model"))
    repository = next((text for text in (model, named) if REPOSITORY.fullmatch(text)), "")
    # A folder of the author's container says nothing about ours.
    folder = name_of((repository if model.startswith("/") and repository else model).rstrip("/").rpartition("/")[2])
    if not model:
        return {}, [RecipeError("model", "it is missing", "OWNER/NAME on Hugging Face", "add model: OWNER/NAME")]
    if model.startswith("/"):
        unmapped.append(f"command: {model} is looked for as the folder {folder} of models_dir")
    weights: dict[str, Any] = {"folder": folder, "size": {"value": 0, "unit": "B", "source": f"{file} names no size"}}
    if repository:
        weights["repository"] = repository
    revision = engine.revision or _text(data.get("model_revision"))
    if COMMIT.fullmatch(revision):
        weights["revision"] = revision
    elif revision:
        unmapped.append(f"model_revision: {revision} is no commit of 40 digits, so it pins nothing")
    metadata = data.get("metadata") or {}
    title = _text(data.get("name") or metadata.get("name") or repository or folder)
    serve: dict[str, Any] = {"served_names": [repository or folder], "source": file, **engine.serve}
    serve["shm_size"] = _shm(data.get("executor_config") or {}, unmapped)
    serve["flags"] = engine.flags
    serve["environment"] = _environment({**(data.get("env") or {}), **engine.environment}, unmapped)
    document: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "title": title,
        "weights": weights,
        "image": {"reference": data["container"], "source": file},
        "serve": serve,
    }
    shape = {ours: metadata[theirs] for theirs, ours in SHAPE.items() if _counts(metadata.get(theirs))}
    if shape:
        document["architecture"] = {**shape, "source": file}
    for key in ("model_vram", "kv_vram_per_token"):
        if metadata.get(key) is not None:
            unmapped.append(f"metadata.{key}: an estimate; the copy on the node and its config.json are read")
    widths = _widths(data, file)
    if widths:
        document["widths"] = widths
    return document, []


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shm(config: Mapping[str, Any], unmapped: list[str]) -> dict[str, Any]:
    size = dict(SHARED_MEMORY)
    for key, value in config.items():
        match = SIZE.fullmatch(_text(value)) if key == "shm_size" else None
        if match:
            # Docker's units are powers of two.
            size = {"value": float(match[1]), "unit": {"": "B"}.get(match[2], f"{match[2].upper()}iB")}
            size["source"] = "executor_config.shm_size"
        elif not _empty(value):
            unmapped.append(f"executor_config.{key}: the container is set up by this project")
    return size


def _environment(values: Mapping[str, Any], unmapped: list[str]) -> dict[str, str]:
    taken = {}
    for key, value in values.items():
        text = _text(value)
        if str(key) in PLANNED_VARIABLES or str(key) in CHOSEN_HERE:
            unmapped.append(f"env.{key}: the planner's own, from the facts of the nodes")
        elif SECRET.search(str(key)):
            unmapped.append(f"env.{key}: docker inspect would show a secret; weights are not downloaded at the start")
        elif re.search(r"\$\{|\$[A-Za-z_]", text):
            unmapped.append(f"env.{key}: taken from the environment of whoever starts it")
        elif text == "":
            unmapped.append(f"env.{key}: an empty variable is not an absent one")
        else:
            taken[str(key)] = text
    return taken


def _widths(data: Mapping[str, Any], file: str) -> list[dict[str, Any]]:
    """What the author rules out is a recorded failure; what the author allows proves nothing here."""
    mode = data.get("mode")
    low = max(_whole(data.get("min_nodes"), 1), 2 if data.get("cluster_only") is True or mode == "cluster" else 1)
    high = _whole(data.get("max_nodes"), WIDEST)
    high = 1 if data.get("solo_only") is True or mode == "solo" else high
    said = f"its author has it run on {_range(low, high)}"
    return [
        {"nodes": nodes, "verdict": "fails", "symptom": said, "cause": "the recipe rules it out", "source": file}
        for nodes in range(1, WIDEST + 1)
        if not low <= nodes <= high
    ]


def _range(low: int, high: int) -> str:
    if low >= high:
        return f"{low} node{'s' if low != 1 else ''} only"
    return f"{low} nodes or more" if high >= WIDEST else f"{low} to {high} nodes"


def _whole(value: Any, default: int) -> int:
    return int(value) if _counts(value) else default
