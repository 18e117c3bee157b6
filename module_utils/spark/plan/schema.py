"""A checker for the part of JSON Schema that our schemas use, so that a recipe is checked with nothing installed.

Keywords: type, properties, required, additionalProperties (false), items, enum, const, pattern, minimum, maximum,
minLength, minItems, uniqueItems, $ref to #/$defs. A schema that uses another keyword is a mistake of ours and raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

KNOWN = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "minItems",
        "uniqueItems",
        "$ref",
        "$defs",
        "$schema",
        "$id",
        "title",
        "description",
        "examples",
        "default",
    ]
)
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class SchemaError:
    """``field`` is a dotted name with list positions in brackets, empty for the whole document."""

    field: str
    problem: str
    expected: str
    cure: str


def check(data: Any, schema: Mapping[str, Any]) -> list[SchemaError]:
    """Everything in which ``data`` departs from ``schema``."""
    return list(_check(data, schema, "", schema))


def _check(data: Any, schema: Mapping[str, Any], field: str, root: Mapping[str, Any]) -> Iterator[SchemaError]:
    unknown = set(schema) - KNOWN
    if unknown:
        raise ValueError(f"the checker does not know {', '.join(sorted(unknown))} (at {field or 'the top'})")
    if "$ref" in schema:
        yield from _check(data, root["$defs"][schema["$ref"].rpartition("/")[2]], field, root)
        return
    said = _of_type(data, schema, field)
    if said:
        yield said
        return
    yield from _values(data, schema, field)
    if isinstance(data, dict):
        yield from _object(data, schema, field, root)
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _check(item, schema.get("items", {}), f"{field}[{index}]", root)


def _of_type(data: Any, schema: Mapping[str, Any], field: str) -> SchemaError | None:
    wanted = schema.get("type")
    if wanted is None:
        return None
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    fits = any(isinstance(data, TYPES[name]) and (name == "boolean" or not isinstance(data, bool)) for name in names)
    if fits:
        return None
    return SchemaError(
        field, f"{_shown(data)} is of the wrong type", f"{' or '.join(names)}{_about(schema)}", _cure(schema, field)
    )


def _values(data: Any, schema: Mapping[str, Any], field: str) -> Iterator[SchemaError]:
    if "enum" in schema and data not in schema["enum"]:
        expected = f"one of {', '.join(map(str, schema['enum']))}"
        yield SchemaError(field, f"{_shown(data)} is none of the choices", expected, _cure(schema, field))
    if "const" in schema and data != schema["const"]:
        yield SchemaError(field, f"it is {_shown(data)}", str(schema["const"]), f"set it to {schema['const']}")
    if "pattern" in schema and isinstance(data, str) and not re.search(schema["pattern"], data):
        expected = schema.get("description", f"text like {schema['pattern']}")
        yield SchemaError(field, f"{_shown(data)} has the wrong form", expected, _cure(schema, field))
    if isinstance(data, str) and len(data) < schema.get("minLength", 0):
        yield SchemaError(field, "it is empty", f"some text{_about(schema)}", _cure(schema, field))
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and data < low) or (high is not None and data > high):
            limits = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            yield SchemaError(field, f"{data} is out of range", limits, _cure(schema, field))
    if isinstance(data, list):
        if len(data) < schema.get("minItems", 0):
            expected = f"at least {schema['minItems']}{_about(schema)}"
            yield SchemaError(field, "it has too few entries", expected, _cure(schema, field))
        if schema.get("uniqueItems") and any(item in data[:index] for index, item in enumerate(data)):
            yield SchemaError(field, "an entry is there twice", "different entries", "remove the repetition")


def _object(
    data: Mapping[Any, Any], schema: Mapping[str, Any], field: str, root: Mapping[str, Any]
) -> Iterator[SchemaError]:
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in data:
            part = _resolved(properties.get(name, {}), root)
            yield SchemaError(_join(field, name), "it is missing", f"{name}{_about(part)}", _cure(part, name, "add"))
    for name, value in data.items():
        if not isinstance(name, str):
            yield SchemaError(_join(field, str(name)), "a field's name is no text", "text", f"quote it: '{name}'")
        elif name in properties:
            yield from _check(value, properties[name], _join(field, name), root)
        elif schema.get("additionalProperties") is False:
            near = get_close_matches(name, properties, n=1)
            cure = f"rename it to {near[0]}" if near else f"remove it; known here: {', '.join(properties)}"
            yield SchemaError(_join(field, name), "there is no such field", "a field of the schema", cure)
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield from _check(value, schema["additionalProperties"], _join(field, name), root)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return found


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _about(schema: Mapping[str, Any]) -> str:
    return f": {schema['description']}" if schema.get("description") else ""


def _cure(schema: Mapping[str, Any], field: str, verb: str = "write") -> str:
    name = re.sub(r"\[\d+\]$", "", field).rpartition(".")[2] or "the recipe"
    examples = schema.get("examples")
    return f"{verb} for example {name}: {examples[0]}" if examples else f"{verb} {name} as docs/models.md describes it"


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}..."
