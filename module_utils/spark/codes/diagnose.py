"""Finding codes: what a diagnosis names as causes of a bad link."""

from __future__ import annotations

from .code import Code
from .link import CODES as LINK

_TRIED_IN_VAIN = next(code.no_help for code in LINK if code.code == "LINK_DEGRADED")

CODES: tuple[Code, ...] = (
    Code(
        "DIAGNOSIS_HEALTHY",
        "ok",
        "Nothing is wrong with the link",
        "Every run reached what it should, in both directions, on each node by itself and between them.",
        "None needed.",
    ),
    Code(
        "DIAGNOSIS_NOT_LOADED",
        "note",
        "A rank serves, so the link was read and not loaded",
        "Runs would take the bandwidth from the model that is being served. What can be read was read.",
        "To measure as well: ansible-playbook cluster-down.yml, then diagnose.yml.",
    ),
    Code(
        "CAUSE_NODE_SILENT",
        "fatal",
        "A node does not answer on its management address",
        "The controller could not log in, so nothing is known of that end. A VPN that fell back to a relay still "
        "answers ping while ssh times out.",
        "From a machine beside it: ssh {address}; if that hangs, look at its console.{way}",
    ),
    Code(
        "CAUSE_NO_FUNCTION",
        "fatal",
        "The ConnectX functions are not there",
        "Until a cable was plugged in once, and after some updates, the functions do not appear on the PCIe bus.",
        "On {node}: reseat the QSFP cable, wait ten seconds, look at `lspci -d 15b3:`; reboot the node if it is empty.",
    ),
    Code(
        "CAUSE_NO_CARRIER",
        "fatal",
        "A rail has no signal",
        "The function is switched on and sees no partner: the cable, its seat, or the other end being off.",
        "Reseat the QSFP cable at both ends; `cat /sys/class/net/{netdev}/carrier` on {node} must print 1. Then the "
        "other port, then another cable.",
    ),
    Code(
        "CAUSE_SWITCHED_OFF",
        "fatal",
        "A rail's function is switched off",
        "The interface is administratively down, which looks like a missing cable from the other end.",
        "Run ansible-playbook site.yml, or on {node}: sudo ip link set {netdev} up",
    ),
    Code(
        "CAUSE_NO_ADDRESS",
        "fatal",
        "A rail's address is not set",
        "Without an IPv4 address there is no RoCE v2 GID, and connecting fails with `Failed to modify QP to RTR`, "
        "which reads like a dead cable.",
        "Run ansible-playbook site.yml: it sets {address} on {netdev} of {node}.",
    ),
    Code(
        "CAUSE_NO_RDMA_DEVICE",
        "fatal",
        "A function has no RDMA device",
        "The interface works and its RDMA driver is not loaded.",
        "On {node}: sudo modprobe mlx5_ib, then `rdma link`.",
    ),
    Code(
        "CAUSE_NO_GID",
        "fatal",
        "A rail has no single RoCE v2 GID",
        "The address is set, and the device's table has no entry for it or several.",
        "On {node}: bring {netdev} down and up (sudo ip link set {netdev} down; sudo ip link set {netdev} up); the "
        "kernel builds the table anew.",
    ),
    Code(
        "CAUSE_PCIE_WIDTH",
        "fatal",
        "A function runs with too few PCIe lanes",
        "Each function has four lanes. Two are seen with old firmware, and halve that function.",
        "On {node}: update the firmware (sudo fwupdmgr update), shut down, pull the power for 30 seconds, start again.",
        ("cables", "MTU", "queue pairs"),
    ),
    Code(
        "CAUSE_PCIE_SPEED",
        "fatal",
        "A function's PCIe link fell back to a lower speed",
        "At 2.5 GT/s four lanes carry 8 Gb/s. The link was trained badly at power-on.",
        "On {node}: shut down, pull the power for 30 seconds, start again.",
        ("cables", "MTU", "queue pairs"),
    ),
    Code(
        "CAUSE_DEGRADED",
        "fatal",
        "A ConnectX is in the degraded state that follows plugging a cable",
        "The link says 200 Gb/s, PCIe and latency are normal, nothing is lost, and the chip sends at a tenth of its "
        "rate, to itself as well. No setting changes that.",
        "Reboot both Sparks and run diagnose.yml again. If it stays: shut both down, pull their power for 30 seconds, "
        "start again.",
        _TRIED_IN_VAIN,
    ),
    Code(
        "CAUSE_HALF_BOTH_WAYS",
        "fatal",
        "Half of the rate as soon as both directions carry",
        "A second degraded state: each direction alone reaches its rate, both at once share one.",
        "Shut both Sparks down, pull their power for 30 seconds, start again, and run diagnose.yml again.",
        _TRIED_IN_VAIN,
    ),
    Code(
        "CAUSE_HOST_SLOW",
        "fatal",
        "A node is slow within itself",
        "A loopback run never uses the cable. Slow there means the host: its PCIe link, its processor, or the chip.",
        "On {node}: look what uses the processor (`top`), then shut down, pull the power for 30 seconds, start again.",
        ("cables", "the other node's settings"),
    ),
    Code(
        "CAUSE_NOT_SENDING",
        "fatal",
        "The host does not send more",
        "What left the port is no more than what arrived, and nothing was dropped: the sender is the limit, not the "
        "path.",
        "Reboot {node}. If it stays, shut both nodes down and pull their power for 30 seconds.",
        _TRIED_IN_VAIN,
    ),
    Code(
        "CAUSE_DROPPING",
        "fatal",
        "Frames are sent and dropped",
        "Counters of lost frames rose during the runs.",
        "On {node}: look what loads the processor, and compare the MTU of {netdev} on both ends; then run diagnose.yml "
        "again.",
    ),
    Code(
        "CAUSE_CABLE",
        "fatal",
        "The cable delivers errors that correction could not repair",
        "Corrected bits are normal on copper; uncorrected symbols are not, and each costs a frame.",
        "Reseat the QSFP cable at both ends and run diagnose.yml again; if the counter still moves, replace the cable.",
        ("MTU", "queue pairs", "drivers"),
    ),
    Code(
        "CAUSE_LINK_FLAPS",
        "fatal",
        "The link goes down and up",
        "The carrier changed during the runs.",
        "Reseat the QSFP cable at both ends; if it goes on, use the other port, then another cable.",
    ),
    Code(
        "CAUSE_SPEED_LOW",
        "fatal",
        "The port negotiated less than 200 Gb/s",
        "Both ends agreed on a lower speed: a cable of another class, or a bad seat.",
        "Use a 200G or 400G QSFP cable; on {node} `ethtool {netdev}` must say Speed: 200000Mb/s.",
    ),
    Code(
        "CAUSE_MTU_DIFFERS",
        "fatal",
        "Frames of full size do not pass a rail",
        "Small pings pass and full ones do not, or the ends have different MTUs: transfers stall while ping says fine.",
        "Set fabric_mtu in the inventory to one value and run ansible-playbook site.yml.",
    ),
    Code(
        "CAUSE_ONE_RAIL",
        "warn",
        "One rail is in use: half of the bandwidth",
        "One QSFP port is two functions in two PCIe domains. A single one cannot pass about 112 Gb/s.",
        "Leave fabric_netdevs empty, or name both functions of the cabled port, then run ansible-playbook site.yml.",
    ),
    Code(
        "CAUSE_SHAPED",
        "fatal",
        "A traffic shaper sits on a rail",
        "A queue discipline bounds or drops what the function sends.",
        "On {node}: sudo tc qdisc del dev {netdev} root, and find what set it.",
    ),
    Code(
        "CAUSE_RAIL_SLOW",
        "fatal",
        "One rail is much slower than the other",
        "Both functions share cable and port, so the difference lies with one function or its PCIe slot.",
        "Shut {node} down, pull the power for 30 seconds, start again; compare `sudo lspci -vv` of both functions.",
    ),
    Code(
        "CAUSE_RDMA_ONLY",
        "fatal",
        "TCP passes at full rate and RDMA does not",
        "The path is good, so the fault lies with RDMA: memory registration, the driver, or the kernel.",
        "On {node}: `ulimit -l` of root must say unlimited; on kernel 7.0.0-1019 boot with kho=off; then compare the "
        "versions of both ends.",
        ("cables",),
    ),
    Code(
        "CAUSE_FILTER",
        "fatal",
        "A packet filter refuses the connection",
        "The peer answers ping and refuses connections, and a filter is active on it.",
        "On {node}: allow what comes from the fabric: sudo ufw allow in on {netdev}",
    ),
    Code(
        "CAUSE_TOOL_MISSING",
        "fatal",
        "perftest is not installed",
        "Without ib_write_bw no RDMA run was possible.",
        "On {node}: sudo apt-get install perftest",
    ),
    Code(
        "CAUSE_VERSIONS_DIFFER",
        "warn",
        "The two ends differ in version",
        "Kernel, driver and firmware belong together on both ends. A difference is a suspect, not a proof.",
        "Bring both nodes to the same versions, one machine at a time, and run diagnose.yml again.",
    ),
)
