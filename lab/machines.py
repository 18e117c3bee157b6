"""The machines of a pair, from YAML."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped, unused-ignore]

from lab.errors import LabError

FOLDER = Path(__file__).resolve().parent / "machines"
NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")
# What useradd takes by itself; it becomes part of paths, of sudoers and of scripts that root runs.
USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
SUITE = re.compile(r"[a-z][a-z0-9-]{0,30}")
VM_LIMITS = {"memory_mib": (512, 1 << 20), "cpus": (1, 256), "disk_gib": (1, 10_000)}
KINDS = ("container", "vm")


@dataclasses.dataclass(frozen=True)
class Node:
    """One virtual Spark. The first node of a pair is its head."""

    name: str
    ssh_port: int
    management_address: str = ""


@dataclasses.dataclass(frozen=True)
class Forward:
    """A port of a node as the controller sees it on loopback."""

    listen: int
    node: str
    port: int


@dataclasses.dataclass(frozen=True)
class Vm:
    """Settings that only the VM kind has."""

    memory_mib: int = 2048
    cpus: int = 1
    disk_gib: int = 8
    accel: str = "auto"
    shared_port: bool = False


@dataclasses.dataclass(frozen=True)
class Machines:
    """A pair as its YAML file describes it."""

    name: str
    kind: str
    nodes: tuple[Node, ...]
    user: str = "spark"
    suite: str = "trixie"
    management_prefix: int = 24
    forwards: tuple[Forward, ...] = ()
    engine: str = "none"
    single_node_unit: bool = True
    vm: Vm = dataclasses.field(default_factory=Vm)

    @property
    def head(self) -> Node:
        return self.nodes[0]

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"pair {self.name} has no node {name}", f"one of: {', '.join(n.name for n in self.nodes)}")


def available() -> list[str]:
    """Names that --machines takes besides a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yml"))


def load(name_or_path: str) -> Machines:
    """Read a machines file by its name in lab/machines or by its path."""
    path = Path(name_or_path)
    if "/" not in name_or_path and path.suffix not in (".yml", ".yaml"):
        path = FOLDER / f"{name_or_path}.yml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LabError(f"no machines file {path}", f"a path, or one of: {', '.join(available())}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"machines file {path} cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Machines:
    """Machines from the text of a file; `source` is what errors call it."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LabError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise LabError(f"{source} is not YAML that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise LabError(f"{source}: a value cannot be read: {error}", "text in quotes") from None
    machines = _build(Machines, data, source)
    _check(machines, source)
    return machines


T = TypeVar("T")


def _build(cls: type[T], data: Any, where: str) -> T:
    """A dataclass from a mapping: unknown keys, missing keys and wrong types are errors that name the place."""
    if not isinstance(data, Mapping):
        raise LabError(f"{where}: expected a mapping, found {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise LabError(f"{where}: unknown key {key!r}", f"one of: {', '.join(fields)}")
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in data:
            raise LabError(f"{where}: key {name!r} is missing")
    return cls(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.GenericAlias) and hint.__origin__ is tuple:
        if not isinstance(value, list):
            raise LabError(f"{where}: expected a list, found {type(value).__name__}")
        return tuple(_value(hint.__args__[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value, where)
    if type(value) is not hint:
        raise LabError(f"{where}: expected {hint.__name__}, found {type(value).__name__} {value!r}")
    return value


def _check(machines: Machines, source: str) -> None:
    def refuse(what: str) -> typing.NoReturn:
        raise LabError(f"{source}: {what}")

    if machines.kind not in KINDS:
        refuse(f"kind {machines.kind!r} is not one of {', '.join(KINDS)}")
    if not NAME.fullmatch(machines.name):
        refuse(f"name {machines.name!r} must be 1 to 15 of a-z, 0-9 and '-', a letter first")
    if not USER.fullmatch(machines.user) or machines.user == "root":
        refuse(f"user {machines.user!r} must be 1 to 31 of a-z, 0-9, '_' and '-', a letter first, and not root")
    if not SUITE.fullmatch(machines.suite):
        refuse(f"suite {machines.suite!r} is no name of a Debian suite, such as trixie")
    if not 1 <= machines.management_prefix <= 30:
        refuse(f"management_prefix {machines.management_prefix} is not between 1 and 30")
    for key, (low, high) in VM_LIMITS.items():
        if not low <= getattr(machines.vm, key) <= high:
            refuse(f"vm: {key} {getattr(machines.vm, key)} is not between {low} and {high}")
    if not machines.nodes:
        refuse("no nodes")
    names = [node.name for node in machines.nodes]
    for name in names:
        if not NAME.fullmatch(name):
            refuse(f"node name {name!r} must be 1 to 15 of a-z, 0-9 and '-', a letter first")
    if len(set(names)) < len(names):
        refuse("two nodes have the same name")
    ports = [node.ssh_port for node in machines.nodes] + [forward.listen for forward in machines.forwards]
    for port in ports + [forward.port for forward in machines.forwards]:
        if not 0 < port < 65536:
            refuse(f"port {port} is not between 1 and 65535")
    if len(set(ports)) < len(ports):
        refuse("two listeners have the same port")
    for forward in machines.forwards:
        if forward.node not in names:
            refuse(f"forward {forward.listen} names an unknown node {forward.node!r}")
    if machines.engine not in ("none", "auto", "wheels", "registry"):
        refuse(f"engine {machines.engine!r} is not one of none, auto, wheels, registry")
    if machines.kind == "container":
        addresses = [node.management_address for node in machines.nodes]
        for address in addresses:
            try:
                ipaddress.IPv4Address(address)
            except ValueError:
                refuse(f"management_address {address!r} is not an IPv4 address")
        if len(set(addresses)) < len(addresses):
            refuse("two nodes have the same management_address")
