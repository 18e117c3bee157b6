"""The words of a vLLM command line as the ``serve`` part of a recipe of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..recipe import PLANNED_FLAGS

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
FLAG = re.compile(r"--?[A-Za-z]")
SHORT: Mapping[str, str] = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
}
# Ours to set, from the inventory and the facts; that a recipe has them says nothing that is lost.
PLANNERS = frozenset(
    [
        "--host",
        "--port",
        "--tensor-parallel-size",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--headless",
        "--distributed-executor-backend",
    ]
)
OTHER_SPLITS = ("--pipeline-parallel-size", "--data-parallel-size")
# Their values are files inside the container, which the other launcher may have put there.
FILES = ("--reasoning-parser-plugin", "--tool-parser-plugin", "--chat-template")
MOST_RANKS = 64
WHOLE = re.compile(r"(\d+)([kKmMgG]?)")
FACTORS: Mapping[str, int] = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


class EngineError(ValueError):
    """The command is no vLLM command that could be planned; the message says why."""


@dataclass
class Engine:
    """What a command says: the model, fields of ``serve``, and what of it has no place in ours."""

    model: str = ""
    revision: str = ""
    entrypoint: str = "vllm"
    serve: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)


def read_command(argv: Sequence[str], model: str) -> Engine:
    """Raises EngineError where the command is not vLLM's, or splits the model in a way that is not planned here."""
    engine = Engine()
    rest = list(argv)
    if rest[:1] == ["exec"]:
        rest.pop(0)
    while rest and (match := ASSIGNMENT.fullmatch(rest[0])):
        engine.environment[match[1]] = match[2]
        rest.pop(0)
    program = rest[:2]
    if program == ["vllm", "serve"]:
        rest = rest[2:]
    elif len(rest) > 2 and rest[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
        rest = rest[3:]
    else:
        raise EngineError(f"it runs {' '.join(program) or 'nothing'}")
    positional, options = _options(rest)
    engine.model = positional[0] if positional else ""
    for name, values in options:
        _take(engine, name, values, model)
    if not engine.model:
        engine.model = model
    return engine


def _options(words: Sequence[str]) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    first = next((index for index, word in enumerate(words) if FLAG.match(word)), len(words))
    return list(words[:first]), _pairs(words[first:])


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    index = 0
    while index < len(words):
        name, values = words[index], []
        index += 1
        while index < len(words) and not FLAG.match(words[index]):
            values.append(words[index])
            index += 1
        yield name, values


def _take(engine: Engine, word: str, values: list[str], model: str) -> None:
    name, equals, joined = word.partition("=")
    if equals and name.startswith("--"):
        values = [joined, *values]
    # vLLM reads --max_model_len as --max-model-len.
    name = SHORT.get(name, name.replace("_", "-") if name.startswith("--") and "." not in name else name)
    value = values[0] if values else ""
    if name in OTHER_SPLITS:
        if value != "1":
            raise EngineError(f"{name} {value} splits the model otherwise than by tensors")
    elif name == "--model":
        engine.model = value
    elif name == "--served-model-name":
        engine.serve["served_names"] = list(dict.fromkeys(values))
    elif name == "--revision":
        engine.revision = value
    elif name in ("--max-model-len", "--max-num-seqs"):
        match = WHOLE.fullmatch(value)
        if match and int(match[1]):
            engine.serve[name[2:].replace("-", "_")] = int(match[1]) * FACTORS[match[2]]
        else:
            engine.unmapped.append(f"command: {name} {value}: not a number")
    elif name == "--gpu-memory-utilization":
        try:
            engine.serve["gpu_memory_utilization"] = float(value)
        except ValueError:
            engine.unmapped.append(f"command: {name} {value}: not a number")
    elif name == "--api-key":
        engine.unmapped.append("command: --api-key: a secret has no place in a recipe, use api_key_file")
    elif name in PLANNERS:
        # The planner splits over the nodes that there are, and says so where the author had more.
        if name == "--tensor-parallel-size" and re.fullmatch(r"[1-9]\d?", value) and int(value) <= MOST_RANKS:
            engine.serve["ranks"] = int(value)
    elif name in PLANNED_FLAGS:
        engine.unmapped.append(f"command: {name}: the planner's own")
    else:
        # An argument that begins with - would be read as a flag, so a joined one stays joined.
        engine.flags += [f"{name}={values[0]}", *values[1:]] if equals and values else [name, *values]
        if name in FILES and value and not value.startswith("{"):
            engine.unmapped.append(f"command: {name} names the file {value}, which the image must have")
        engine.unmapped += [
            f"command: {name} names {other}: only the weights of {model or engine.model} are copied"
            for text in values
            for other in _models(name, text)
            if other not in (model, engine.model)
        ]


def _models(name: str, value: str) -> list[str]:
    """Models that the engine would load besides the one it serves."""
    if name in ("--tokenizer", "--hf-config-path", "--speculative-model"):
        return [value] if REPOSITORY.fullmatch(value) else []
    if name != "--speculative-config":
        return []
    try:
        draft = json.loads(value).get("model")
    except (ValueError, AttributeError):
        return []
    return [draft] if isinstance(draft, str) else []
