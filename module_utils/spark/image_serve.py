"""The source's side of an image's way between nodes: ``image-serve``, asked over ssh, answers until its input ends.

A question is one line of JSON, an answer one line of JSON and the number of bytes that it announces. One connection
serves many layers, as a new one costs more than a small layer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from . import image_store
from .image_daemon import Daemon, DaemonError, Store
from .image_store import Described, StoreError
from .images import find, here
from .peer import IMAGE_REFERENCE, RefusedError

_LINE_LIMIT = 4096
_CUT_SHORT_RC = 3
API_WITH_PLATFORM = (1, 48)


class CutShortError(Exception):
    """A layer that could be read at first and then could not."""


def answer_serve(arguments: Sequence[str]) -> int:
    """``image-serve REFERENCE``: description and layers of one image, for as long as somebody asks."""
    if len(arguments) != 1 or not IMAGE_REFERENCE.fullmatch(arguments[0]):
        raise RefusedError("one reference of an image is wanted, and nothing else")
    try:
        return serve(arguments[0], Daemon(), sys.stdin.buffer, sys.stdout.buffer)
    except CutShortError as error:
        print(f"the layer cannot be read to its end: {error}", file=sys.stderr)
        return _CUT_SHORT_RC


def serve(reference: str, daemon: Daemon, questions: IO[bytes], answers: IO[bytes]) -> int:
    store: Store | None = None
    described: Described | None = None
    while line := questions.readline(_LINE_LIMIT):
        try:
            question = json.loads(line)
            store = store or daemon.store()
            known = find(reference, daemon.image)
            image = daemon.image(str(known["name"])) if known else None
            if known is None or image is None:
                raise DaemonError(404, f"{reference} is not here any more")
            if question["ask"] == "save":
                return _save(str(known["name"]), daemon, answers)
            if question["ask"] == "describe":
                described = image_store.describe(store, image, sizes=bool(question.get("sizes")))
                _answer(answers, json.dumps(_said(described, store, daemon, image)).encode())
            elif question["ask"] == "layer":
                described = described or image_store.describe(store, image)
                size, read = image_store.open_layer(store, described, str(question["digest"]))
                _layer(answers, size, int(question.get("offset") or 0), read)
            else:
                raise RefusedError(f"no question {question['ask']!r}")
        except (StoreError, DaemonError) as error:
            _refuse(answers, "store" if isinstance(error, StoreError) else "daemon", str(error))
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(f"not a question of ours: {error!r}") from error
    return 0


def _said(described: Described, store: Store, daemon: Daemon, image: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "described": described.as_data(),
        "store": store.kind,
        "identity": here(image),
        "disk_bytes": daemon.disk_bytes(str(image["Id"])) or int(image.get("Size") or 0),
    }


def _answer(answers: IO[bytes], body: bytes) -> None:
    answers.write(json.dumps({"ok": True, "bytes": len(body)}).encode() + b"\n" + body)
    answers.flush()


def _refuse(answers: IO[bytes], kind: str, text: str) -> None:
    answers.write(json.dumps({"ok": False, "kind": kind, "error": text}).encode() + b"\n")
    answers.flush()


def _layer(answers: IO[bytes], size: int, offset: int, read: Any) -> None:
    if not 0 <= offset <= size:
        raise StoreError(f"the layer has {size} bytes and none at {offset}")
    blocks: Iterator[bytes] = read(offset)
    # The first block before the word that all is well: a layer that cannot be read is then refused in words.
    first = next(blocks, b"")
    answers.write(json.dumps({"ok": True, "bytes": size - offset}).encode() + b"\n")
    answers.write(first)
    try:
        for block in blocks:
            answers.write(block)
    except StoreError as error:
        # Words would be taken for bytes of the layer from here on; only the end of the connection is understood.
        raise CutShortError(str(error)) from error
    answers.flush()


def _save(reference: str, daemon: Daemon, answers: IO[bytes]) -> int:
    """The whole image by Docker's own hand, up to the end of the connection."""
    argv = ["docker", "save", *platform_option(daemon), reference]
    answers.write(json.dumps({"ok": True, "bytes": -1}).encode() + b"\n")
    answers.flush()
    return subprocess.run(argv, stdout=answers.fileno(), check=False).returncode


def platform_option(daemon: Daemon) -> list[str]:
    """Of an image for several machines only one may be here, and ``docker save`` has to be told which, if it can be."""
    status, version = daemon.ask("GET", "/version")
    if status >= 300:
        return []
    api = tuple(int(part) for part in str(version.get("ApiVersion") or "0").split(".") if part.isdecimal())
    return [f"--platform={version['Os']}/{version['Arch']}"] if api >= API_WITH_PLATFORM else []
