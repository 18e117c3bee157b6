"""Finding codes: container images."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "IMAGE_VERIFIED",
        "ok",
        "The image is the same on this node",
        "The same registry digest, or the same layers, configuration and architecture.",
        "",
    ),
    Code(
        "IMAGE_UNAVAILABLE",
        "fatal",
        "The image is on no node and could not be had",
        "An image is pulled only by a pinned digest, and copied from a node that has it otherwise.",
        "{get}",
    ),
    Code(
        "IMAGE_DIFFERS",
        "fatal",
        "The image is not the same after the copy",
        "Ranks of one model must run the same bytes. The image on this node has other layers, another "
        "configuration or another architecture.",
        "On {node}: docker image inspect {reference}, and compare with {source}; then remove the wrong one "
        "(docker image rm {reference}) and repeat the command.",
    ),
    Code(
        "IMAGE_DIGEST_UNPROVEN",
        "warn",
        "Nothing shows that the image is the pinned one",
        "An image that was loaded from an archive has no registry digest on Docker's classic store. It bears the tag "
        "that the recipe names beside the digest, and a tag can be moved.",
        "On a node that reaches the registry: docker pull {pinned}; the nodes are then compared with that one.",
    ),
    Code(
        "IMAGE_DISK_TOO_SMALL",
        "fatal",
        "The image does not fit on the disk",
        "Docker needs room for what arrives and for what it unpacks to, at the same time. The sum is made before "
        "anything is sent.",
        "On {node}: free {missing} below {path} (sudo docker system df; sudo docker image prune -a removes what no "
        "container uses), then repeat the command.",
    ),
    Code(
        "IMAGE_LAYER_DAMAGED",
        "fatal",
        "A layer does not have the hash that names it",
        "Docker checks each layer as it arrives. One of them had other bytes: a damaged disk or memory on the source, "
        "or a store that something wrote into.",
        "On {source}: sudo docker image rm {reference}, pull or load it again, then repeat the command.",
        ("repeating the copy from the same store",),
    ),
    Code(
        "IMAGE_SAVED_WHOLE",
        "note",
        "The image was copied by docker save and docker load",
        "The layers could not be read from the store of the source: another storage driver than overlay2, or a store "
        "that dropped them after unpacking. The slow way needs none of that, sends every layer, and docker save stages "
        "them all in Docker's folder on the source first.",
        "",
    ),
    Code(
        "DOCKER_SILENT",
        "fatal",
        "Docker does not answer",
        "The daemon did not answer, or refused.",
        "On {node}: sudo systemctl status docker --no-pager; sudo journalctl -u docker -n 30",
    ),
)
