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
    Code(
        "RESET_DONE",
        "ok",
        "What this project changed on the node is back as it was",
        "The undo journal was replayed backwards, and what the node has now was compared with what was recorded before "
        "each change.",
        "None needed.",
    ),
    Code(
        "RESET_SERVING",
        "fatal",
        "A rank serves, and the reset would take it away",
        "Nothing was changed.",
        "Stop the model first: ansible-playbook cluster-down.yml. To have the reset do it: "
        "ansible-playbook reset.yml -e reset_stop=true",
    ),
    Code(
        "RESET_EDITED",
        "warn",
        "A file was changed by somebody else after this project wrote it",
        "It is left as it is, and so is the record of what was there before, so that a later reset can go on.",
        "On {node}: keep what you need of {path}, then {cure} and run reset.yml again.",
    ),
    Code(
        "RESET_BACKUP_LOST",
        "warn",
        "The copy of what was there before is gone or damaged",
        "What cannot be put back exactly is not put back at all.",
        "On {node}: restore {path} from your own backup; this project's copy was {backup}.",
    ),
    Code(
        "RESET_FOREIGN",
        "warn",
        "A file that this project did not put there lies in one of its folders",
        "It is left where it is, and the folder with it.",
        "On {node}: move {path} to where you want it, then run reset.yml again.",
    ),
    Code(
        "RESET_KEPT",
        "note",
        "What was copied stays on the node",
        "Weights and images are large and harm nothing. The record of them goes with everything else.",
        "Leave it, or on {node}: {command} takes it away; -e {variable}=true would have done so in the reset.",
    ),
)
