"""A recipe of the catalogue: what a model is, what serves it, what it needs, and what is known about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    file: str = ""

    def at(self, lines: Mapping[str, int]) -> RecipeError:
        """With its line; a field that is missing belongs to the line of the mapping that lacks it."""
        name = self.field
        while name and name not in lines:
            name = outer(name)
        return self if self.line else replace(self, line=lines.get(name))

    def place(self, path: PurePath | str) -> str:
        path = self.file or path
        where = f"{path}:{self.line}" if self.line else str(path)
        return f"{where}, {self.field}" if self.field else where


def outer(name: str) -> str:
    """The field around a field, empty for the whole document."""
    return name.rpartition("[" if name.endswith("]") else ".")[0]


@dataclass(frozen=True)
class Width:
    """What is recorded about a model on ``nodes`` nodes."""

    nodes: int
    verdict: str
    source: str
    symptom: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Architecture:
    """Numbers of the checkpoint's configuration; None where no source says.

    ``kv_layers`` keep keys and values of every token; without it all ``layers`` do. ``kv_latent`` is kept in the place
    of ``kv_heads`` heads of ``head_dim`` values, and whole on every rank. ``kv_bytes_per_token`` is that of the whole
    model, all layers together, as somebody measured or computed it.
    """

    kind: str | None = None
    total_parameters: int | None = None
    active_parameters: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None
    kv_layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kv_latent: int | None = None
    kv_bytes_per_token: int | None = None
    collectives_per_token: float | None = None
    collectives_source: str = ""


@dataclass(frozen=True)
class Measured:
    """What one run took of a node's memory. It predicts another run.

    Bytes are those of one rank, but ``on_disk_bytes`` are those of the whole model that no rank loads.
    """

    nodes: int
    image: str
    source: str
    profile: str | None = None
    memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    kv_dtype: str | None = None
    kv_pool_tokens: int | None = None
    kv_pool_bytes: int | None = None
    weights_bytes: int | None = None
    on_disk_bytes: int = 0
    available_after_load_bytes: int | None = None


@dataclass(frozen=True)
class Expected:
    """A figure that somebody measured on ``image``."""

    what: str
    value: float
    unit: str
    nodes: int
    image: str
    source: str
    concurrency: int | None = None
    profile: str | None = None


@dataclass(frozen=True)
class Overlay:
    """``file`` lies below a folder of recipes and is mounted over ``target`` of the image."""

    file: str
    target: str
    sha256: str | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Its place below the nodes' folder of overlays."""
        return self.file.removeprefix("overlays/")


@dataclass(frozen=True)
class Port:
    """A port that the engine opens besides the API's and the one where the ranks meet."""

    port: int
    head_only: bool
    about: str


@dataclass(frozen=True)
class Variable:
    """What a profile sets. ``choices`` is empty where any value of the kind is right."""

    name: str
    about: str
    kind: str = "word"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guard:
    """Refuses values of variables, all of ``when`` together, on ``nodes`` nodes; on any number where it is empty."""

    when: Mapping[str, tuple[str, ...]]
    nodes: tuple[int, ...]
    because: str
    cure: str
    source: str
    memory_bytes: int | None = None
    memory_said: str = ""

    def refuses(self, values: Mapping[str, str], width: int) -> bool:
        return (not self.nodes or width in self.nodes) and all(
            values.get(name) in refused for name, refused in self.when.items()
        )


@dataclass(frozen=True)
class Recipe:
    """A recipe with the values of one profile filled in; ``choose`` gives it with those of another.

    ``weights_bytes`` and the like are exact; ``on_disk_bytes`` of them stay on the disk and are read there row by row.
    ``file`` is where it was read from; ``script`` is the place in the container of a script that starts the engine.
    """

    name: str
    title: str
    file: str
    weights_folder: str
    weights_bytes: int
    weights_said: str
    repository: str | None
    revision: str | None
    weights_format: str | None
    architecture: Architecture
    image_reference: str | None
    image_missing: str
    image_engine: str | None
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
    ranks: int | None
    flags: tuple[str, ...]
    environment: Mapping[str, str]
    widths: tuple[Width, ...]
    on_disk_bytes: int = 0
    overlays: tuple[Overlay, ...] = ()
    script: str = ""
    ports: tuple[Port, ...] = ()
    variables: Mapping[str, Variable] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    profile: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()
    expected: tuple[Expected, ...] = ()
    measured: tuple[Measured, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def attention_heads(self) -> int | None:
        return self.architecture.attention_heads

    @property
    def kv_dtype(self) -> str | None:
        """The number format of keys and values that the flags ask for, None where they leave it to the engine."""
        return flag_value(self.flags, "--kv-cache-dtype")

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


def setting(value: Any) -> str:
    """A value of a variable as it stands in a flag; 0.70 and 0.7 are one number to YAML."""
    return str(value)


def flag_value(flags: Sequence[str], name: str) -> str | None:
    """What follows the last ``name`` or ``name=``, the one that counts for the engine."""
    found = None
    for index, flag in enumerate(flags):
        if flag == name and index + 1 < len(flags):
            found = flags[index + 1]
        elif flag.startswith(f"{name}="):
            found = flag.partition("=")[2]
    return found


def read_recipe(
    data: Any, schema: Mapping[str, Any], *, name: str, file: str
) -> tuple[Recipe | None, list[RecipeError]]:
    """A recipe from its parsed file, with the values of its default profile, or everything that is wrong with it."""
    errors = [RecipeError(e.field, e.problem, e.expected, e.cure) for e in check(data, schema)]
    if not errors:
        errors = list(_beyond_schema(data, name))
    if errors:
        return None, errors
    return _build(data, file, data.get("default_profile", ""), {}), []


def extended(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` changed by ``own``: mappings field by field, anything else replaced, and null removes a field."""
    merged = dict(base)
    for name, value in own.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            under = merged.get(name)
            merged[name] = extended(under if isinstance(under, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


# A verdict is about these; a recipe that changes one of them has none until it says so itself.
PROVEN_WITH = (("image", "reference"), ("weights", "repository"), ("weights", "revision"), ("weights", "format"))


def inherited(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a recipe that extends ``base``."""
    merged = extended({**base, "extends": None}, own)
    changed = any(_at(base, part, name) != _at(merged, part, name) for part, name in PROVEN_WITH)
    if changed and "widths" not in own:
        merged.pop("widths", None)
    return merged


def _at(document: Mapping[str, Any], part: str, name: str) -> Any:
    within = document.get(part)
    return within.get(name) if isinstance(within, Mapping) else None


def choose(recipe: Recipe, profile: str = "", values: Mapping[str, str] | None = None) -> Recipe:
    """``recipe`` with another profile, the default one where it is empty, and single values on top of it."""
    return _build(recipe.document, recipe.file, profile or recipe.document.get("default_profile", ""), values or {})


def refused_value(variable: Variable, value: str) -> str | None:
    """What would be right, where ``value`` is not."""
    if variable.choices:
        return None if value in variable.choices else f"one of {', '.join(variable.choices)}"
    form, words = KINDS[variable.kind]
    return None if form.fullmatch(value) else words


KINDS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "word": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*"), "one word"),
    "integer": (re.compile(r"\d{1,9}"), "a whole number"),
    "number": (re.compile(r"\d{1,9}(\.\d{1,9})?"), "a number"),
}


def _build(data: Mapping[str, Any], file: str, profile: str, own: Mapping[str, str]) -> Recipe:
    weights, image, serve = data["weights"], data.get("image", {}), data.get("serve", {})
    values = {**_profile_values(data, profile), **own}
    added = _added(data, values)
    sets = {data["variables"][name].get("sets"): value for name, value in values.items()}
    limits = {name: serve.get(name) for name in ("max_model_len", "max_num_seqs", "gpu_memory_utilization")}
    limits.update({name: _number(sets[name]) for name in limits if name in sets})
    memory = serve.get("memory_per_rank")
    return Recipe(
        name=data["name"],
        title=data["title"],
        file=file,
        weights_folder=weights["folder"],
        weights_bytes=to_bytes(weights["size"]),
        weights_said=said(weights["size"]),
        weights_format=weights.get("format"),
        repository=weights.get("repository"),
        revision=weights.get("revision"),
        architecture=_architecture(data.get("architecture", {})),
        image_reference=image.get("reference"),
        image_missing=image.get("missing", ""),
        image_engine=image.get("engine"),
        image_bytes=_bytes(image.get("size")),
        entrypoint=image.get("entrypoint", "vllm"),
        gpu=serve.get("gpu", True),
        ipc_host=serve.get("ipc", "private") == "host",
        shm_bytes=_bytes(serve.get("shm_size")),
        served_names=tuple(serve.get("served_names", [data["name"]])),
        max_model_len=limits["max_model_len"],
        max_num_seqs=limits["max_num_seqs"],
        gpu_memory_utilization=limits["gpu_memory_utilization"],
        reserve_bytes=to_bytes(memory) if memory else 0,
        reserve_said=said(memory) if memory else "",
        ready_timeout_s=serve.get("ready_timeout_s", 3600),
        ranks=serve.get("ranks"),
        flags=(*_own_flags(serve), *(flag for part in added for flag in part["flags"])),
        environment={
            **serve.get("environment", {}),
            **{name: text for part in added for name, text in part["environment"].items()},
        },
        widths=tuple(
            Width(w["nodes"], w["verdict"], w["source"], w.get("symptom", ""), w.get("cause", ""))
            for w in data.get("widths", ())
        ),
        on_disk_bytes=sum(part["on_disk"] for part in added),
        overlays=tuple(
            Overlay(o["file"], o["target"], o.get("sha256"), o.get("source", ""))
            for part in (image, *added)
            for o in part.get("overlays", ())
        )
        + ((Overlay(serve["script"], SCRIPT_IN_CONTAINER),) if serve.get("launcher") == "script" else ()),
        script=SCRIPT_IN_CONTAINER if serve.get("launcher") == "script" else "",
        ports=tuple(Port(p["port"], p.get("on", "head") == "head", p["about"]) for p in serve.get("ports", ())),
        variables={name: _variable(name, about) for name, about in data.get("variables", {}).items()},
        profiles=tuple(data.get("profiles", {})),
        profile=profile,
        values=values,
        guards=tuple(_guard(guard) for guard in data.get("guards", ())),
        expected=tuple(
            Expected(
                e["what"],
                e["value"],
                e["unit"],
                e["nodes"],
                e["image"],
                e["source"],
                e.get("concurrency"),
                e.get("profile"),
            )
            for e in data.get("expected", ())
        ),
        measured=tuple(_measured(run, data) for run in data.get("measured", ())),
        document=data,
    )


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _bytes(quantity: Mapping[str, Any] | None) -> int | None:
    return None if quantity is None else to_bytes(quantity)


def _own_flags(serve: Mapping[str, Any]) -> list[str]:
    flags = [*serve.get("flags", ()), *serve.get("more_flags", ())]
    parsers = serve.get("parsers", {})
    if "tool_calls" in parsers:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", parsers["tool_calls"]]
    if "reasoning" in parsers:
        flags += ["--reasoning-parser", parsers["reasoning"]]
    return flags


def _parts(variable: Mapping[str, Any], value: str) -> tuple[Mapping[str, Any], ...]:
    """What a value adds: the part of the variable, then that of the choice."""
    return variable, variable.get("values", {}).get(value) or {}


def _filled(part: Mapping[str, Any], value: str) -> dict[str, Any]:
    return {
        "flags": [flag.replace("{value}", value) for flag in part.get("flags", ())],
        "environment": {name: text.replace("{value}", value) for name, text in part.get("environment", {}).items()},
        "overlays": part.get("overlays", ()),
        "on_disk": _bytes(part.get("weights_on_disk")) or 0,
    }


def _profile_values(data: Mapping[str, Any], profile: str) -> dict[str, str]:
    values = data.get("profiles", {}).get(profile, {}).get("values", {})
    return {name: setting(value) for name, value in values.items()}


def _added(data: Mapping[str, Any], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the values add, in the order in which the recipe names its variables."""
    variables: Mapping[str, Mapping[str, Any]] = data.get("variables", {})
    chosen = [(about, values[name]) for name, about in variables.items() if name in values]
    return [_filled(part, value) for about, value in chosen for part in _parts(about, value)]


def _variable(name: str, data: Mapping[str, Any]) -> Variable:
    return Variable(name, data["about"], data.get("kind", "word"), tuple(data.get("values", ())))


def _guard(data: Mapping[str, Any]) -> Guard:
    return Guard(
        when={name: tuple(map(setting, values)) for name, values in data["when"].items()},
        nodes=tuple(data.get("nodes", ())),
        because=data["because"],
        cure=data["cure"],
        source=data["source"],
        memory_bytes=_bytes(data.get("memory_per_rank")),
        memory_said=said(data["memory_per_rank"]) if "memory_per_rank" in data else "",
    )


def _count(figure: Mapping[str, Any] | None) -> int | None:
    """Parameters, which are said in millions or billions."""
    if figure is None:
        return None
    return int(Fraction(str(figure["value"])) * {"million": 10**6, "billion": 10**9}[figure["unit"]])


def _architecture(data: Mapping[str, Any]) -> Architecture:
    calls = data.get("collectives_per_token")
    same = ("kind", "layers", "hidden_size", "attention_heads", "kv_layers", "kv_heads", "head_dim", "kv_latent")
    return Architecture(
        **{name: data.get(name) for name in same},
        total_parameters=_count(data.get("total_parameters")),
        active_parameters=_count(data.get("active_parameters")),
        kv_bytes_per_token=_bytes(data.get("kv_bytes_per_token")),
        collectives_per_token=calls["value"] if calls else None,
        collectives_source=calls["source"] if calls else "",
    )


def _measured(data: Mapping[str, Any], recipe: Mapping[str, Any]) -> Measured:
    of_profile = _added(recipe, _profile_values(recipe, data.get("profile", "")))
    on_disk = _bytes(data.get("weights_on_disk"))
    return Measured(
        nodes=data["nodes"],
        image=data["image"],
        source=data["source"],
        profile=data.get("profile"),
        memory_bytes=_bytes(data.get("memory_total")),
        gpu_memory_utilization=data.get("gpu_memory_utilization"),
        kv_dtype=data.get("kv_dtype"),
        kv_pool_tokens=data.get("kv_pool_tokens"),
        kv_pool_bytes=_bytes(data.get("kv_pool")),
        weights_bytes=_bytes(data.get("weights_per_rank")),
        on_disk_bytes=sum(part["on_disk"] for part in of_profile) if on_disk is None else on_disk,
        available_after_load_bytes=_bytes(data.get("available_after_load")),
    )


# Where the container sees the launch script of a recipe's author.
SCRIPT_IN_CONTAINER = "/opt/spark-cluster/launch.sh"

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
# Whole words of a variable's name: TOKENIZERS_PARALLELISM is none.
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(_|$)", re.I)
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


VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIMITS: Mapping[str, str] = {"max_model_len": "integer", "max_num_seqs": "integer", "gpu_memory_utilization": "number"}


def _beyond_schema(data: Mapping[str, Any], name: str) -> Iterator[RecipeError]:
    """What a schema cannot say."""
    if data["name"] != name:
        yield RecipeError("name", f"it is {data['name']!r}", f"the file's name, {name}", f"write name: {name}")
    serve = data.get("serve", {})
    yield from _planned(serve, "serve", ("flags", "more_flags"))
    if image_lacks_serve(data):
        yield RecipeError("serve", "it is missing", "how the image serves", "add serve, or remove image")
    yield from _parsed_twice(serve)
    if (serve.get("launcher") == "script") != ("script" in serve):
        cure = "write both, launcher: script and script: FILE, or neither"
        yield RecipeError("serve.launcher", "launcher: script and script belong together", "both or neither", cure)
    for which in ("total_parameters", "active_parameters"):
        figure = data.get("architecture", {}).get(which)
        if figure and figure["unit"] not in ("million", "billion"):
            problem = f"{figure['unit']!r} is no unit of it"
            yield RecipeError(f"architecture.{which}.unit", problem, "million or billion", "write unit: billion")
    yield from _variables(data)
    yield from _profiles(data)
    yield from _guards(data)
    for index, width in enumerate(data.get("widths", ())):
        for which in ("symptom", "cause"):
            if width["verdict"] == "fails" and which not in width:
                where = f"widths[{index}].{which}"
                cure = f"add {which}, or write verdict: unproven"
                yield RecipeError(where, "it is missing", "how a recorded failure shows, and why", cure)
    yield from _known_profiles(data)


def _planned(part: Mapping[str, Any], where: str, lists: Sequence[str] = ("flags",)) -> Iterator[RecipeError]:
    """Flags and variables that are not a recipe's to set."""
    for which in lists:
        for index, flag in enumerate(part.get(which, ())):
            if flag.partition("=")[0] in PLANNED_FLAGS:
                place = f"{where}.{which}[{index}]"
                yield RecipeError(place, f"{flag} is the planner's", "flags of the model", "remove it")
    for variable, value in part.get("environment", {}).items():
        place = f"{where}.environment.{variable}"
        if variable in PLANNED_VARIABLES:
            yield RecipeError(place, "it is the planner's", "variables of the model", "remove it")
        elif SECRET.search(variable):
            cure = "remove it; the API's key comes from api_key_file, and weights are not downloaded at the start"
            yield RecipeError(place, "docker inspect would show a secret", "variables that anyone may read", cure)
        elif value == "":
            problem = "an empty variable is not an absent one for every reader"
            yield RecipeError(place, problem, "some text", "remove it")


def _parsed_twice(serve: Mapping[str, Any]) -> Iterator[RecipeError]:
    for which, flag in (("tool_calls", "--tool-call-parser"), ("reasoning", "--reasoning-parser")):
        if which in serve.get("parsers", {}) and flag_value(serve.get("flags", ()), flag) is not None:
            where = f"serve.parsers.{which}"
            yield RecipeError(where, f"serve.flags has {flag} too", "one of them", f"remove {flag} from serve.flags")


def _variables(data: Mapping[str, Any]) -> Iterator[RecipeError]:
    taken: dict[str, str] = {}
    for name, variable in data.get("variables", {}).items():
        where = f"variables.{name}"
        if not VARIABLE_NAME.fullmatch(name):
            expected = "capital letters, digits and _, beginning with a letter"
            yield RecipeError(where, f"{name} has the wrong form", expected, f"rename it, perhaps to {_upper(name)}")
        yield from _planned(variable, where)
        for value, choice in variable.get("values", {}).items():
            yield from _planned(choice, f"{where}.values.{value}")
        limit = variable.get("sets")
        if limit is None:
            continue
        if variable.get("kind") != LIMITS[limit]:
            kind = LIMITS[limit]
            yield RecipeError(f"{where}.kind", f"{limit} is set by it", kind, f"write kind: {kind}")
        if limit in taken:
            cure = f"let {name} or {taken[limit]} set something else"
            yield RecipeError(f"{where}.sets", f"{taken[limit]} sets {limit} too", "one variable for each field", cure)
        taken[limit] = name


def _upper(name: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", name.upper()).lstrip("0123456789_") or "NAME"


def _profiles(data: Mapping[str, Any]) -> Iterator[RecipeError]:
    variables = {name: _variable(name, about) for name, about in data.get("variables", {}).items()}
    known = ", ".join(variables) or "none"
    for name, profile in data.get("profiles", {}).items():
        if not PROFILE_NAME.fullmatch(name):
            expected = "letters, digits, dot, _ and -"
            yield RecipeError(f"profiles.{name}", f"{name!r} has the wrong form", expected, "rename it")
        for variable, value in profile["values"].items():
            where = f"profiles.{name}.values.{variable}"
            if variable not in variables:
                cure = f"add variables.{variable}, or remove it here"
                yield RecipeError(where, "there is no such variable", f"one of variables: {known}", cure)
                continue
            right = refused_value(variables[variable], setting(value))
            if right:
                yield RecipeError(where, f"{value!r} is none of its values", right, f"write {variable}: with {right}")


def _guards(data: Mapping[str, Any]) -> Iterator[RecipeError]:
    variables = {name: _variable(name, about) for name, about in data.get("variables", {}).items()}
    known = ", ".join(variables) or "none"
    for index, guard in enumerate(data.get("guards", ())):
        for name, values in guard["when"].items():
            where = f"guards[{index}].when.{name}"
            if name not in variables:
                # A guard on a misspelt variable would guard nothing.
                yield RecipeError(where, "there is no such variable", f"one of variables: {known}", "correct its name")
                continue
            for value in map(setting, values):
                right = refused_value(variables[name], value)
                if right:
                    yield RecipeError(where, f"{value!r} is none of its values", right, f"write {right}")


def _known_profiles(data: Mapping[str, Any]) -> Iterator[RecipeError]:
    """Wherever a profile is named, it must be one."""
    profiles = data.get("profiles", {})
    named = [("default_profile", data.get("default_profile"))]
    for part in ("expected", "measured"):
        named += [(f"{part}[{i}].profile", entry.get("profile")) for i, entry in enumerate(data.get(part, ()))]
    for where, name in named:
        if name is not None and name not in profiles:
            known = ", ".join(profiles) or "none"
            yield RecipeError(where, f"there is no profile {name}", f"one of profiles: {known}", "correct its name")


def image_lacks_serve(data: Mapping[str, Any]) -> bool:
    return "reference" in data.get("image", {}) and "serve" not in data
