"""Finding codes: the two CX-7 functions, their addresses, and netplan."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "FABRIC_FUNCTION_MISSING",
        "fatal",
        "No usable ConnectX function",
        "The node shows no ConnectX-7 function that could carry the fabric. They stay absent until a cable was "
        "plugged in once.",
        "On {node}: plug the QSFP cable into both Sparks, wait ten seconds, check `ls /sys/class/net`, then run the "
        "play again; "
        "if the functions carry other names, set fabric_netdevs for {node}.",
    ),
    Code(
        "FABRIC_HALF",
        "warn",
        "One rail of two: half the bandwidth",
        "One QSFP port is two functions in two PCIe domains, and a single one cannot pass about 112 Gb/s. With one "
        "rail the pair works at half.",
        "Give both functions of {node} to the fabric: leave fabric_netdevs empty, or name both twins of the cabled "
        "port.",
    ),
    Code(
        "FABRIC_TWIN_MISSING",
        "fatal",
        "One of the two functions of a port is missing",
        "A QSFP port is two functions in two PCIe domains. This node shows one of them, and with it half of the "
        "bandwidth.",
        "On {node}: `lspci -d 15b3:` should list both functions of the port; shut down, pull the power for 30 seconds, "
        "start again. "
        "To go on with half on purpose, set fabric_subnets: [{subnet}] for the cluster.",
    ),
    Code(
        "FABRIC_PORTS_MISMATCHED",
        "fatal",
        "Named functions of a rail are not on one cable",
        "Each node sent frames from its functions. Those that fabric_netdevs gives to a rail did not hear each other, "
        "and others did.",
        "Set fabric_netdevs to functions that hear each other: {names}. Or leave it empty, and they are found.",
    ),
    Code(
        "FABRIC_PORTS_UNMATCHED",
        "fatal",
        "The frames of the nodes did not meet on one cable or switch",
        "Each node sent frames from its functions and listened for those of the others. A rail needs a segment on "
        "which all nodes hear each other.",
        "Check where each QSFP cable ends, then run the play again. If the cables are right and something between the "
        "nodes drops frames of EtherType 0x88B5, name the functions of the cabled port: fabric_netdevs: [{example}]",
    ),
    Code(
        "FABRIC_SUBNETS_FOUND",
        "note",
        "The rails keep the addresses that they were found with",
        "The network between the nodes is right already and something lasting made it, so the plan takes over its "
        "addresses and leaves it as it is.",
        "None needed. To have the planned subnets instead, take the functions out of {sources}, or set fabric_subnets.",
    ),
    Code(
        "FABRIC_ARP_FLUX",
        "warn",
        "Twin functions answer ARP for each other",
        "Both functions of a port hear every ARP request. With arp_ignore 0 each answers for both addresses, so that a "
        "peer may send one rail's traffic to the other's MAC. This network was found like that and is left alone.",
        "On {node}: sudo sysctl -w {settings}; the same lines in a file of /etc/sysctl.d make it last.",
    ),
    Code(
        "FABRIC_ONE_SUBNET",
        "fatal",
        "Both functions of a node lie in one subnet",
        "Two interfaces in one subnet share one route: replies leave by the wrong function and one rail carries "
        "nothing.",
        "Give each rail its own subnet, as in fabric_subnets: [192.168.200.0/24, 192.168.201.0/24], and remove the "
        "addresses of "
        "{devices} on {node} from where they were configured.",
    ),
    Code(
        "FABRIC_SUBNET_OVERLAP",
        "fatal",
        "A rail's subnet is in use for something else",
        "A rail inside the management network or another route would take traffic that belongs there, the operator's "
        "connection included.",
        "Choose free subnets for this cluster, for example fabric_subnets: [{suggestion}].",
    ),
    Code(
        "FABRIC_FUNCTION_ENSLAVED",
        "fatal",
        "A function is part of a bond or a bridge",
        "Bonding or bridging the two functions breaks RDMA registration and the GID table.",
        "On {node}: remove {netdev} from {master} (it is declared in {where}), then run the play again.",
    ),
    Code(
        "FABRIC_LINK_DOWN",
        "fatal",
        "A rail has no carrier",
        "The function is switched on and the other end is too, yet there is no signal on the cable.",
        "On every other node: `ip -br link` must not say DOWN for this rail's function. Then reseat the QSFP cable "
        "at both "
        "ends until `cat /sys/class/net/{netdev}/carrier` on {node} prints 1; if that does not help, try the other "
        "port.",
    ),
    Code(
        "FABRIC_SWITCHED_OFF",
        "note",
        "A function is switched off",
        "Somebody, or nothing yet, has set the interface down: no cable can show a link there. Where addresses are set "
        "up the play switches it on; where they are already, nothing would.",
        "On {node}: {commands}",
    ),
    Code(
        "FABRIC_SPEED_LOW",
        "warn",
        "A function negotiated less than 200 Gb/s",
        "A Spark's port runs at 200 Gb/s with a suitable cable. A lower speed bounds the bandwidth; a full one does "
        "not prove it.",
        "On {node}: check the cable with `sudo ethtool -m {netdev}`, and that it is a 200G or 400G one.",
    ),
    Code(
        "FABRIC_ADDRESS_TAKEN",
        "fatal",
        "A rail's address is held elsewhere",
        "The address that the plan gives to one function is already set on another interface.",
        "Remove {address} from {netdev} on {holder}, or move the cluster with fabric_first_host or fabric_subnets.",
    ),
    Code(
        "FABRIC_ADDRESS_ANSWERED",
        "fatal",
        "Another host answers for a planned address",
        "An ARP probe for the address was answered on the fabric, by none of the functions that the plan gives it to. "
        "Two owners of one address take each other's traffic.",
        "Find the host with the MAC {mac} and take {address} from it, or move the cluster: fabric_first_host: "
        "{suggestion}",
    ),
    Code(
        "FABRIC_ADDRESS_MISSING",
        "fatal",
        "A rail's address did not come up",
        "The configuration was applied, but the function does not carry the planned address.",
        "On {node}: look at `networkctl status {netdev}` and `nmcli device show {netdev}`; without a carrier at the "
        "other end some "
        "renderers set no address.",
    ),
    Code(
        "FABRIC_MTU_DIFFERS",
        "fatal",
        "A function has another MTU than planned",
        "Both ends of a rail must agree on the MTU, or large frames vanish.",
        "On {node}: find what sets the MTU of {netdev} (`grep -rn mtu /etc/netplan`), or set fabric_mtu to what you "
        "want on all nodes.",
    ),
    Code(
        "FABRIC_RAIL_UNREACHABLE",
        "fatal",
        "A peer does not answer on a rail",
        "The peer's address on this rail did not answer from this function. The evidence tells a dead link from a "
        "missing address.",
        "Compare the evidence of both nodes: carrier 0 is the cable, an ARP entry that stays incomplete is the "
        "peer's address or a "
        "cable in another port, a complete one is a firewall. What was changed goes back by itself.",
    ),
    Code(
        "FABRIC_ROLLED_BACK",
        "fatal",
        "The network change was rolled back on the node",
        "The change was not confirmed in time, so the node put its own network back as it was.",
        "Look at the findings above for the reason, then run the play again; if the node is only slow, raise "
        "fabric_rollback_s.",
    ),
    Code(
        "FABRIC_ROLLBACK_NOT_ARMED",
        "fatal",
        "The rollback timer could not be started",
        "No network is changed without a timer on the node that changes it back. Nothing was changed.",
        "On {node}: find out why `systemd-run --on-active=60 true` fails, then run the play again.",
    ),
    Code(
        "FABRIC_BUSY",
        "fatal",
        "The network has to change while a rank serves",
        "Bringing the functions up anew would cut the ranks off from each other, so nothing was changed.",
        "Stop the model first: ansible-playbook cluster-down.yml, then run site.yml again.",
    ),
    Code(
        "FABRIC_ADOPTED",
        "note",
        "A network that is already right is left as it is",
        "The planned addresses are on the planned functions and something lasting put them there, so this project "
        "writes nothing.",
        "None needed.",
    ),
    Code(
        "FABRIC_CONFIRMED",
        "ok",
        "Every peer answers on every rail",
        "Reachability was tested from the rail's own address and function, over a connection made after the change.",
        "None needed.",
    ),
    Code(
        "NETPLAN_FOREIGN_CLAIM",
        "fatal",
        "Another file configures a rail's function",
        "Files that are not ours are never rewritten, and netplan would merge both into something neither of them "
        "says.",
        "On {node}: remove {netdev} from {path}, or make that file say what the plan says; then run the play again.",
    ),
    Code(
        "NM_PROFILE_CLAIM",
        "fatal",
        "A saved NetworkManager profile claims a rail's function",
        "Two profiles for one interface: which of them NetworkManager brings up at the next boot would be chance. "
        "Profiles that are not ours are never changed.",
        "On {node}: sudo nmcli connection modify {uuid} connection.autoconnect no{then}; then run the play again.",
    ),
    Code(
        "NETPLAN_UNREADABLE",
        "fatal",
        "A netplan file cannot be read",
        "Netplan refuses the whole tree while one file is unreadable. This one is not an all-NUL orphan, so it is "
        "somebody's configuration.",
        "On {node}: repair {path} ({cure}), check with `sudo netplan generate`, then run the play again.",
    ),
    Code(
        "NETPLAN_NUL_LIVE",
        "fatal",
        "An all-NUL netplan file belongs to a live connection",
        "The file holds nothing but NUL bytes, and NetworkManager knows the connection: moving it could lose the "
        "profile.",
        "On {node}: have NetworkManager write it again: sudo nmcli connection modify {uuid} connection.id "
        '"$(nmcli -g connection.id connection show {uuid})"',
    ),
    Code(
        "NETPLAN_ORPHAN",
        "note",
        "An all-NUL netplan file belongs to no connection",
        "Such files lie on factory Sparks and make netplan refuse every change. They are moved to a backup, never "
        "deleted.",
        "None needed: the play moves it to /var/lib/spark-cluster/backup/netplan and records that for undo.",
    ),
    Code(
        "NETPLAN_ORPHAN_CHANGED",
        "fatal",
        "A file planned as an orphan is not one any more",
        "Between the plan and the change the file got other bytes or was replaced. It was left alone, and nothing "
        "was changed.",
        "Run the play again: it looks at the file anew.",
    ),
    Code(
        "NETPLAN_NM_SILENT",
        "fatal",
        "NetworkManager does not answer",
        "Whether an all-NUL file belongs to a connection is known only to NetworkManager, and a guess could cost a "
        "connection.",
        "On {node}: sudo systemctl start NetworkManager && nmcli connection show, then run the play again.",
    ),
    Code(
        "NETPLAN_INVALID",
        "fatal",
        "Netplan refuses the resulting configuration",
        "The whole tree, as it would be after the change, was given to netplan's generator in a scratch folder. "
        "Nothing was changed.",
        "On {node}: repair what the message names, check with `sudo netplan generate`, then run the play again.",
    ),
    Code(
        "NETPLAN_APPLY_FAILED",
        "fatal",
        "The network change could not be applied",
        "A command that applies the configuration failed. The node was put back as it was at once.",
        "Read the command's message in the evidence and repair its cause on {node}, then run the play again.",
    ),
    Code(
        "NETPLAN_TOOL_MISSING",
        "fatal",
        "Netplan's generator was not found",
        "Without the generator a configuration cannot be checked before it is applied.",
        "On {node}: sudo apt-get install netplan.io",
    ),
    Code(
        "UNIT_TAKEN_OVER",
        "note",
        "A unit of an earlier deployment was disabled",
        "It would have taken the GPU or the port at the next boot, and the node would silently have served alone.",
        "None needed. By hand it comes back with: sudo systemctl enable --now {unit}",
    ),
    Code(
        "UNIT_LEFT_WHILE_SERVING",
        "warn",
        "A conflicting unit was left enabled, because a rank serves",
        "Disabling a unit makes systemd reload, which can take the GPU from a running container. At the next boot the "
        "unit would still take the node from the cluster.",
        "Stop the model first: ansible-playbook cluster-down.yml, then run site.yml again.",
    ),
    Code(
        "UNIT_STILL_ENABLED",
        "fatal",
        "A conflicting unit is still enabled or running",
        "At the next boot it would take the GPU or the port before the cluster's own unit.",
        "On {node}: sudo systemctl disable --now {unit}",
    ),
)
