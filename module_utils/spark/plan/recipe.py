"""A recipe of the catalogue: what a model is, what serves it, what it needs, and what is known about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from .schema import check

UNITS: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@dataclass(frozen=True)
class RecipeError:
    """What is wrong with a recipe, where, and what cures it."""

    field: str
    problem: str
    expected: str
    cure: str
    line: int | None = None

    def at(self, lines: Mapping[str, int]) -> RecipeError:
        """With its line; a field that is missing belongs to the line of the mapping that lacks it."""
        field = self.field
        while field and field not in lines:
            field = field.rpartition("[" if field.endswith("]") else ".")[0]
        return self if self.line else replace(self, line=lines.get(field))

    def place(self, path: PurePath | str) -> str:
        where = f"{path}:{self.line}" if self.line else str(path)
        return f"{where}, {self.field}" if self.field else where


@dataclass(frozen=True)
class Width:
    """What is recorded about a model on ``nodes`` nodes."""

    nodes: int
    verdict: str
    source: str
    symptom: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Recipe:
    """``weights_bytes`` and the like are exact; ``file`` is where it was read from."""

    name: str
    title: str
    file: str
    weights_folder: str
    weights_bytes: int
    weights_said: str
    repository: str | None
    revision: str | None
    attention_heads: int | None
    image_reference: str | None
    image_bytes: int | None
    entrypoint: str
    gpu: bool
    ipc_host: bool
    shm_bytes: int | None
    served_names: tuple[str, ...]
    max_model_len: int | None
    max_num_seqs: int | None
    gpu_memory_utilization: float | None
    reserve_bytes: int
    reserve_said: str
    ready_timeout_s: int
    flags: tuple[str, ...]
    environment: Mapping[str, str]
    widths: tuple[Width, ...]

    @property
    def digest(self) -> str | None:
        return digest_of(self.image_reference or "")

    def width(self, nodes: int) -> Width | None:
        return next((width for width in self.widths if width.nodes == nodes), None)


def digest_of(reference: str) -> str | None:
    digest = reference.partition("@")[2]
    return digest if digest.startswith("sha256:") else None


def to_bytes(quantity: Mapping[str, Any]) -> int:
    """A quantity in bytes. GB is 10^9 and GiB is 2^30: 7 % apart, which decides whether a model fits."""
    return int(Fraction(str(quantity["value"])) * UNITS[quantity["unit"]])


def said(quantity: Mapping[str, Any]) -> str:
    return f"{quantity['value']} {quantity['unit']}"


def read_recipe(
    data: Any, schema: Mapping[str, Any], *, name: str, file: str
) -> tuple[Recipe | None, list[RecipeError]]:
    """A recipe from its parsed file, or everything that is wrong with it."""
    errors = [RecipeError(e.field, e.problem, e.expected, e.cure) for e in check(data, schema)]
    if not errors:
        errors = _beyond_schema(data, name)
    if errors:
        return None, errors
    weights, image, serve = data["weights"], data.get("image", {}), data.get("serve", {})
    memory = serve.get("memory_per_rank")
    return Recipe(
        name=name,
        title=data["title"],
        file=file,
        weights_folder=weights["folder"],
        weights_bytes=to_bytes(weights["size"]),
        weights_said=said(weights["size"]),
        repository=weights.get("repository"),
        revision=weights.get("revision"),
        attention_heads=data.get("architecture", {}).get("attention_heads"),
        image_reference=image.get("reference"),
        image_bytes=to_bytes(image["size"]) if "size" in image else None,
        entrypoint=image.get("entrypoint", "vllm"),
        gpu=serve.get("gpu", True),
        ipc_host=serve.get("ipc", "private") == "host",
        shm_bytes=to_bytes(serve["shm_size"]) if "shm_size" in serve else None,
        served_names=tuple(serve.get("served_names", [name])),
        max_model_len=serve.get("max_model_len"),
        max_num_seqs=serve.get("max_num_seqs"),
        gpu_memory_utilization=serve.get("gpu_memory_utilization"),
        reserve_bytes=to_bytes(memory) if memory else 0,
        reserve_said=said(memory) if memory else "",
        ready_timeout_s=serve.get("ready_timeout_s", 3600),
        flags=tuple(serve.get("flags", ())),
        environment=dict(serve.get("environment", {})),
        widths=tuple(
            Width(w["nodes"], w["verdict"], w["source"], w.get("symptom", ""), w.get("cause", ""))
            for w in data.get("widths", ())
        ),
    ), []


# The planner writes these itself, from the inventory and the facts.
PLANNED_FLAGS = frozenset(
    [
        "--served-model-name",
        "--host",
        "--port",
        "--tensor-parallel-size",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--headless",
        "--distributed-executor-backend",
        "--max-model-len",
        "--max-num-seqs",
        "--gpu-memory-utilization",
        "--config",
        "--api-key",
    ]
)
PLANNED_VARIABLES = frozenset(
    [
        "VLLM_HOST_IP",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_ADDR_FAMILY",
        "NCCL_IB_ROCE_VERSION_NUM",
        "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_DISABLE",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "VLLM_API_KEY",
    ]
)


def _beyond_schema(data: Mapping[str, Any], name: str) -> list[RecipeError]:
    """What a schema cannot say."""
    errors = []
    if data["name"] != name:
        errors.append(RecipeError("name", f"it is {data['name']!r}", f"the file's name, {name}", f"write name: {name}"))
    serve = data.get("serve", {})
    for index, flag in enumerate(serve.get("flags", ())):
        if flag.partition("=")[0] in PLANNED_FLAGS:
            where = f"serve.flags[{index}]"
            errors.append(RecipeError(where, f"{flag} is the planner's", "flags of the model", "remove it"))
    for variable, value in serve.get("environment", {}).items():
        where = f"serve.environment.{variable}"
        if variable in PLANNED_VARIABLES:
            errors.append(RecipeError(where, "it is the planner's", "variables of the model", "remove it"))
        elif value == "":
            problem = "an empty variable is not an absent one for every reader"
            errors.append(RecipeError(where, problem, "some text", "remove it"))
    if image_lacks_serve(data):
        errors.append(RecipeError("serve", "it is missing", "how the image serves", "add serve, or remove image"))
    return errors


def image_lacks_serve(data: Mapping[str, Any]) -> bool:
    return "reference" in data.get("image", {}) and "serve" not in data
