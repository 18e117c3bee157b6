"""What runs inside the serving image to fetch weights: the hub's own client, asked for one pinned revision.

It is read from standard input by the image's Python and imports nothing of ours. It says what it does in lines of JSON
behind a mark, as the client prints what it likes.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from typing import Any

MARK = "SPARK-HUB "

# The first name that fits, from the error's class outward and along its causes.
KINDS = (
    ("GatedRepoError", "gated"),
    ("RevisionNotFoundError", "revision"),
    ("RepositoryNotFoundError", "repository"),
    ("OfflineModeIsEnabled", "network"),
    ("LocalEntryNotFoundError", "network"),
    ("ConnectionError", "network"),
    ("ConnectError", "network"),
    ("ConnectTimeout", "network"),
    ("ReadTimeout", "network"),
    ("Timeout", "network"),
    ("ReadError", "network"),
    ("RemoteProtocolError", "network"),
    ("ChunkedEncodingError", "network"),
)
STATUSES = {401: "denied", 403: "gated", 404: "repository"}


def kind_of(error: BaseException) -> str:
    """Which of the known causes it is, "unknown" for none of them."""
    seen: BaseException | None = error
    found: list[str] = []
    while seen is not None and len(found) < 10:
        status = getattr(getattr(seen, "response", None), "status_code", None)
        names = [cls.__name__ for cls in type(seen).__mro__]
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return "full"
        if isinstance(seen, OSError) and seen.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return "permission"
        named = next((kind for name, kind in KINDS if name in names), None)
        if named == "repository" and status == 401:
            named = "denied"
        found.append(named or STATUSES.get(status or 0, ""))
        seen = seen.__cause__ or seen.__context__
    # A client that gave up for want of an answer names the network around what the hub really said.
    known = sorted((kind for kind in found if kind), key=lambda kind: kind == "network")
    return known[0] if known else "unknown"


def say(**words: Any) -> None:
    print(MARK + json.dumps(words), flush=True)


def main(arguments: list[str]) -> int:
    spec = json.loads(arguments[0])
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        say(error="client", text=str(error))
        return 1
    try:
        told = hub.HfApi().model_info(spec["repository"], revision=spec["revision"], files_metadata=True)
        sizes = [int(item.size or 0) for item in told.siblings or ()]
        say(commit=told.sha, files=len(sizes), total_bytes=sum(sizes), client=hub.__version__)
        where = {spec["layout"]: spec["folder"]}
        hub.snapshot_download(spec["repository"], revision=told.sha, max_workers=int(spec["workers"]), **where)
    except Exception as error:
        said = " ".join(str(error).split())[:600]
        say(error=kind_of(error), text=f"{type(error).__name__}: {said}")
        return 1
    say(done=True, commit=told.sha)
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
