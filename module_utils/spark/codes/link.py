"""Finding codes: GIDs, and what the link really carries."""

from __future__ import annotations

from .code import Code

_TRIED_IN_VAIN = (
    "queue pair count",
    "message size",
    "memlock",
    "MTU",
    "NCCL channels",
)

CODES: tuple[Code, ...] = (
    Code(
        "GID_MISSING",
        "fatal",
        "No RoCE v2 GID for a rail's IPv4 address",
        "RDMA between the nodes uses the entry that the kernel makes from the function's IPv4 address. Without it "
        "connecting fails with `Failed to modify QP to RTR`, which reads like a dead cable and is not one.",
        "On {node}: check that `ip -br address show {netdev}` has {address}, then run the play again.",
    ),
    Code(
        "GID_AMBIGUOUS",
        "fatal",
        "More than one RoCE v2 GID for a rail's IPv4 address",
        "Exactly one entry may match: a choice among several would be a guess.",
        "On {node}: find what else carries {address} (`ip -br address`, VLANs and bridges over {netdev} included) and "
        "remove it.",
    ),
    Code(
        "GID_NOT_APPLICABLE",
        "note",
        "No GIDs over TCP",
        "With fabric_transport: tcp no RDMA device is used, so there is nothing to resolve.",
        "None needed; on machines with RDMA devices set fabric_transport: rdma.",
    ),
    Code(
        "RDMA_DEVICE_MISSING",
        "fatal",
        "A function has no RDMA device",
        "The interface is there and the device that belongs to it is not: the RDMA driver is not loaded.",
        "On {node}: sudo modprobe mlx5_ib, then check `rdma link`.",
    ),
    Code(
        "LINK_OK",
        "ok",
        "The link carries what it should",
        "Streams on all rails ran together, by their stamps and by the counters, and their sum passed the threshold.",
        "None needed.",
    ),
    Code(
        "LINK_DEGRADED",
        "fatal",
        "The link is up at full speed and carries a tenth of it",
        "After a cable was plugged in or reseated, a Spark can stay in a state in which its ConnectX sends at 8 to 25 "
        "Gb/s while the link says 200 Gb/s, latency is normal and no counter shows a loss. No setting changes that.",
        "Reboot both Sparks and run the play again. If it stays: shut both down, pull their power for 30 seconds, and "
        "start them again.",
        _TRIED_IN_VAIN,
    ),
    Code(
        "LINK_SLOW",
        "fatal",
        "The link carries less than the threshold",
        "Both rails are similarly slow, and not in the way of the known degraded state.",
        "Check on both nodes that nothing else loads the link or the CPU, then run the play again. If this is what the "
        "machines can do, set link_check_min_gbps below {sum}.",
    ),
    Code(
        "LINK_RAIL_SLOW",
        "fatal",
        "One rail carries much less than the other",
        "Both rails share cable and port, so a difference this large lies with one function, its PCIe link, or what "
        "shapes its traffic.",
        "On {node} and its peer: compare `sudo lspci -vv` (LnkSta of both functions) and `tc qdisc show dev {netdev}`, "
        "then reboot both.",
    ),
    Code(
        "LINK_NO_OVERLAP",
        "fatal",
        "The streams did not run at the same time",
        "One after the other each stream gets a function's own limit, and the sum of two such runs passes on a pair "
        "that cannot do it. Without overlap the numbers prove nothing. The clients' stamps and the counters of all "
        "functions have to agree, because a client can run and wait. It was tried twice: a busy host may start one "
        "client late once.",
        "Look for what holds back the client of rail {rail} on {node}.",
    ),
    Code(
        "LINK_COUNTERS_SILENT",
        "warn",
        "No counter shows when the streams ran",
        "That they ran together is then known from the clients' own stamps only: a client that ran and waited would "
        "not be seen.",
        "On {node}: look for a firmware or driver that does not count, `rdma statistic show link`.",
    ),
    Code(
        "LINK_NOT_SENDING",
        "fatal",
        "The host sends less than the link would take",
        "The sender's byte counters of the wire agree with the rate, and neither end discarded anything: what is "
        "missing was never sent. That leaves the host, not the cable: another load, its PCIe link, or a state that a "
        "reboot cures.",
        "Check on both nodes that nothing else loads the link or the CPU, then reboot both and run the play again. If "
        "this is what the machines can do, set link_check_min_gbps below {sum}.",
        _TRIED_IN_VAIN,
    ),
    Code(
        "LINK_DROPPING",
        "fatal",
        "Bytes are sent and dropped on the way",
        "Discards at the sending end mean that what the host handed over did not reach the wire; at the receiving end, "
        "that it arrived and found no room. It is a warning only where the link carries enough all the same.",
        "On {node}: compare `ethtool -a {netdev}` with its peer's (pause must be equal) and stop what else loads "
        "{netdev}, then run the play again.",
    ),
    Code(
        "LINK_CABLE_ERRORS",
        "fatal",
        "The cable makes errors that are not corrected",
        "Forward error correction repairs bits on every healthy cable, and those never count. Symbol and checksum "
        "errors are what it could not repair: packets are lost. It is a warning only where the link carries enough all "
        "the same.",
        "Reseat the QSFP cable of {netdev} at both ends and run the play again. If the counter still moves, replace "
        "the cable.",
    ),
    Code(
        "LINK_BOTH_WAYS_SLOW",
        "warn",
        "Half the rate when both directions are loaded",
        "Each direction passes alone, and both at once reach about half of what a healthy pair does. Collectives load "
        "both directions. It has been reported of single machines only, so it is a warning; where both ways together "
        "carry less than one way alone has to (link_check_min_gbps), it stops the play.",
        "Reboot both Sparks and run the play again. If it stays: shut both down, pull their power for 30 seconds, and "
        "start them again.",
    ),
    Code(
        "LINK_PCIE_SLOW",
        "fatal",
        "A function's PCIe link is narrow or slow",
        "A rail needs four lanes of PCIe 5. Width x2 was seen with old firmware, 2.5 GT/s after a link that did not "
        "train.",
        "On {node}: shut down, pull the power for 30 seconds, start again, and check `sudo lspci -s {address} -vv`. If "
        "LnkSta is still low, update the firmware: sudo fwupdmgr update",
    ),
    Code(
        "LINK_SPEED_LOW",
        "warn",
        "The link negotiated less than 200 Gb/s",
        "A cable or a switch port for less. What the link really carries decides.",
        "On {node}: check `sudo ethtool {netdev}`, and use a cable and port for 200 Gb/s.",
    ),
    Code(
        "LINK_CABLE_UNKNOWN",
        "note",
        "A cable that is not on the vendor's list",
        "Cables of other makers reach the full rate too; what the link carries decides.",
        "None needed.",
    ),
    Code(
        "LINK_REPLUGGED",
        "note",
        "A cable was moved since boot",
        "Plugging a cable in or reseating it is the known beginning of the degraded state, which a reboot cures.",
        "None needed while the link carries its rate.",
    ),
    Code(
        "LINK_LATENCY_UNKNOWN",
        "note",
        "The round trip could not be measured",
        "It is recorded and decides nothing: a normal one says nothing about what a link carries.",
        "None needed.",
    ),
    Code(
        "LINK_HALF",
        "warn",
        "Measured over one rail: half the bandwidth",
        "The cluster has one rail, so one stream was run and judged against half of the threshold.",
        "Give both functions to the fabric to get the other half.",
    ),
    Code(
        "LINK_POWER_LINE",
        "note",
        "The kernel mentions insufficient slot power",
        "`Detected insufficient power on the PCIe slot (27W)` is printed on healthy Sparks too.",
        "None needed.",
    ),
    Code(
        "LINK_NOT_LOADED",
        "note",
        "A rank is serving, so the link was not loaded",
        "A measurement would take the bandwidth from the model that is being served.",
        "To measure: ansible-playbook cluster-down.yml, then site.yml.",
    ),
    Code(
        "LINK_LISTENER_STALE",
        "note",
        "A listener of an earlier run was still there",
        "It would have ended by itself. It was stopped, because a client would have been served by the wrong run.",
        "None needed.",
    ),
    Code(
        "LINK_PORT_BUSY",
        "fatal",
        "A port of the link check is taken by something else",
        "The listener cannot start, and a client would talk to another program.",
        "Stop {process} on {node}, or choose other ports with link_check_ports.",
    ),
    Code(
        "LINK_NO_LISTENER",
        "fatal",
        "The peer's listener did not answer",
        "The address answers or not, but nothing accepts on the port: the listener did not start, has ended, or a "
        "packet filter refuses it.",
        "On {peer}: sudo ss -ltnp 'sport = :{port}' while the play runs, and look for a packet filter on {netdev}.",
    ),
    Code(
        "LINK_LISTENER_FAILED",
        "fatal",
        "A listener did not start",
        "The program that receives ended before anything connected; its message is in the evidence.",
        "Repair what the message names on {node}, then run the play again.",
    ),
    Code(
        "LINK_DEVICE_NOT_FOUND",
        "fatal",
        "The RDMA device of a rail does not exist",
        "Device names come from the plan; this one is gone or was renamed since the facts were read.",
        "On {node}: rdma link show; then run the play again.",
    ),
    Code(
        "LINK_PORT_DOWN",
        "fatal",
        "The RDMA device's port is not active",
        "The device exists and its port has no link.",
        "Reseat the QSFP cable of {netdev} at both ends.",
    ),
    Code(
        "LINK_GID_UNUSABLE",
        "fatal",
        "A queue pair cannot reach its peer",
        "`Failed to modify QP to RTR`: the GID's slot is empty at one end or the interface has no IPv4 address there. "
        "It reads like a dead NIC or cable and means addressing.",
        "Compare `ip -br address show {netdev}` on both nodes with the plan, then run the play again.",
    ),
    Code(
        "LINK_GID_FAMILY",
        "fatal",
        "The ends use GIDs of different families",
        "One end used an IPv4 GID and the other one a link-local one.",
        "Run the play again: each end's GID is read anew from sysfs. If it stays, compare both GID tables.",
    ),
    Code(
        "LINK_GID_RANGE",
        "fatal",
        "The GID index does not exist",
        "The index is outside of the device's table.",
        "Run the play again: the index is read anew from sysfs.",
    ),
    Code(
        "LINK_WRONG_PEER",
        "fatal",
        "Something else answers on the port, or another perftest",
        "The same message is printed for a perftest before 5.70 and for any other program that accepts the connection.",
        "Compare `ib_write_bw --version` on both nodes, and look what listens on port {port} of {peer}: sudo ss -ltnp.",
    ),
    Code(
        "LINK_TRANSFER_FAILED",
        "fatal",
        "Connected, and the transfer failed",
        "The queue pairs were set up and a transfer ended with an error.",
        "Run the play again; if it stays, look at `dmesg` on both nodes for {netdev}, and reboot both if nothing "
        "explains it.",
    ),
    Code(
        "LINK_PEER_LOST",
        "fatal",
        "The other end went away during the run",
        "The peer's program or its network ended before the run did.",
        "Look on {peer} whether its listener was killed or its link fell: sudo journalctl -u spark-link -n 20; ip -br "
        "link show {netdev}",
    ),
    Code(
        "LINK_MEMLOCK",
        "fatal",
        "The device could not register memory",
        "Either the limit on locked memory or the kernel's own memory for it.",
        "On {node}: ulimit -l must say unlimited for root. If it does and the kernel is 7.0.0-1019, boot with kho=off.",
    ),
    Code(
        "LINK_TOOL_MISSING",
        "fatal",
        "ib_write_bw is not installed",
        "The bandwidth of an RDMA link is measured with perftest.",
        "On {node}: sudo apt-get install perftest",
    ),
    Code(
        "LINK_OPTION_UNKNOWN",
        "fatal",
        "This perftest does not know an option",
        "The options in use exist since version 4.5.",
        "On {node}: sudo apt-get install --only-upgrade perftest",
    ),
    Code(
        "LINK_TIMED_OUT",
        "fatal",
        "A run did not end within its limit",
        "A stream that neither ends nor fails is a link that stopped carrying.",
        "Look at `ip -s link show {netdev}` on both nodes for errors and check the carrier, then run the play again.",
    ),
)
