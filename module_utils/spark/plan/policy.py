"""The inventory's variables: one place for their defaults, their limits and the reasons.

``Policy.read`` turns what an inventory or ``-e`` says into a Policy, or into errors that name the variable, what was
given, what is allowed, and an example. ``describe`` feeds the documentation.
"""

from __future__ import annotations

import ipaddress
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from ..link.legs import highest_port

CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
NETDEV_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
PROFILE_VALUE = re.compile(r"[A-Z][A-Z0-9_]{0,63}=[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class VariableError:
    """A variable that cannot be used, in words that need no manual."""

    variable: str
    given: str
    allowed: str
    example: str

    def __str__(self) -> str:
        return f"{self.variable} is {self.given}; allowed: {self.allowed}; example: {self.example}"


@dataclass(frozen=True)
class Described:
    """A row of the table of variables."""

    name: str
    scope: str
    default: str
    allowed: str
    example: str
    reason: str


class _RefusedError(ValueError):
    pass


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _RefusedError
    return str(value)


def _matching(pattern: re.Pattern[str], *, empty: bool = False) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value)
        if (empty and not text) or pattern.fullmatch(text):
            return text
        raise _RefusedError

    return read


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value)
        if text not in choices:
            raise _RefusedError
        return text

    return read


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        # A value of -e NAME=VALUE arrives as text; True is an int to Python and never meant as one.
        if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _RefusedError
        return int(value)

    return read


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _RefusedError
    try:
        number = float(value)
    except ValueError as error:
        raise _RefusedError from error
    if not 0 < number < 100_000:
        raise _RefusedError
    return number


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on"):
        return True
    if isinstance(value, str) and value.lower() in ("false", "no", "off"):
        return False
    raise _RefusedError


def _items(value: Any) -> list[Any]:
    """A list, or its text from the command line: JSON, or words with commas between them."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise _RefusedError from error
        else:
            value = [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Sequence):
        raise _RefusedError
    return list(value)


def _list_of(read: Callable[[Any], Any], *, low: int = 0, high: int = 64) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        items = tuple(read(item) for item in _items(value))
        if not low <= len(items) <= high or len(set(items)) != len(items):
            raise _RefusedError
        return items

    return read_all


def _subnet(value: Any) -> str:
    try:
        network = ipaddress.IPv4Network(_text(value))
    except ValueError as error:
        raise _RefusedError from error
    if not 8 <= network.prefixlen <= 30 or not network.is_private or network.is_loopback or network.is_link_local:
        raise _RefusedError
    return str(network)


def _absolute(value: Any) -> str:
    text = _text(value)
    if text and (not text.startswith("/") or "\0" in text or "\n" in text or ":" in text or ".." in text.split("/")):
        raise _RefusedError
    return text.rstrip("/") if text != "/" else text


# The operating system's own: whoever means one of them for weights has mistyped, and their owner would be changed.
SYSTEM_FOLDERS = "bin boot dev etc lib lib64 proc root/.ssh run sbin sys usr/bin usr/lib usr/sbin".split()

SHARED_FOLDERS = " home mnt opt root srv tmp usr var".split(" ")


def _models_dir(value: Any) -> str:
    text = _absolute(value)
    path = posixpath.normpath(f"/{text.strip('/')}").strip("/")
    system = any(path == name or path.startswith(f"{name}/") for name in SYSTEM_FOLDERS)
    if text and (system or path in SHARED_FOLDERS):
        raise _RefusedError
    return text


def _address(value: Any) -> str:
    try:
        return str(ipaddress.ip_address(_text(value)))
    except ValueError as error:
        raise _RefusedError from error


def _url(value: Any) -> str:
    text = _text(value)
    if text and not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/-]*)?", text):
        raise _RefusedError
    try:
        # Brackets that hold no IPv6 address, and ports that are none, are told by these two only.
        parts = urlsplit(text)
        if text and (not parts.hostname or parts.port == 0):
            raise _RefusedError
    except ValueError as error:
        raise _RefusedError from error
    return text.rstrip("/")


def _path_list(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _items(value))


def _variable(
    default: Any, read: Callable[[Any], Any], allowed: str, example: str, reason: str, *, scope: str = "cluster"
) -> Any:
    about = {"read": read, "allowed": allowed, "example": example, "reason": reason, "scope": scope}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Policy:
    """The variables of one cluster, checked. Its members agree in all but ``rank`` and ``fabric_netdevs``."""

    cluster_name: str = _variable(
        "",
        _matching(CLUSTER_NAME),
        "1 to 32 of a-z, 0-9, _ and -, beginning with a letter or digit",
        "cluster_name: pair_a",
        "Names the cluster in plans, results and messages. Every host of the group spark has one; hosts with the same "
        "name are one cluster.",
    )
    model: str = _variable(
        "",
        _matching(MODEL_NAME, empty=True),
        "the name of a file in models/ or in spark_models_path, without .yml",
        "model: deepseek-v4-flash",
        "What cluster-up.yml serves. -e model=NAME applies to every cluster of the run.",
    )
    recipe: str = _variable(
        "",
        _text,
        "a file on the controller, relative to the working directory or to the project, or empty",
        "recipe: ~/recipes/minimax-m2-awq.yaml",
        "A recipe file that is served in the place of model: one of eugr/spark-vllm-docker, of sparkrun, or of this "
        "project.",
    )
    profile: str = _variable(
        "",
        _matching(MODEL_NAME, empty=True),
        "the name of a profile of the recipe, or empty for its default",
        "profile: SPEED",
        "Which set of values of the recipe's variables is used.",
    )
    profile_values: tuple[str, ...] = _variable(
        (),
        _list_of(_matching(PROFILE_VALUE)),
        "NAME=VALUE of variables of the recipe, with commas between them",
        "profile_values: [SEQS=8]",
        "Single values on top of the profile. What the recipe guards against is refused all the same.",
    )
    fabric_transport: str = _variable(
        "rdma",
        _one_of("rdma", "tcp"),
        "rdma or tcp",
        "fabric_transport: rdma",
        "rdma is what the hardware is for. tcp is for machines without RDMA devices, and a warning in every result.",
    )
    fabric_subnets: tuple[str, ...] = _variable(
        ("192.168.200.0/24", "192.168.201.0/24"),
        _list_of(_subnet, low=1, high=4),
        "one to four different private IPv4 networks, /8 to /30, without host bits",
        "fabric_subnets: [192.168.200.0/24, 192.168.201.0/24]",
        "One subnet per rail: two functions of a node in one subnet break routing. The two defaults share a /23, so "
        "that one NCCL address range covers both.",
    )
    fabric_first_host: int = _variable(
        12,
        _whole(1, 65534),
        "a whole number from 1 to 65534 that leaves room for every rank inside each subnet",
        "fabric_first_host: 12",
        "Rank r gets host number fabric_first_host + r in each subnet. Low numbers are left to switches and routers.",
    )
    fabric_netdevs: tuple[str, ...] = _variable(
        (),
        _list_of(_matching(NETDEV_NAME), high=4),
        "network device names, one per subnet in the order of the rails; empty discovers them",
        "fabric_netdevs: [enp1s0f0np0, enP2p1s0f0np0]",
        "The names and the port in use differ by machine and by cable, so they are discovered. Name them where "
        "discovery cannot decide; a host may have its own.",
        scope="host",
    )
    fabric_mtu: int = _variable(
        1500,
        _whole(1500, 9000),
        "a whole number from 1500 to 9000, the same on both ends",
        "fabric_mtu: 1500",
        "1500 reaches the expected rate of both rails; 9000 gains a few per cent at most.",
    )
    fabric_renderer: str = _variable(
        "",
        _one_of("", "NetworkManager", "networkd"),
        "NetworkManager, networkd, or empty for the one that is active on the node",
        "fabric_renderer: NetworkManager",
        "The active one is right unless a machine is about to change over.",
    )
    fabric_rollback_s: int = _variable(
        120,
        _whole(15, 3600),
        "a whole number of seconds from 15 to 3600",
        "fabric_rollback_s: 120",
        "How long a node waits for the controller's new connection before it undoes a network change.",
    )
    link_check_min_gbps: float = _variable(
        170.0,
        _positive,
        "a number greater than 0, in Gb/s",
        "link_check_min_gbps: 170",
        "The sum of two overlapping streams. Healthy pairs reach about 185, degraded ones 8 to 25, one rail alone 93.",
    )
    link_check_min_both_ways_gbps: float = _variable(
        300.0,
        _positive,
        "a number greater than 0, in Gb/s",
        "link_check_min_both_ways_gbps: 300",
        "The sum over both rails and both directions at once. A healthy pair reached 369; pairs in a state that shows "
        "nowhere else reached less than 240. Those are single reports: below it the play warns and goes on. "
        "It stops where both directions together carry less than link_check_min_gbps, what one alone has to.",
    )
    link_check_seconds: int = _variable(
        12,
        _whole(2, 120),
        "a whole number of seconds from 2 to 120",
        "link_check_seconds: 12",
        "How long each of three runs lasts: there, back, and both ways at once. Long enough for the streams to overlap "
        "nearly all of the time, and for two dozen samples of the counters.",
    )
    link_check_ports: tuple[int, ...] = _variable(
        (12000, 12001),
        _list_of(_whole(1024, 65535), low=1, high=4),
        "different ports from 1024 to 65535, one per subnet",
        "link_check_ports: [12000, 12001]",
        "The ports of the vendor's procedure, one per rail. The next ones up serve the other runs: 12002 to 12009 for "
        "two nodes, and two more for each further node.",
    )
    takeover: bool = _variable(
        False,
        _switch,
        "true or false",
        "takeover: true",
        "Whether an enabled unit of an earlier deployment may be disabled. It is somebody's service, so the default "
        "refuses and names it.",
    )
    models_dir: str = _variable(
        "",
        _models_dir,
        "an absolute path on the nodes without : and .., a folder of its own and none of the system, or empty for "
        "models/ in the home of ansible_user",
        "models_dir: /home/nvidia/models",
        "Where the folders of weights lie. Every node needs a full copy.",
    )
    spark_models_path: tuple[str, ...] = _variable(
        (),
        _path_list,
        "folders on the controller, absolute or relative to the project",
        "spark_models_path: [~/recipes]",
        "Folders of recipes that are searched before the catalogue.",
    )
    api_host: str = _variable(
        "0.0.0.0",  # noqa: S104 - other machines are the users of the served model
        _address,
        "an IP address of the head, 0.0.0.0 for all",
        "api_host: 0.0.0.0",
        "Where the head listens.",
    )
    api_port: int = _variable(
        8000,
        _whole(1024, 65535),
        "a port from 1024 to 65535",
        "api_port: 8000",
        "The port of the OpenAI-compatible API.",
    )
    api_base_url: str = _variable(
        "",
        _url,
        "an http or https address, or empty for http://<head>:<api_port>",
        "api_base_url: https://models.example.org",
        "What is printed and probed, where the head is reached by another name.",
    )
    api_key_file: str = _variable(
        "",
        _absolute,
        "an absolute path on the head of a file that only root can read, or empty for no key",
        "api_key_file: /etc/spark-cluster/api-key",
        "The key is read on the head at start and appears on no command line and in no result.",
    )
    master_port: int = _variable(
        29501,
        _whole(1024, 65535),
        "a port from 1024 to 65535",
        "master_port: 29501",
        "Where the ranks meet, on the head's first rail.",
    )
    probe_deadline_s: int = _variable(
        120,
        _whole(5, 3600),
        "a whole number of seconds from 5 to 3600",
        "probe_deadline_s: 120",
        "How long one short completion may take: behind a dead worker it hangs while /health says 200.",
    )
    gid_mode: str = _variable(
        "rule",
        _one_of("rule", "index"),
        "rule or index",
        "gid_mode: rule",
        "rule lets NCCL 2.21 or newer choose each device's RoCE v2 IPv4 entry by family, version and range; index pins "
        "one number, which NCCL then uses unchecked on every device of the rank.",
    )
    disk_headroom_gib: int = _variable(
        20,
        _whole(0, 10000),
        "a whole number of GiB from 0 to 10000",
        "disk_headroom_gib: 20",
        "What must stay free on a node's disk after weights and image: logs, caches and the next update.",
    )
    launcher_restore: bool = _variable(
        False,
        _switch,
        "true or false",
        "launcher_restore: true",
        "Whether a launcher file that was edited on a node may be replaced; the edited copy is kept.",
    )
    weights_verify: str = _variable(
        "quick",
        _one_of("quick", "full"),
        "quick or full",
        "weights_verify: full",
        "quick trusts a file whose size and time are those of its recorded hash; full reads every byte again.",
    )
    weights_download: bool = _variable(
        False,
        _switch,
        "true or false",
        "weights_download: true",
        "Whether the head may fetch weights that no node has from the hub, with the client inside the serving image.",
    )
    hub_endpoint: str = _variable(
        "",
        _url,
        "an http or https address, or empty for https://huggingface.co",
        "hub_endpoint: https://hub.example.org",
        "Where weights are fetched from, where the hub is reached through a mirror.",
    )
    hub_token_file: str = _variable(
        "",
        _absolute,
        "an absolute path on the head of a file that only root can read, or empty for the login of the models' owner",
        "hub_token_file: /etc/spark-cluster/hub-login",
        "The token for weights that the hub gives to some accounts only; it is on no command line and in no result.",
    )
    weights_sync_encrypt: bool = _variable(
        True,
        _switch,
        "true or false",
        "weights_sync_encrypt: false",
        "Whether copies between nodes go through TLS. false is faster, and for a cable that only the nodes share: the "
        "ends prove themselves by a one-time secret, and whoever sits on the cable can read the weights.",
    )
    engine_source: str = _variable(
        "registry",
        _one_of("registry", "wheels", "local"),
        "registry, wheels or local",
        "engine_source: registry",
        "Where the engine image came from, copied into every result. Anything but registry is said aloud.",
    )

    @classmethod
    def read(cls, variables: Mapping[str, Any]) -> tuple[Policy, list[VariableError]]:
        """The policy of one host's variables, with defaults in the place of refused ones, and the refusals."""
        values: dict[str, Any] = {}
        errors: list[VariableError] = []
        for item in fields(cls):
            if item.name not in variables or variables[item.name] is None:
                if item.name == "cluster_name":
                    errors.append(_refusal(item, "not set"))
                continue
            try:
                values[item.name] = item.metadata["read"](variables[item.name])
            except _RefusedError:
                errors.append(_refusal(item, _shown(variables[item.name])))
        policy = cls(**values)
        refused = {error.variable for error in errors}
        together = [error for error in policy._together() if not refused & set(error.variable.split(" and "))]
        return policy, errors + together

    def _together(self) -> list[VariableError]:
        """Limits that two variables set each other."""
        errors = []
        nets = [ipaddress.IPv4Network(subnet) for subnet in self.fabric_subnets]
        for index, one in enumerate(nets):
            for other in nets[index + 1 :]:
                if one.overlaps(other):
                    errors.append(
                        VariableError(
                            "fabric_subnets",
                            f"{one} and {other}, which overlap",
                            "one subnet of its own per rail",
                            _example("fabric_subnets"),
                        )
                    )
        if self.fabric_netdevs and len(self.fabric_netdevs) != len(nets):
            errors.append(
                VariableError(
                    "fabric_netdevs and fabric_subnets",
                    f"{len(self.fabric_netdevs)} devices and {len(nets)} subnets",
                    "as many devices as subnets",
                    f"{_example('fabric_netdevs')}, {_example('fabric_subnets')}",
                )
            )
        if len(self.link_check_ports) < len(nets):
            errors.append(
                VariableError(
                    "link_check_ports and fabric_subnets",
                    f"{len(self.link_check_ports)} ports and {len(nets)} subnets",
                    "at least as many ports as subnets",
                    f"{_example('link_check_ports')}, {_example('fabric_subnets')}",
                )
            )
        if self.api_port == self.master_port:
            errors.append(
                VariableError(
                    "api_port and master_port",
                    f"{self.api_port} both",
                    "two different ports",
                    "api_port: 8000, master_port: 29501",
                )
            )
        return errors

    def room_for(self, width: int) -> list[VariableError]:
        """Whether every subnet has addresses for ``width`` ranks, and the link check ports for their runs."""
        errors = []
        for subnet in self.fabric_subnets:
            usable = ipaddress.IPv4Network(subnet).num_addresses - 2
            last = self.fabric_first_host + width - 1
            if last > usable:
                errors.append(
                    VariableError(
                        "fabric_first_host",
                        f"{self.fabric_first_host}, so that rank {width - 1} would be host {last} of {subnet}",
                        f"at most {usable - width + 1} for {width} ranks in {subnet}",
                        f"fabric_first_host: {max(1, usable - width + 1)}",
                    )
                )
        highest = highest_port(self.link_check_ports, width)
        if highest > 65535:
            errors.append(
                VariableError(
                    "link_check_ports",
                    f"{list(self.link_check_ports)}, so that {width} nodes would need {highest}",
                    "ports with room above them for the other runs, close to each other",
                    _example("link_check_ports"),
                )
            )
        return errors

    def as_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


VARIABLES: tuple[str, ...] = tuple(item.name for item in fields(Policy))
HOST_VARIABLES: tuple[str, ...] = tuple(item.name for item in fields(Policy) if item.metadata["scope"] == "host")
# What is said with -e for one run, to the role that has it.
RUN_VARIABLES = "reset_confirmed reset_stop reset_weights reset_images collective_while_serving".split()
RANK_ALLOWED = "a whole number from 0 to 63; together the hosts of a cluster have 0, 1, 2 ... without gaps"


def read_rank(value: Any) -> int:
    """A host's ``rank``. Raises ValueError for anything but a whole number from 0 to 63."""
    return _whole(0, 63)(value)


def misspelt(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names that are nearly, and not quite, a variable of ours: ``(given, meant)``."""
    known = (*VARIABLES, *RUN_VARIABLES, "rank")
    found = []
    for name in names:
        if name not in known:
            # The pages speak of rails, the variables of the fabric.
            guess = re.sub(r"^rails?_", "fabric_", name)
            found += [(name, meant) for meant in get_close_matches(guess, known, n=1, cutoff=0.85)]
    return found


def describe() -> list[Described]:
    """Every variable, in the order in which a reader meets them."""
    rows = [
        Described(
            item.name,
            item.metadata["scope"],
            "required" if item.name == "cluster_name" else _plain(item.default),
            item.metadata["allowed"],
            item.metadata["example"],
            item.metadata["reason"],
        )
        for item in fields(Policy)
    ]
    reason = "Fixes a host's place. Without it the order of the group counts; rank 0 is the head, which serves the API."
    rows.insert(2, Described("rank", "host", "order in the group", RANK_ALLOWED, "rank: 0", reason))
    return rows


def _refusal(item: Field[Any], given: str) -> VariableError:
    return VariableError(item.name, given, item.metadata["allowed"], item.metadata["example"])


def _example(name: str) -> str:
    return str(next(item for item in fields(Policy) if item.name == name).metadata["example"])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value) if value != "" else "empty"
