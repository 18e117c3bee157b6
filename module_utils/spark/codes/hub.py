"""Finding codes: weights from the hub."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "HUB_FETCHED",
        "ok",
        "The weights were fetched from the hub",
        "The hub's own client fetched the pinned revision inside the serving image. Sizes are the client's check; "
        "hashes are read afterwards as for every other copy.",
        "",
    ),
    Code(
        "HUB_REVISION_FLOATS",
        "warn",
        "The recipe pins no commit of the weights",
        "A branch can be moved. What was fetched is the commit that it pointed to today.",
        "In the recipe: weights.revision: {commit}",
    ),
    Code(
        "HUB_DENIED",
        "fatal",
        "The hub does not give these weights to this login",
        "The repository is private, or gated: its owner asks everybody to accept terms first. The hub answers 401 or "
        "403, and to an unknown login for a repository that does not exist as well.",
        "Accept the terms at {page} with your account, write a token of it into a file that only root can read on "
        "{node}, and name that file in hub_token_file.",
    ),
    Code(
        "HUB_NO_SUCH_REPOSITORY",
        "fatal",
        "The hub has no such repository",
        "The hub answered 404 for the repository.",
        "Look at {page}; weights.repository of the recipe names it.",
    ),
    Code(
        "HUB_NO_SUCH_REVISION",
        "fatal",
        "The repository has no such revision",
        "The repository is there, and the commit, branch or tag that the recipe names is not.",
        "Look at {page}/commits/main; weights.revision of the recipe names it.",
    ),
    Code(
        "HUB_UNREACHABLE",
        "fatal",
        "The hub does not answer",
        "No connection from this node came about, or it broke and did not come back in several tries. What was fetched "
        "is kept, and the next run goes on from there.",
        "On {node}: curl -sSI {endpoint}; behind a mirror, set hub_endpoint. Then repeat the command. Without a way "
        "out, fetch them elsewhere and copy the folder to {path}.",
    ),
    Code(
        "HUB_STALLED",
        "fatal",
        "The download stopped moving",
        "Neither a byte nor a word came for a while, in several tries.",
        "Repeat the command: what was fetched is kept.",
        ("longer time limits",),
    ),
    Code(
        "HUB_CLIENT_MISSING",
        "fatal",
        "The image cannot fetch weights",
        "The download runs inside the serving image with the hub's own client, and this image has no huggingface_hub "
        "that its Python can import.",
        "Fetch them with any other client: {command}",
    ),
    Code(
        "HUB_FOLDER_CLOSED",
        "fatal",
        "The folder of weights cannot be written",
        "The download runs as the owner of the models' folder, and that user may not write there.",
        "On {node}: ls -ld {path} and its parents, and give them to the user who owns the models.",
    ),
)
