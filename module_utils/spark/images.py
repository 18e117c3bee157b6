"""Container images: which one a node has, whether two nodes have the same, and how one gets it from the other.

An image is told by its registry digest, and where that was lost on the way or never was, by its layers, configuration
and architecture. The ``Id`` decides nothing: Docker's two stores name the same image differently.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .findings import Finding, finding
from .peer import IMAGE_REFERENCE

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
PROOFS = Path("/var/lib/spark-cluster/images")


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
    # The digest of an index is that of every platform in it.
    platforms = {one["architecture"], other["architecture"]} - {""}
    if len(platforms) > 1:
        return False
    return bool(set(one["digests"]) & set(other["digests"])) or one["content"] == other["content"]


# What a node has


def remember(content: str, digest: str, root: Path | None = None) -> None:
    """Note for good that the image of this content has this registry digest: it was compared with one that has."""
    root = root or PROOFS
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    known = sorted({*proven(content, root), digest})
    fresh = root / f".{content}.{os.getpid()}"
    fresh.write_text(json.dumps({"content": content, "digests": known}))
    os.replace(fresh, root / f"{content}.json")


def proven(content: str, root: Path | None = None) -> list[str]:
    """Digests that were proven of an image of this content whose store could not keep them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(((root or PROOFS) / f"{content}.json").read_text())
        if data["content"] == content:
            return [str(item) for item in data["digests"]]
    return []


def here(data: Mapping[str, Any], root: Path | None = None) -> dict[str, Any]:
    """The identity of an image on this node, with the digests that a copy proved."""
    found = identity(data)
    return found | {"digests": sorted({*found["digests"], *proven(found["content"], root)})}


def find(
    reference: str, image_of: Callable[[str], Mapping[str, Any] | None], root: Path | None = None
) -> dict[str, Any] | None:
    """The image that this node has for ``reference``, None for none.

    A pinned one may be there under its local name only, as a copy between nodes loses the registry digest on the
    classic store. It counts where its digest was proven, and where its store knows none that would contradict.
    """
    data = image_of(reference)
    if data:
        return here(data, root) | {"name": reference}
    name, digest = local_name(reference), split(reference)[2]
    data = image_of(name) if name != reference else None
    if not data:
        return None
    found = here(data, root) | {"name": name}
    return found if digest is None or digest in found["digests"] or not found["digests"] else None


def pulled(pinned: str, name: str, image_of: Callable[[str], Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What a pull brought, under the name by which every node has it."""
    data = image_of(pinned) or image_of(name)
    return here(data) | {"name": name} if data else None


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


def unproven(reference: str, image: Mapping[str, Any], node: str) -> Finding | None:
    """A pinned image that is there by its tag, with nothing that shows the digest."""
    repository, _tag, digest = split(reference)
    if not image["present"] or digest is None or digest in image["digests"]:
        return None
    return finding(
        "IMAGE_DIGEST_UNPROVEN",
        node=node,
        found=f"{image.get('name') or local_name(reference)} is there and has no registry digest",
        expected=digest,
        pinned=f"{repository}@{digest}",
    )


def registry_answer(reference: str, digest: str, asked: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the registry would give the image, in the words of this node's Docker."""
    try:
        said = asked(f"{split(reference)[0]}@{digest}")
    except Exception as error:
        return {"answers": False, "said": str(error)[:400]}
    offered = [f"{item.get('os')}/{item.get('architecture')}" for item in said.get("Platforms") or ()]
    return {"answers": True, "said": f"offers {', '.join(offered) or 'one image'}"}


def choose_source(
    reference: str, digest: str, node: str, looks: Mapping[str, Mapping[str, Any]]
) -> tuple[str, bool, list[Finding]]:
    """(source, whether it has to pull first, findings). A node whose digest is known goes before one that only has the
    tag; once over the internet is enough, so the others get it from the node that pulled.
    """
    having = [name for name, look in looks.items() if look["image"]["present"]]
    proved = [name for name in having if not digest or digest in looks[name]["image"]["digests"]]
    if having:
        return (proved or having)[0], False, []
    pulling = next((name for name, look in looks.items() if (look.get("registry") or {}).get("answers")), "")
    if pulling:
        return pulling, True, []
    said = [f"{name}: {look['registry']['said']}" for name, look in looks.items() if look.get("registry")]
    return "", False, [unavailable(reference, digest or None, node, said)]


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
