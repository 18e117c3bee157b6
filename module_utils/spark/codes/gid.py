"""Finding codes: GIDs between plan and start, and what could overrule them."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "GID_OUTSIDE_RANGE",
        "fatal",
        "NCCL's rule would not take the GID of a rail's address",
        "NCCL begins with index 0 and leaves it only for an IPv4 entry inside NCCL_IB_ADDR_RANGE. For a device outside "
        "the range it uses index 0 without a word, which reaches nobody.",
        "Give {device} on {node} an address inside {range}, or take {netdev} out of the fabric with fabric_netdevs.",
    ),
    Code(
        "GID_DRIFTED",
        "note",
        "A GID's index changed between plan and start",
        "The kernel renumbers the entries whenever an address comes or goes, an IPv6 one included. Every start looks "
        "them up anew and uses what it finds.",
        "None needed.",
    ),
    Code(
        "IMAGE_VARIABLES_OVERRULED",
        "note",
        "The image's own fabric variables do not reach the engine",
        "Some images have devices, addresses or transports of other machines baked in. The plan's values are given by "
        "name; a name that the plan does not use is taken out of the container's environment.",
        "None needed.",
    ),
)
