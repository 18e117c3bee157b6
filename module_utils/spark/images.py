"""Container images: which one a node has, whether two nodes have the same, and how one gets it from the other.

An image is told by its registry digest, and where that was lost on the way or never was, by its layers, configuration
and architecture. The ``Id`` decides nothing: Docker's two stores name the same image differently.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .findings import Finding, finding
from .jobs import JobFailedError, Reporter
from .peer import COPY_CIPHER, IMAGE_REFERENCE, RefusedError, ssh_argv
from .runner import Completed, Run, run
from .transfer import Outcome, explain, over_rails, pump

_CONFIG = (
    "User",
    "Env",
    "Cmd",
    "Entrypoint",
    "WorkingDir",
    "Labels",
    "ExposedPorts",
    "Volumes",
    "StopSignal",
    "Shell",
    "OnBuild",
    "Healthcheck",
)
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")


def split(reference: str) -> tuple[str, str | None, str | None]:
    """Repository, tag and digest of a reference; raises ValueError where it is none."""
    if not IMAGE_REFERENCE.fullmatch(reference):
        raise ValueError(f"{reference!r} is not a reference of an image")
    rest, _, digest = reference.partition("@")
    repository, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        return rest, None, digest or None
    return repository, tag, digest or None


def local_name(reference: str) -> str:
    """The name under which every node has the image, also where a copy between nodes lost its registry digest."""
    repository, tag, digest = split(reference)
    if tag:
        return f"{repository}:{tag}"
    return f"{repository}:{'sha256-' + digest.removeprefix('sha256:')[:16] if digest else 'latest'}"


def identity(data: Mapping[str, Any]) -> dict[str, Any]:
    """What decides whether two images are the same, from ``docker image inspect`` of either store."""
    config = data.get("Config") or {}
    # The stores disagree on whether an empty setting is there, and on nothing else of these.
    plain = {name: config[name] for name in _CONFIG if config.get(name)}
    content = {
        "layers": list((data.get("RootFS") or {}).get("Layers") or []),
        "config": plain,
        "architecture": data.get("Architecture") or "",
        "os": data.get("Os") or "",
    }
    return {
        "present": True,
        "id": data.get("Id") or "",
        "digests": sorted(str(item).rpartition("@")[2] for item in data.get("RepoDigests") or []),
        "content": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "layers": content["layers"],
        "architecture": content["architecture"],
        "size_bytes": int(data.get("Size") or 0),
    }


ABSENT: dict[str, Any] = {
    "present": False,
    "id": "",
    "digests": [],
    "content": "",
    "layers": [],
    "architecture": "",
    "size_bytes": 0,
}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if not one["present"] or not other["present"]:
        return False
    return bool(set(one["digests"]) & set(other["digests"])) or one["content"] == other["content"]


def inspect(reference: str, node: str, runner: Run = run) -> tuple[dict[str, Any], list[Finding]]:
    """The identity of the image that this node would start for ``reference``."""
    for name in dict.fromkeys((reference, local_name(reference))):
        done = runner(["docker", "image", "inspect", "--", name])
        if done.ok:
            found = json.loads(done.stdout)
            if found:
                return identity(found[0]) | {"name": name}, []
        elif "no such image" not in done.stderr.lower():
            return dict(ABSENT), [_docker_silent(done, node)]
    return dict(ABSENT), []


def _docker_silent(done: Completed, node: str) -> Finding:
    return finding(
        "DOCKER_SILENT",
        node=node,
        found=f"docker exited {done.rc}",
        expected="the image, or word that there is none",
        evidence=done.stderr.splitlines()[-5:],
    )


def unavailable(reference: str, digest: str | None, node: str, evidence: Sequence[str] = ()) -> Finding:
    repository = split(reference)[0]
    pull = f"On one node: docker pull {repository}@{digest}" if digest else f"On one node: docker pull {reference}"
    return finding(
        "IMAGE_UNAVAILABLE",
        node=node,
        found=f"{reference} is on no node of the cluster",
        expected="the image on at least one node, or a pinned digest that a registry answers for",
        evidence=evidence,
        get=f"{pull} (or docker load of a saved one), then repeat the command: the other nodes get it from there.",
    )


def judge(reference: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], node: str, source: str) -> Finding:
    """The verdict on this node's image against the source's."""
    if same(mine, theirs):
        how = (
            "registry digest"
            if set(mine["digests"]) & set(theirs["digests"])
            else "layers, configuration and architecture"
        )
        return finding(
            "IMAGE_VERIFIED",
            node=node,
            found=f"{reference}: the same {how} as on {source}",
            expected="the image of the source",
        )
    differing = [
        f"{name}: {_short(mine[name])} here, {_short(theirs[name])} on {source}"
        for name in ("architecture", "layers", "content", "digests")
        if mine[name] != theirs[name]
    ]
    return finding(
        "IMAGE_DIFFERS",
        node=node,
        found=f"{reference} is another image than on {source}"
        if mine["present"]
        else f"{reference} is not there after the copy",
        expected="the same registry digest, or the same layers, configuration and architecture",
        evidence=differing,
        reference=local_name(reference),
        source=source,
    )


def decide(
    reference: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], node: str, source: str
) -> tuple[bool, list[Finding]]:
    """Whether this node has to get the image from ``source``, and the proof where it has not.

    The source lacks it only in check mode, where a pull was predicted.
    """
    if not theirs["present"]:
        return node != source, []
    if node == source or same(mine, theirs):
        return False, [judge(reference, mine, theirs, node, source)]
    return True, []


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} ({', '.join(str(item)[:19] for item in value[-2:])})"
    return str(value)[:19]


# Answers to a peer


def answer_inspect(arguments: Sequence[str], runner: Run = run) -> int:
    """``image-inspect REFERENCE``: what this node has, as JSON."""
    found, findings = inspect(_one_reference(arguments), "peer", runner)
    for item in findings:
        print("\n".join([item.found, *item.evidence]), file=sys.stderr)
    print(json.dumps(found, sort_keys=True))
    return 1 if findings else 0


def answer_load(arguments: Sequence[str]) -> int:
    """``image-load NAME:TAG``: docker load of what comes in; the image then has that name here."""
    name = _one_reference(arguments)
    if split(name)[1] is None or split(name)[2] is not None:
        raise RefusedError("image-load takes NAME:TAG")
    done = subprocess.run(["docker", "load"], stdout=subprocess.PIPE, check=False)
    text = done.stdout.decode("utf-8", "backslashreplace")
    sys.stdout.write(text)
    if done.returncode != 0:
        return done.returncode
    loaded = _LOADED.findall(text)
    if name not in loaded and loaded:
        tagged = run(["docker", "tag", "--", loaded[-1], name])
        sys.stderr.write(tagged.stderr)
        return tagged.rc
    return 0


def _one_reference(arguments: Sequence[str]) -> str:
    if len(arguments) != 1 or not IMAGE_REFERENCE.fullmatch(arguments[0]):
        raise RefusedError("one reference of an image is wanted, and nothing else")
    return arguments[0]


# Jobs


def _ask(address: str, reference: str, runner: Run = run) -> tuple[dict[str, Any] | None, Outcome]:
    done = runner([*ssh_argv(address), f"image-inspect {reference}"], timeout_s=120)
    outcome = Outcome(done.rc, 0, done.duration_s, [line for line in done.stderr.splitlines() if line.strip()][-8:])
    if not done.ok:
        return None, outcome
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return None, Outcome(done.rc or 1, said=[f"not an answer of ours: {done.stdout[:200]!r}"])
    return answer, outcome


def push_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Bring ``reference`` to ``node`` at ``addresses``, unless it has the same image already."""
    reference, target = str(spec["reference"]), str(spec["node"])
    mine, findings = inspect(reference, job.node)
    if findings:
        raise JobFailedError(*findings)
    if not mine["present"]:
        raise JobFailedError(unavailable(reference, None, job.node))
    name = local_name(reference)
    if (
        name != mine["name"]
        and run(["docker", "image", "inspect", "--format", "{{.Id}}", "--", name]).stdout.strip() != mine["id"]
    ):
        run(["docker", "tag", "--", mine["id"], name], check=True)
    last: dict[str, Any] = {}
    sent = 0

    def attempt(address: str) -> Finding | None:
        nonlocal last, sent
        answer, outcome = _ask(address, reference)
        if answer is None:
            return explain(outcome, node=job.node, target=target, address=address, path="/var/lib/docker")
        last = answer
        if same(mine, answer):
            return None
        job.stage(f"sends {name} to {target}", mine["size_bytes"])
        began = time.monotonic()
        saved, loaded = pump(
            ["docker", "save", name],
            [*ssh_argv(address, cipher=COPY_CIPHER), f"image-load {name}"],
            job.at,
            lambda: job.stage(f"{target} unpacks {name}"),
        )
        if loaded.rc != 0:
            return explain(loaded, node=job.node, target=target, address=address, path="/var/lib/docker")
        if saved.rc != 0:
            return explain(saved, node=job.node, target=job.node, address="this node", path="/var/lib/docker")
        sent = loaded.moved
        job.measure(image_copy_bytes=sent, image_copy_s=round(time.monotonic() - began, 3), image_copy_address=address)
        answer, outcome = _ask(address, reference)
        if answer is None:
            return explain(outcome, node=job.node, target=target, address=address, path="/var/lib/docker")
        last = answer
        return None

    failure = over_rails([str(a) for a in spec["addresses"]], attempt, job.note, node=job.node, target=target)
    if failure:
        raise JobFailedError(failure)
    job.note(judge(reference, last, mine, target, job.node))
    return {"changed": sent > 0, "bytes": sent, "image": last}


def pull_job(spec: Mapping[str, Any], job: Reporter) -> dict[str, Any]:
    """Pull ``reference`` by its ``digest``; a tag alone is never pulled."""
    reference, digest = str(spec["reference"]), str(spec["digest"])
    pinned = f"{split(reference)[0]}@{digest}"
    if split(pinned)[2] is None:
        raise ValueError(f"{pinned} has no digest")
    job.stage(f"pulls {pinned}")
    began = time.monotonic()
    done = run(["docker", "pull", "--quiet", pinned], timeout_s=24 * 3600)
    if not done.ok:
        outcome = Outcome(done.rc, said=done.stderr.splitlines()[-8:])
        if "no space left on device" in done.stderr.lower():
            raise JobFailedError(
                explain(outcome, node=job.node, target=job.node, address="this node", path="/var/lib/docker")
            )
        raise JobFailedError(unavailable(reference, digest, job.node, outcome.said))
    run(["docker", "tag", pinned, local_name(reference)], check=True)
    job.measure(image_pull_s=round(time.monotonic() - began, 3))
    found, findings = inspect(reference, job.node)
    if findings or not found["present"]:
        raise JobFailedError(*findings or [unavailable(reference, digest, job.node)])
    return {"changed": True, "image": found}
