"""Causes that are simply seen on one of the two ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..link.verdict import FULL_SPEED_MBPS
from ..plan.functions import CONNECTX_DRIVER
from .case import LIKELY, PCIE_GTS, PCIE_WIDTH, Case, Cause, suspect


def _silent(case: Case) -> Iterator[Cause]:
    for name, node in case.nodes.items():
        if node.get("read"):
            continue
        reached = [
            (other, answer)
            for other, read in case.reads.items()
            for answer in read["answers"]
            if answer["peer"] == name and answer["reached"]
        ]
        told = [f"{other} reaches it at {answer['address']} on {answer['netdev']}" for other, answer in reached]
        address = node.get("management_address") or name
        # Where nothing answers at all, the way from here may be the fault as well as the node.
        alone = not case.reads
        yield suspect(
            LIKELY if alone else 99,
            "CAUSE_NODE_SILENT",
            node=name,
            found=str(node.get("silent") or "it did not answer"),
            expected="a login over ssh",
            because=["no other node answers either, so this may be the controller's own way to them"]
            if alone
            else told or ["no other node reaches it on a rail either"],
            address=address,
            way=f" Or through its peer: ssh -J {reached[0][0]} {reached[0][1]['address']}" if reached else "",
        )


def _functions(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        # A node that stands alone has no rails to carry.
        if not case.functions(name) and len(case.nodes) > 1:
            yield suspect(
                97,
                "CAUSE_NO_FUNCTION",
                node=name,
                found="no function that could carry a rail",
                expected="two functions of the cabled port",
                because=[f"ConnectX functions: {', '.join(_names(case.reads[name])) or 'none'}"],
            )
        for item in case.functions(name):
            yield from _function(case, name, item)


def _names(read: Mapping[str, Any]) -> list[str]:
    return [str(item["netdev"]) for item in read["functions"]]


def _function(case: Case, name: str, item: Mapping[str, Any]) -> Iterator[Cause]:
    netdev, rail = item["netdev"], item["rail"]
    if not item["exists"]:
        yield suspect(
            98,
            "CAUSE_NO_FUNCTION",
            node=name,
            found=f"there is no interface {netdev}",
            expected=f"the function of rail {rail}",
            because=[f"ConnectX functions: {', '.join(_names(case.reads[name]))}"],
        )
        return
    if not item["admin_up"]:
        found, expected = f"{netdev} is administratively down", "UP"
        yield suspect(98, "CAUSE_SWITCHED_OFF", node=name, found=found, expected=expected, netdev=netdev)
        return
    if not item["carrier"]:
        off = [
            f"{other} has {peer['netdev']} switched off"
            for other in case.reads
            if other != name
            for peer in case.functions(other)
            if peer["rail"] == rail and peer["exists"] and not peer["admin_up"]
        ]
        yield suspect(
            40 if off else 97,
            "CAUSE_NO_CARRIER",
            node=name,
            found=f"{netdev} has no carrier",
            expected="a carrier on every rail",
            because=off or [f"{item['carrier_changes']} changes of the carrier since boot", *_ends(case, name, rail)],
            netdev=netdev,
        )
        return
    if item["address"] not in item["addresses"]:
        yield suspect(
            96,
            "CAUSE_NO_ADDRESS",
            node=name,
            found=f"{netdev} has {', '.join(item['addresses']) or 'no IPv4 address'}",
            expected=item["address"],
            netdev=netdev,
            address=item["address"],
        )
    elif case.transport == "rdma" and not item["rdma_device"]:
        found, expected = f"{netdev} has no RDMA device", "one for each rail"
        yield suspect(96, "CAUSE_NO_RDMA_DEVICE", node=name, found=found, expected=expected)
    elif case.transport == "rdma" and item["rail"] not in {gid["rail"] for gid in case.reads[name]["gids"]}:
        told = next((x for x in case.reads[name]["gids_wrong"] if str(item["rdma_device"]) in x["found"]), None)
        yield suspect(
            95,
            "CAUSE_NO_GID",
            node=name,
            found=told["found"] if told else f"no entry of {item['rdma_device']} for {item['address']}",
            expected="exactly one RoCE v2 entry",
            because=told["table"] if told else (),
            netdev=netdev,
        )


def _ends(case: Case, name: str, rail: int) -> list[str]:
    return [
        f"{other}: {item['netdev']} carrier {int(item['carrier'])}"
        for other in case.reads
        if other != name
        for item in case.functions(other)
        if item["rail"] == rail
    ]


def _pcie(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            link = item.get("pcie") or {}
            width, speed = link.get("width"), link.get("speed_gts")
            shown = f"{item['netdev']} ({item['pci']}): {speed} GT/s x{width}"
            expected = f"{link.get('capable_gts') or PCIE_GTS} GT/s x{link.get('capable_width') or PCIE_WIDTH}"
            told = [f"LnkCap {expected}, LnkSta {speed} GT/s x{width}"]
            if width is not None and width < (link.get("capable_width") or PCIE_WIDTH):
                yield suspect(96, "CAUSE_PCIE_WIDTH", node=name, found=shown, expected=expected, because=told)
            if speed is not None and speed < (link.get("capable_gts") or PCIE_GTS):
                yield suspect(96, "CAUSE_PCIE_SPEED", node=name, found=shown, expected=expected, because=told)


def _speed(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            speed = item["speed_mbps"]
            if item["driver"] == CONNECTX_DRIVER and item["carrier"] and speed and speed < FULL_SPEED_MBPS:
                yield suspect(
                    88 if case.bad else LIKELY,
                    "CAUSE_SPEED_LOW",
                    node=name,
                    found=f"{item['netdev']} negotiated {speed} Mb/s",
                    expected=f"{FULL_SPEED_MBPS} Mb/s",
                    because=[f"cable: {_cable(item)}"],
                    netdev=item["netdev"],
                )


def _cable(item: Mapping[str, Any]) -> str:
    cable = item.get("cable") or {}
    return " ".join(str(cable[key]) for key in ("vendor", "part", "kind", "length") if cable.get(key)) or "unreadable"


def _mtu(case: Case) -> Iterator[Cause]:
    sizes: dict[int, dict[str, int]] = {}
    for name in case.reads:
        for item in case.functions(name):
            if item["exists"] and item["mtu"]:
                sizes.setdefault(item["rail"], {})[name] = item["mtu"]
    for rail, found in sizes.items():
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{node} {mtu}" for node, mtu in found.items())
            yield suspect(92, "CAUSE_MTU_DIFFERS", node=case.cluster, found=f"rail {rail}: {shown}", expected="one MTU")
            return
    for name, read in case.reads.items():
        for answer in read["answers"]:
            if answer["reached"] and answer["full_size"] is False:
                yield suspect(
                    91,
                    "CAUSE_MTU_DIFFERS",
                    node=name,
                    found=f"{answer['netdev']} to {answer['address']}: small frames pass, full ones do not",
                    expected="frames of full size",
                )


def _one_rail(case: Case) -> Iterator[Cause]:
    counts = {name: len(case.functions(name)) for name in case.reads}
    if counts and max(counts.values()) == 1:
        yield suspect(
            LIKELY - 5,
            "CAUSE_ONE_RAIL",
            node=case.cluster,
            found="one function on each node carries a rail",
            expected="both functions of the cabled port",
        )


def _shaped(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            if item["qdisc"]:
                yield suspect(
                    95 if case.bad else LIKELY,
                    "CAUSE_SHAPED",
                    node=name,
                    found=f"{item['netdev']}: {item['qdisc'][0]}",
                    expected="the default queue",
                    because=item["qdisc"],
                    netdev=item["netdev"],
                )


def _errors(case: Case) -> Iterator[Cause]:
    for name in case.reads:
        for item in case.functions(name):
            wrong = case.moved(name, item["netdev"], "rx_pcs_symbol_err_phy", "rx_symbol_err_phy", "rx_crc_errors_phy")
            if wrong:
                yield suspect(
                    93,
                    "CAUSE_CABLE",
                    node=name,
                    found=", ".join(f"{item['netdev']} {key} +{value}" for key, value in wrong.items()),
                    expected="counters that stand still",
                    because=[f"cable: {_cable(item)}", *_corrected(case, name, item)],
                )
            after = (case.nodes[name].get("after") or {}).get("carrier_changes", {}).get(item["netdev"])
            if after is not None and after > item["carrier_changes"]:
                yield suspect(
                    94,
                    "CAUSE_LINK_FLAPS",
                    node=name,
                    found=f"{item['netdev']}: {after - item['carrier_changes']} changes of the carrier during the runs",
                    expected="a carrier that stays",
                )


def _corrected(case: Case, name: str, item: Mapping[str, Any]) -> list[str]:
    bits = case.moved(name, item["netdev"], "rx_corrected_bits_phy")
    return [f"{key} +{value}: corrected, and normal" for key, value in bits.items()]


def _tool(case: Case) -> Iterator[Cause]:
    for name, read in case.reads.items():
        if case.transport == "rdma" and read["versions"].get("perftest") == "not installed":
            found, expected = "no program ib_write_bw", "perftest"
            yield suspect(90, "CAUSE_TOOL_MISSING", node=name, found=found, expected=expected)


RULES = (_silent, _functions, _pcie, _speed, _mtu, _one_rail, _shaped, _errors, _tool)
