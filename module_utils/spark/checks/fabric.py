"""What the facts of all nodes say against the planned fabric, before anything is changed. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..findings import Finding, finding
from ..parse.netplan import nm_uuid
from ..plan.functions import networkd_file

FULL_SPEED_MBPS = 200_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Facts = Mapping[str, Any]


def fabric_findings(
    facts_by_node: Mapping[str, Facts], plan: Mapping[str, Any], policy: object = None
) -> list[Finding]:
    """Judge a plan's rails against every node's facts.

    ``plan`` needs ``name``, ``rails`` and ``nodes`` as in a cluster plan; a rail whose function could not be found on
    a node has an empty ``netdev``, or is missing there. ``policy`` is the validated inventory (mapping or object), of
    which ``fabric_netdevs`` and ``fabric_subnets`` are read: whether one rail is somebody's choice.
    """
    chosen = bool(_setting(policy, "fabric_netdevs")) or len(_setting(policy, "fabric_subnets") or ()) == 1
    nodes = [node for node in plan["nodes"] if node["node"] in facts_by_node]
    found: list[Finding] = []
    for node in nodes:
        facts = facts_by_node[node["node"]]
        found += _functions(node, facts, len(plan["rails"]), chosen)
        if plan.get("transport", "rdma") == "rdma":
            found += _speeds(node, facts)
        found += _subnets(node, facts, plan["rails"])
        found += _switched_off(node, facts)
        found += _netplan(node, facts)
        found += _profiles(node, facts)
    found += _planned_subnets(plan)
    found += _carriers(nodes, facts_by_node)
    found += _held_addresses(nodes, facts_by_node)
    return found


def _setting(policy: object, name: str) -> Any:
    return policy.get(name) if isinstance(policy, Mapping) else getattr(policy, name, None)


def _netdev(facts: Facts, name: str) -> Mapping[str, Any] | None:
    return next((device for device in facts.get("netdevs", ()) if device["name"] == name), None)


def _functions(node: Mapping[str, Any], facts: Facts, wanted: int, chosen: bool) -> Iterable[Finding]:
    name = node["node"]
    rails: Sequence[Mapping[str, Any]] = [rail for rail in node["rails"] if rail["netdev"]]
    seen = ", ".join(device["name"] for device in facts.get("netdevs", ())) or "none at all"
    if not rails:
        yield finding(
            "FABRIC_FUNCTION_MISSING",
            node=name,
            found="no function for any rail",
            expected=f"{wanted} ConnectX function{'s' if wanted != 1 else ''} of one cabled port",
            evidence=(f"interfaces: {seen}",),
        )
        return
    if len(rails) < 2 and chosen:
        yield finding(
            "FABRIC_HALF",
            node=name,
            found=f"one function, {rails[0]['netdev']}, by fabric_netdevs or fabric_subnets",
            expected="both functions of the cabled port",
            evidence=(f"interfaces: {seen}",),
        )
    for rail in rails:
        device = _netdev(facts, rail["netdev"])
        if device is None:
            yield finding(
                "FABRIC_FUNCTION_MISSING",
                node=name,
                found=f"no interface {rail['netdev']}",
                expected=f"{rail['netdev']} for rail {rail['rail']}",
                evidence=(f"interfaces: {seen}",),
            )
            continue
        if device.get("master"):
            yield finding(
                "FABRIC_FUNCTION_ENSLAVED",
                node=name,
                found=f"{device['name']} belongs to {device['master']}",
                expected=f"{device['name']} on its own",
                netdev=device["name"],
                master=device["master"],
                where=_declared_in(facts, device["master"]),
            )


def _speeds(node: Mapping[str, Any], facts: Facts) -> Iterable[Finding]:
    for rail in node["rails"]:
        device = _netdev(facts, rail["netdev"])
        speed = device.get("speed_mbps") if device is not None else None
        # Virtual interfaces report no speed or -1; only a negotiated one says anything.
        if device is not None and speed is not None and 0 < speed < FULL_SPEED_MBPS:
            yield finding(
                "FABRIC_SPEED_LOW",
                node=node["node"],
                found=f"{device['name']} at {speed} Mb/s",
                expected=f"{FULL_SPEED_MBPS} Mb/s",
                netdev=device["name"],
            )


def _declared_in(facts: Facts, device: str) -> str:
    paths = [file["path"] for file in facts.get("netplan", {}).get("files", ()) if device in file.get("netdevs", ())]
    return ", ".join(paths) or "no netplan file, so probably a NetworkManager profile"


def _planned_subnets(plan: Mapping[str, Any]) -> Iterable[Finding]:
    subnets = [(rail["rail"], ipaddress.ip_network(rail["subnet"])) for rail in plan["rails"]]
    for position, (number, subnet) in enumerate(subnets):
        for other_number, other in subnets[position + 1 :]:
            if subnet.overlaps(other):
                yield finding(
                    "FABRIC_ONE_SUBNET",
                    node=plan["name"],
                    found=f"rail {number} is {subnet}, rail {other_number} is {other}",
                    expected="one subnet for each rail, apart from each other",
                    devices="both functions",
                )


def _subnets(node: Mapping[str, Any], facts: Facts, rails: Sequence[Mapping[str, Any]]) -> Iterable[Finding]:
    name = node["node"]
    own = {rail["netdev"] for rail in node["rails"]}
    used: list[tuple[Network, str]] = []
    on_rails: list[tuple[Network, str]] = []
    for device in facts.get("netdevs", ()):
        for address in device.get("addresses", ()):
            network = ipaddress.ip_interface(address).network
            if network.prefixlen == 0 or network.is_loopback or network.is_link_local:
                continue
            (on_rails if device["name"] in own else used).append((network, device["name"]))
    for route in facts.get("routes", ()):
        leads_to = _network(route.get("dst"))
        if leads_to is not None and route.get("dev") not in own:
            used.append((leads_to, str(route.get("dev"))))

    for position, (network, device) in enumerate(on_rails):
        for other, other_device in on_rails[position + 1 :]:
            if device != other_device and network.overlaps(other):
                yield finding(
                    "FABRIC_ONE_SUBNET",
                    node=name,
                    found=f"{device} and {other_device} both lie in {network}",
                    expected="a subnet of its own for each function",
                    devices=f"{device} and {other_device}",
                )
    said: set[tuple[str, Network, str]] = set()
    for rail in rails:
        subnet = ipaddress.ip_network(rail["subnet"])
        for network, device in used:
            key = (rail["subnet"], network, device)
            if network.version != subnet.version or not subnet.overlaps(network) or key in said:
                continue
            said.add(key)
            yield finding(
                "FABRIC_SUBNET_OVERLAP",
                node=name,
                found=f"rail {rail['rail']} is {subnet}, and {device} leads to {network}",
                expected="subnets that no other interface or route of the node uses",
                suggestion=", ".join(_free_subnets([used_by for used_by, _ in used], len(rails))),
            )


def _network(text: object) -> Network | None:
    if not isinstance(text, str) or text in ("default", "0.0.0.0/0", "::/0"):
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _free_subnets(used: Sequence[Network], count: int) -> list[str]:
    """Neighbouring /24s, aligned so that one range covers the rails, that nothing on the node overlaps."""
    span = max(1, count - 1).bit_length()
    for third in range(200, 0, -(1 << span)):
        base = third - third % (1 << span)
        candidates = [ipaddress.ip_network(f"192.168.{base + offset}.0/24") for offset in range(count)]
        if not any(candidate.overlaps(network) for candidate in candidates for network in used if network.version == 4):
            return [str(candidate) for candidate in candidates]
    return ["two free /24 subnets"]


def _switched_off(node: Mapping[str, Any], facts: Facts) -> Iterable[Finding]:
    """Functions that are set down. A rail that has its address already would not be touched, and so stay down."""
    kept: list[str] = []
    empty: list[str] = []
    for rail in node["rails"]:
        device = _netdev(facts, rail["netdev"])
        if device is not None and not device.get("admin_up"):
            held = f"{rail['address']}/{rail['prefix']}" in device.get("addresses", ())
            (kept if held else empty).append(device["name"])
    for netdevs, severity, why in (
        (kept, "fatal", "with the planned address"),
        (empty, "note", "so whether the cable works shows after the change"),
    ):
        if netdevs:
            yield finding(
                "FABRIC_SWITCHED_OFF",
                node=node["node"],
                severity=severity,
                found=f"{' and '.join(netdevs)}: set down, {why}",
                expected="interfaces that are up",
                commands=" && ".join(f"sudo ip link set {netdev} up" for netdev in netdevs),
            )


def _netplan(node: Mapping[str, Any], facts: Facts) -> Iterable[Finding]:
    name = node["node"]
    netplan = facts.get("netplan", {})
    manager = facts.get("networkmanager", {})
    ours = {rail["netdev"]: f"{rail['address']}/{rail['prefix']}" for rail in node["rails"]}
    orphans = set(node.get("orphans", ()))
    for file in netplan.get("files", ()):
        kind, path = file["class"], file["path"]
        if kind == "orphan_nul":
            yield finding(
                "NETPLAN_ORPHAN",
                node=name,
                found=f"{path}: {file['size_bytes']} bytes, all NUL",
                expected="a readable file, or none",
                evidence=(f"sha256 {file['sha256']}", "NetworkManager knows no connection of that UUID"),
            )
        elif kind == "live_nul":
            if not manager.get("running", False):
                yield finding(
                    "NETPLAN_NM_SILENT",
                    node=name,
                    found=f"{path} is all NUL and NetworkManager gives no list of connections",
                    expected="an answer to `nmcli -t -f UUID connection show`",
                )
            else:
                yield finding(
                    "NETPLAN_NUL_LIVE",
                    node=name,
                    found=f"{path}: {file['size_bytes']} bytes, all NUL, of a connection that NetworkManager knows",
                    expected="a readable file",
                    uuid=nm_uuid(path),
                )
        elif kind == "unreadable" and path not in orphans:
            error = file.get("error") or "netplan cannot parse it"
            yield finding(
                "NETPLAN_UNREADABLE",
                node=name,
                found=f"{path}: {error}",
                expected="YAML that netplan reads",
                path=path,
                cure=cure_of(error),
            )
        elif kind == "yaml":
            for netdev in sorted(ours.keys() & set(file.get("netdevs", ()))):
                device = _netdev(facts, netdev)
                if device is not None and ours[netdev] in device.get("addresses", ()):
                    continue  # that file, or whatever it is, already does what the plan asks for: adopted
                carried = ", ".join(device["addresses"]) if device is not None else ""
                yield finding(
                    "NETPLAN_FOREIGN_CLAIM",
                    node=name,
                    found=f"{path} configures {netdev}, which does not carry {ours[netdev]}",
                    expected=f"no other file for {netdev}, or one that gives it {ours[netdev]}",
                    evidence=(f"{netdev} has {carried or 'no address'}",),
                    netdev=netdev,
                    path=path,
                )


def _profiles(node: Mapping[str, Any], facts: Facts) -> Iterable[Finding]:
    """Saved profiles and files of networkd that want a rail's function, where it does not have the planned address.

    A profile that was made from a netplan file is that file's claim. One that is not saved is gone after the next
    boot, and gives way to ours until then.
    """
    manager, wanted = facts.get("networkmanager", {}), node["rails"]
    if manager.get("error") and not manager.get("running") and "not running" not in manager["error"]:
        # An all-NUL file of unknown standing has said it already.
        if not any(file["class"] == "live_nul" for file in facts.get("netplan", {}).get("files", ())):
            yield finding(
                "NETPLAN_NM_SILENT",
                node=node["node"],
                found=f"nmcli: {manager['error']}",
                expected="an answer to `nmcli connection show`",
            )
        return
    for rail in wanted:
        device = _netdev(facts, rail["netdev"])
        if device is None or f"{rail['address']}/{rail['prefix']}" in device.get("addresses", ()):
            continue
        for profile in manager.get("profiles", ()):
            active = profile["device"] == device["name"]
            bound = device["name"] in profile["netdevs"] and profile["autoconnect"]
            if not (active or bound) or not profile["lasting"] or profile["file"].startswith("/run/"):
                continue
            yield finding(
                "NM_PROFILE_CLAIM",
                node=node["node"],
                found=f"profile {profile['name']} ({profile['file']}) is "
                + (f"active on {device['name']}" if active else f"bound to {device['name']}"),
                expected=f"no other profile for {device['name']}, or one that gives it {rail['address']}",
                evidence=(f"{device['name']} has {', '.join(device['addresses']) or 'no address'}",),
                uuid=profile["uuid"],
                then=f" && sudo nmcli device disconnect {device['name']}" if active else "",
            )
        path = networkd_file(facts, device["name"])
        if path is not None:
            yield finding(
                "NETPLAN_FOREIGN_CLAIM",
                node=node["node"],
                found=f"{path} configures {device['name']}, and systemd-networkd reads it before netplan's",
                expected=f"no other file for {device['name']}, or one that gives it {rail['address']}",
                netdev=device["name"],
                path=path,
            )


def cure_of(error: str) -> str:
    """What a person does about an unreadable file, by what is wrong with it."""
    low = error.lower()
    if "bytes are nul" in low:
        return "no byte of it is text and it is no file of NetworkManager's: restore it or move it out of the folder"
    if "0x00" in low or "nul" in low:
        return "its text ends in NUL bytes: restore it from a backup, or save the connection again"
    if "tab" in low or "0x09" in low:
        return "replace the tabs of its indentation with spaces"
    if "utf-8" in low:
        return "remove the bytes that are not UTF-8"
    if "no key" in low or "trunc" in low or "ends" in low:
        return "it looks cut off: restore it from a backup, or save the connection again"
    return "correct it where the message points"


def _carriers(nodes: Sequence[Mapping[str, Any]], facts_by_node: Mapping[str, Facts]) -> Iterable[Finding]:
    """A rail without carrier, where every end is switched on.

    A function that is switched off shows no carrier and takes that of its peer away: then only the change itself can
    tell, and the confirmation after it does.
    """
    ends: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for node in nodes:
        for rail in node["rails"]:
            device = _netdev(facts_by_node[node["node"]], rail["netdev"])
            if device is not None:
                ends.setdefault(rail["rail"], []).append((node["node"], device))
    for number, devices in sorted(ends.items()):
        if not all(device.get("admin_up") for _, device in devices):
            continue
        for name, device in devices:
            if not device["carrier"]:
                yield finding(
                    "FABRIC_LINK_DOWN",
                    node=name,
                    found=f"{device['name']} (rail {number}) has no carrier",
                    expected="carrier at every end of the rail",
                    evidence=tuple(f"{peer}: {end['name']} {end.get('operstate', '?')}" for peer, end in devices),
                    netdev=device["name"],
                )


def _held_addresses(nodes: Sequence[Mapping[str, Any]], facts_by_node: Mapping[str, Facts]) -> Iterable[Finding]:
    for node in nodes:
        for rail in node["rails"]:
            for holder, facts in facts_by_node.items():
                for device in facts.get("netdevs", ()):
                    if holder == node["node"] and device["name"] == rail["netdev"]:
                        continue
                    if any(address.split("/")[0] == rail["address"] for address in device.get("addresses", ())):
                        yield finding(
                            "FABRIC_ADDRESS_TAKEN",
                            node=node["node"],
                            found=f"{rail['address']} is on {device['name']} of {holder}",
                            expected=f"{rail['address']} free for {rail['netdev']} of {node['node']}",
                            address=rail["address"],
                            netdev=device["name"],
                            holder=holder,
                        )
