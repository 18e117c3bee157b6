"""Finding codes: a change of the network on trial, and taking back what was changed."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "FABRIC_MTU_NOT_CARRIED",
        "fatal",
        "Frames of the planned MTU do not pass",
        "Pings that fill the MTU and may not be fragmented were sent to every peer on every rail, from both ends. "
        "Connections that work with small frames would hang with large ones, so the change goes back.",
        "Leave fabric_mtu at 1500: a stream reaches 92 Gb/s with it and 98 with 9000. For {mtu}, every device between "
        "the nodes has to carry it on both rails.",
    ),
    Code(
        "FABRIC_MANAGEMENT_LOST",
        "fatal",
        "The path of your own connection changed",
        "While the change was watched, the interface by which you are connected lost its address, its carrier or its "
        "route. What was changed goes back by itself.",
        "On {node}: find what else manages that interface (`nmcli device`, `networkctl`), then run the play again.",
    ),
)
