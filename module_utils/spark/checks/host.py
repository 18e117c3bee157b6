"""What the facts of all nodes say about the machines themselves, before anything is changed. Pure.

The network is judged in ``checks.fabric``, and whether a model fits in ``plan``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..facts import NodeFacts
from ..findings import Finding, finding
from ..parse.firewall import lets_in
from ..plan.functions import CONNECTX_DRIVER, FUNCTION_NAME
from ..plan.policy import Policy
from ..plan.types import Purpose

MIN_PYTHON = (3, 11)
# Oldest release of each that this is tried on.
TRIED_OS = {"ubuntu": (24, 4), "debian": (13,)}
MEMORY_TOLERANCE = 0.05
GIB = 2**30

_ACTIVE = frozenset({"active", "activating", "reloading"})
_ENABLED = frozenset({"enabled", "enabled-runtime"})

AllFacts = Mapping[str, NodeFacts]
Settings = Mapping[str, Any]


def host_findings(
    facts_by_node: Mapping[str, Mapping[str, Any]],
    policy: Policy | Settings,
    *,
    purpose: Purpose = "fabric",
    head: str = "",
    gpu: bool = True,
) -> list[Finding]:
    """Judge every node by itself, then the nodes against each other.

    ``purpose`` decides what a lack means: a pair that is to serve needs more than one that only gets its fabric.
    ``head`` is the node that serves the API, the first one if empty; ``gpu`` says whether what is served needs one.
    """
    settings = policy.as_dict() if isinstance(policy, Policy) else policy
    return _findings(cast(AllFacts, facts_by_node), settings, purpose, head, gpu)


def _findings(facts_by_node: AllFacts, policy: Settings, purpose: Purpose, head: str, gpu: bool) -> list[Finding]:
    found: list[Finding] = []
    for node, facts in facts_by_node.items():
        found += _root(node, facts)
        found += _python(node, facts)
        if purpose == "stop":
            continue
        found += _os(node, facts)
        found += _disks(node, facts, policy, purpose)
        found += _docker(node, facts, purpose)
        found += _gpu(node, facts, facts_by_node, gpu and purpose == "serve")
        found += _perftest(node, facts, policy, purpose)
        found += _units(node, facts, policy)
        if len(facts_by_node) > 1:
            found += _firewall(node, facts, policy)
    if purpose == "serve":
        found += _api_port(facts_by_node, policy, head)
    if purpose != "stop":
        found += _parity(facts_by_node, str(policy.get("cluster_name", "")))
    return found


def _root(node: str, facts: NodeFacts) -> Iterable[Finding]:
    if not facts["sudo_root"]:
        yield finding(
            "SUDO_MISSING",
            node=node,
            found="the facts were read by a user who is not root",
            expected="root through sudo",
        )


def _python(node: str, facts: NodeFacts) -> Iterable[Finding]:
    if _numbers(facts["python"])[:2] < MIN_PYTHON:
        yield finding(
            "PYTHON_TOO_OLD",
            node=node,
            found=f"Python {facts['python']}",
            expected=f"Python {'.'.join(map(str, MIN_PYTHON))} or newer",
        )


def _os(node: str, facts: NodeFacts) -> Iterable[Finding]:
    oldest = TRIED_OS.get(facts["os"]["id"])
    if oldest is None or _numbers(facts["os"]["version_id"]) < oldest:
        yield finding(
            "OS_UNTRIED",
            node=node,
            found=facts["os"]["pretty"] or facts["os"]["id"] or "no /etc/os-release",
            expected="DGX OS 7, Ubuntu 24.04 or newer, or Debian 13 or newer",
        )


def _disks(node: str, facts: NodeFacts, policy: Settings, purpose: str) -> Iterable[Finding]:
    """One finding per file system: several purposes may share it."""
    headroom = int(policy.get("disk_headroom_gib", 0)) * GIB
    said: set[tuple[int, int]] = set()
    # /var surely exists; the folder of the models may not yet.
    for disk in sorted(facts["disks"], key=lambda disk: disk["purpose"], reverse=True):
        shape = (disk["free_bytes"], disk["total_bytes"])
        if disk["free_bytes"] >= headroom or shape in said:
            continue
        said.add(shape)
        yield finding(
            "DISK_LOW",
            node=node,
            # The fabric needs no room, so it may be set up on a full disk.
            severity="fatal" if purpose == "serve" else "warn",
            found=f"{disk['free_bytes'] / GIB:.1f} GiB free for {disk['path']}",
            expected=f"at least {headroom / GIB:.0f} GiB free (disk_headroom_gib)",
            path=disk["path"],
        )


def _docker(node: str, facts: NodeFacts, purpose: str) -> Iterable[Finding]:
    docker = facts["docker"]
    if docker["version"]:
        return
    error = docker["error"] or "no answer"
    missing = "not installed" in error
    yield finding(
        "DOCKER_MISSING" if missing else "DOCKER_DOWN",
        node=node,
        severity="fatal" if purpose == "serve" else "warn",
        found=error,
        expected="a running Docker daemon",
    )


def _gpu(node: str, facts: NodeFacts, facts_by_node: AllFacts, needed: bool) -> Iterable[Finding]:
    gpu, module = facts["gpu"], facts["kernel_module_nvidia"]
    if gpu["driver_version"] is None:
        error = gpu["error"] or "nvidia-smi gave no version"
        stale = "Driver/library version mismatch" in error
        somewhere = any(other["gpu"]["driver_version"] for other in facts_by_node.values())
        yield finding(
            "GPU_DRIVER_STALE" if stale else "GPU_DRIVER_MISSING",
            node=node,
            severity="fatal" if needed or somewhere or stale else "warn",
            found=error,
            expected="a driver that answers nvidia-smi",
            evidence=(f"module for the running kernel {facts['kernel']}: {module or 'none'}",),
        )
    elif module != gpu["driver_version"] and "modinfo" not in facts["errors"]:
        yield finding(
            "GPU_MODULE_UNMATCHED",
            node=node,
            found=f"loaded {gpu['driver_version']}, on disk {module or 'none'}",
            expected=f"module {gpu['driver_version']} for kernel {facts['kernel']}",
            version=gpu["driver_version"],
            branch=gpu["driver_version"].partition(".")[0],
            kernel=facts["kernel"],
        )


def _perftest(node: str, facts: NodeFacts, policy: Settings, purpose: str) -> Iterable[Finding]:
    if purpose == "fabric" and policy.get("fabric_transport") == "rdma" and facts["perftest"] is None:
        yield finding(
            "PERFTEST_MISSING",
            node=node,
            found="ib_write_bw does not run",
            expected="perftest, for the bandwidth of the rails",
        )


def conflicting_units(facts: NodeFacts) -> list[str]:
    """Units that run now or start at the next boot and take what a rank needs."""
    return [unit["name"] for unit in facts["units"] if unit["active"] in _ACTIVE or unit["enabled"] in _ENABLED]


def _units(node: str, facts: NodeFacts, policy: Settings) -> Iterable[Finding]:
    names = conflicting_units(facts)
    takeover = bool(policy.get("takeover"))
    for unit in facts["units"]:
        if unit["name"] not in names:
            continue
        takes = [f"port {port}" for port in unit["ports"]] + (["the GPU"] if unit["gpu"] else [])
        yield finding(
            "UNIT_CONFLICT",
            node=node,
            severity="note" if takeover else "fatal",
            found=f"{unit['name']} is {unit['enabled']} and {unit['active']}",
            expected="no other service of models" if not takeover else "disabled by this run (takeover: true)",
            evidence=(f"runs: {unit['exec']}", f"takes: {', '.join(takes) or 'nothing that its files name'}"),
            remedy="Nothing to do: takeover is true, so it is disabled and recorded for undo." if takeover else None,
            unit=unit["name"],
        )


def _api_port(facts_by_node: AllFacts, policy: Settings, head: str) -> Iterable[Finding]:
    port = int(policy.get("api_port", 8000))
    head = head or next(iter(facts_by_node), "")
    facts = facts_by_node.get(head)
    if facts is None:
        return
    container = facts["rank"]["container"]
    if container is not None and container["running"]:
        return
    # A unit that names the port is a finding of its own, and explains the listener.
    if any(port in unit["ports"] for unit in facts["units"] if unit["name"] in conflicting_units(facts)):
        return
    for listener in facts["listeners"]:
        if listener["port"] == port:
            process = listener["process"] or "an unknown process"
            yield finding(
                "API_PORT_TAKEN",
                node=head,
                found=f"{process} listens on {listener['address']}:{port}",
                expected=f"nothing on port {port}",
                process=process,
            )
            return


def _firewall(node: str, facts: NodeFacts, policy: Settings) -> Iterable[Finding]:
    wall = facts["firewall"]
    if not wall["active"] or not wall["kind"]:
        return
    kind, evidence = wall["kind"], wall["evidence"]
    subnets = [str(subnet) for subnet in policy.get("fabric_subnets", ())]
    if subnets and all(lets_in(kind, evidence, subnet=subnet) for subnet in subnets):
        return
    rails = _rails(facts, policy)
    closed = [name for name in rails if not lets_in(kind, evidence, netdev=name)]
    if not closed:
        return
    yield finding(
        "FIREWALL_ON_RAIL",
        node=node,
        found=f"{kind} is active and has no rule that lets everything in on {', '.join(closed)}",
        expected="rails without a filter",
        evidence=evidence[:8],
        allow=_allow(kind, evidence, closed),
    )


def _allow(kind: str, evidence: Iterable[str], netdevs: list[str]) -> str:
    if kind == "ufw":
        return " && ".join(f"sudo ufw allow in on {name}" for name in netdevs)
    if kind == "firewalld":
        added = " && ".join(f"sudo firewall-cmd --permanent --zone=trusted --add-interface={name}" for name in netdevs)
        return f"{added} && sudo firewall-cmd --reload"
    chain = next((line[len("chain ") :].partition(":")[0] for line in evidence if line.startswith("chain ")), "")
    names = ", ".join(f'"{name}"' for name in netdevs)
    return f"sudo nft 'insert rule {chain} iifname {{ {names} }} accept', and the same rule in /etc/nftables.conf"


def _rails(facts: NodeFacts, policy: Settings) -> list[str]:
    """The functions that may carry rails: those named, else those with a link, else all."""
    named = [str(name) for name in policy.get("fabric_netdevs") or ()]
    functions = [
        netdev
        for netdev in facts["netdevs"]
        if netdev["driver"] == CONNECTX_DRIVER or FUNCTION_NAME.fullmatch(netdev["name"])
    ]
    linked = [netdev["name"] for netdev in functions if netdev["carrier"]]
    return named or linked or [netdev["name"] for netdev in functions]


def _parity(facts_by_node: AllFacts, cluster: str) -> Iterable[Finding]:
    """Differences, told on the node that is in the minority or, between two, on the one with the older version."""
    yield from _same(
        "ARCH_DIFFERS",
        {node: facts["arch"] for node, facts in facts_by_node.items()},
        "one architecture",
        cluster=cluster,
    )
    yield from _same(
        "KERNEL_DIFFERS",
        {node: facts["kernel"] for node, facts in facts_by_node.items()},
        "one kernel",
        wanted="kernel",
        newest=True,
    )
    drivers = {node: facts["gpu"]["driver_version"] or "" for node, facts in facts_by_node.items()}
    yield from _same("GPU_DRIVER_DIFFERS", drivers, "one driver", wanted="version", newest=True)
    versions = {node: facts["docker"]["version"] or "" for node, facts in facts_by_node.items()}
    majors = {node: version.partition(".")[0] for node, version in versions.items()}
    if len(set(filter(None, majors.values()))) > 1:
        yield from _same("DOCKER_DIFFERS", versions, "one major version of Docker", wanted="version", newest=True)
    stores = {node: facts["docker"]["storage_driver"] or "" for node, facts in facts_by_node.items()}
    yield from _same("DOCKER_STORE_DIFFERS", stores, "one image store", wanted="store")
    sizes = {node: facts["memory"]["total_bytes"] for node, facts in facts_by_node.items()}
    if sizes and max(sizes.values()) - min(sizes.values()) > MEMORY_TOLERANCE * max(sizes.values()):
        smallest = min(sizes, key=lambda node: sizes[node])
        yield finding(
            "MEMORY_DIFFERS",
            node=smallest,
            found=_said({node: f"{size / GIB:.1f} GiB" for node, size in sizes.items()}),
            expected=f"equal within {MEMORY_TOLERANCE:.0%}",
            cluster=cluster,
        )


def _same(
    code: str, values: Mapping[str, str], expected: str, *, wanted: str = "", newest: bool = False, **fields: Any
) -> Iterable[Finding]:
    """Nothing if all known values are equal; an unknown one is a finding elsewhere."""
    known = {node: value for node, value in values.items() if value}
    if len(set(known.values())) < 2:
        return
    counts = Counter(known.values())
    # Equal counts: the newer version, else what the head has.
    reference = max(counts, key=lambda value: (counts[value], _numbers(value) if newest else ()))
    odd = next(node for node, value in known.items() if value != reference)
    extra = {wanted: reference} if wanted else {}
    yield finding(code, node=odd, found=_said(known), expected=f"{expected} on all nodes", **fields, **extra)


def _said(values: Mapping[str, str]) -> str:
    return ", ".join(f"{node} has {value}" for node, value in values.items())


def _numbers(version: str) -> tuple[int, ...]:
    """``6.17.0-1032-nvidia`` in comparable form; leading zeros of months do not matter."""
    parts = "".join(character if character.isdecimal() else " " for character in version).split()
    return tuple(int(part) for part in parts)
