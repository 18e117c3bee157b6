"""Jobs that copy files over the rails: what the transport met, said as findings, and what it moved, as measurements.

Used for weights and images alike: one job receives on the target, one sends on the source.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .findings import Finding, finding
from .jobs import JobFailedError, Reporter
from .transport import receiver, sender
from .transport.channel import Credentials
from .transport.files import Item

_SHOWN = 8


def name_of(rail: Mapping[str, Any]) -> str:
    return f"rail {rail['rail']}"


def _ways(spec: Mapping[str, Any], node: str) -> list[sender.Rail]:
    """The rails to the target on which its receiver listens."""
    listening = spec.get("listening") or {}
    ports = dict(zip(listening.get("addresses") or (), listening.get("ports") or (), strict=True))
    return [
        sender.Rail(name_of(rail), str(rail["address"]), int(ports[rail["address"]]), rail["peer_addresses"].get(node))
        for rail in spec["rails"]
        if rail["address"] in ports
    ]


def room_for(job: Reporter, path: str, items: Iterable[Item], staging: int) -> list[Finding]:
    """Whether what is still to come fits, counting what an earlier try left in the open folder ``staging``."""
    need = 0
    for item in items:
        try:
            there = os.stat(item.path, dir_fd=staging, follow_symlinks=False).st_size
        except OSError:
            there = 0
        need += max(0, item.size - there)
    free = shutil.disk_usage(staging).free
    if need <= free:
        return []
    return [
        finding(
            "DISK_FULL",
            node=job.node,
            found=f"{free / 2**30:.2f} GiB free for {path}",
            expected=f"{need / 2**30:.2f} GiB for the files that are still to come",
            path=path,
            short=f"{max(need - free, 1 << 20) / 2**30:.2f} GiB",
        )
    ]


def take(
    job: Reporter,
    spec: Mapping[str, Any],
    items: Sequence[Item],
    staging: int,
    publish: Callable[[Item, os.stat_result], None],
) -> receiver.Received:
    """Receive ``items`` into the open folder ``staging``; ``publish`` gets each one that is whole and verified.

    ``spec``: ``rails`` of this node as the plan has them, ``source_node``, ``path`` for words.
    Raises JobFailedError where this node is at fault; what the sender did not send is the caller's to judge.
    """
    source, path = str(spec["source_node"]), str(spec["path"])
    rails = [rail for rail in spec["rails"] if source in rail["peer_addresses"]]
    addresses = tuple(str(rail["address"]) for rail in rails)
    allowed = tuple(str(rail["peer_addresses"][source]) for rail in rails)
    refused: list[str] = []
    foreign: list[str] = []
    total = sum(item.size for item in items)
    job.stage(f"receives {len(items)} files of {path} from {source}", total)

    def listening(ports: list[int]) -> None:
        job.listening({"addresses": list(addresses), "ports": ports})

    def warn(kind: str, text: str) -> None:
        (foreign if kind == "foreign" else refused).append(text)

    hooks = receiver.Hooks(
        listening=listening,
        arrived=publish,
        moved=lambda counts: job.rails({name_of(rail): count for rail, count in zip(rails, counts, strict=True)}),
        warn=warn,
    )
    listen = receiver.Listen(addresses, allowed, Credentials.of(job.secrets))
    received = receiver.receive(listen, items, staging, hooks)
    if foreign:
        job.note(
            finding(
                "COPY_FOREIGN",
                node=job.node,
                found=f"{len(foreign)} other addresses connected to the ports of a copy",
                expected=f"{source} only ({', '.join(allowed)})",
                evidence=foreign[:_SHOWN],
            )
        )
    if refused:
        job.note(
            finding(
                "COPY_REFUSED",
                severity="warn",
                node=job.node,
                found=f"{len(refused)} connections did not prove that they belong to this copy",
                expected="the certificate or secret that was agreed on",
                evidence=refused[:_SHOWN],
            )
        )
    if received.failed and received.failed[0] in ("disk", "write"):
        raise JobFailedError(_target_fault(*received.failed, job.node, path))
    return received


def _target_fault(kind: str, text: str, node: str, path: str) -> Finding:
    if kind == "disk":
        return finding(
            "DISK_FULL",
            node=node,
            found=f"the disk ran full: {text}",
            expected=f"room for all of {path}",
            path=os.path.dirname(path) or path,
            short="space",
        )
    return finding(
        "COPY_WRITE_FAILED",
        node=node,
        found=text,
        expected=f"a disk that takes the files of {path}",
        path=path,
    )


def give(
    job: Reporter,
    spec: Mapping[str, Any],
    root: int,
    items: Sequence[Item],
    *,
    identity: Mapping[str, tuple[int, int, int]] | None = None,
    last: Iterable[str] = (),
    done: Callable[[str], None] = lambda _path: None,
    measurement: str = "copy",
) -> bool:
    """Send ``items`` below the open folder ``root``: True when all have arrived, False where no rail carried them and
    another way has to be found, which a finding says.

    ``spec``: ``node`` to which, ``path`` for words, ``rails`` of that node as the plan has them, ``listening`` as its
    receiver said it, ``targets`` that are fed at the same time. Raises JobFailedError where another way would not help.
    """
    target, path = str(spec["node"]), str(spec["path"])
    rails = _ways(spec, job.node)
    credentials = Credentials.of(job.secrets)
    plan = sender.Plan(
        root,
        items,
        rails,
        credentials,
        streams_per_rail=sender.streams_for(os.cpu_count() or 1, len(rails), int(spec.get("targets") or 1)),
        identity=identity or {},
        last=frozenset(last),
    )
    total = sum(item.size for item in items)
    job.stage(f"sends {len(items)} files of {path} to {target}", total)
    repaired: list[tuple[str, str]] = []
    carried = [0] * len(rails)

    def moved(counts: list[int]) -> None:
        carried[:] = counts
        job.rails({rail.name: count for rail, count in zip(rails, counts, strict=True)}, sum(already))

    already: list[int] = []
    hooks = sender.Hooks(
        moved=moved, resumed=already.append, done=done, warn=lambda kind, text: repaired.append((kind, text))
    )
    began = time.monotonic()
    failure: sender.SendError | None = None
    try:
        carried = sender.send(plan, hooks)
    except sender.SendError as error:
        failure = error
    seconds = time.monotonic() - began
    if failure is None or failure.kind != "rails":
        for said in _repairs(repaired, job.node, target):
            job.note(said)
    if failure is not None and failure.kind != "rails":
        raise JobFailedError(fault(failure, node=job.node, target=target, path=path))
    if failure is not None:
        job.note(fault(failure, node=job.node, target=target, path=path))
        return False
    job.measure(
        **{
            measurement: {
                "transport": "tls" if credentials.encrypted else "plain",
                "verified": True,
                "files": len(items),
                "bytes": total,
                "seconds": round(seconds, 3),
                "bytes_per_s": round(sum(carried) / seconds) if seconds else None,
                "streams": plan.streams_per_rail * len(rails),
                "rails": [
                    {"rail": rail.name, "address": rail.address, "bytes": count}
                    for rail, count in zip(rails, carried, strict=True)
                ],
            }
        }
    )
    return True


def _repairs(repaired: Sequence[tuple[str, str]], node: str, target: str) -> list[Finding]:
    findings = []
    streams = [text for kind, text in repaired if kind != "repeated"]
    if streams:
        findings.append(
            finding(
                "COPY_RAIL_CHANGED",
                node=node,
                found=f"{len(streams)} times a stream to {target} failed and its file went on over another",
                expected="every stream carries on its own rail",
                evidence=streams[:_SHOWN],
            )
        )
    damaged = [text for kind, text in repaired if kind == "repeated"]
    if damaged:
        findings.append(
            finding(
                "COPY_REPEATED",
                node=node,
                found=f"{len(damaged)} files arrived at {target} with other contents and were sent again",
                expected="what was read arrives",
                evidence=damaged[:_SHOWN],
            )
        )
    return findings


def fault(error: sender.SendError, *, node: str, target: str, path: str) -> Finding:
    """What ended a copy, as a finding of the node that is at fault."""
    full = os.path.join(path, error.path) if error.path else path
    match error.kind:
        case "changed":
            return finding(
                "WEIGHTS_CHANGING",
                node=node,
                found=error.text,
                expected="files that nothing writes to",
                evidence=error.evidence,
                path=path,
            )
        case "unreadable":
            return finding(
                "WEIGHTS_UNREADABLE",
                node=node,
                found=error.text,
                expected="a file that root can read",
                evidence=error.evidence,
                path=full,
            )
        case "damaged":
            return finding(
                "COPY_SOURCE_DAMAGED",
                node=node,
                found=error.text,
                expected="the contents that its hash was made of",
                evidence=error.evidence,
                path=full,
            )
        case "differs":
            return finding(
                "COPY_DIFFERS",
                node=target,
                found=error.text,
                expected="what was read arrives",
                evidence=error.evidence,
                path=full,
            )
        case "refused":
            return finding(
                "COPY_REFUSED",
                node=node,
                found=f"{target} and this node did not accept each other: {error.text}",
                expected="the certificate or secret that was agreed on",
                evidence=error.evidence,
            )
        case "disk" | "write":
            return _target_fault(error.kind, error.text, target, path)
        case "rails":
            return finding(
                "COPY_FALLBACK",
                node=node,
                found=f"no rail carried the copy to {target}; rsync over ssh takes its place",
                expected="streams on every rail",
                evidence=error.evidence,
            )
    return finding(
        "UNKNOWN_CAUSE",
        node=node,
        found=f"the copy to {target} ended: {error.kind}: {error.text}",
        expected="a whole copy",
        evidence=error.evidence,
        attach="this message",
    )
