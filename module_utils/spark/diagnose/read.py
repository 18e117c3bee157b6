"""What one node says about its end of the link, changing nothing. What cannot be read says why; nothing is raised."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..gids import resolve
from ..link import hardware, keeper
from ..link.run import Place, serving
from ..parse.ethtool import parse_driver, parse_link, parse_module
from ..parse.ip import parse_addr
from ..parse.lspci import parse_links
from ..parse.rdma import read_devices
from ..parse.whole import whole
from ..plan.functions import CONNECTX_DRIVER

HEADERS_BYTES = 28
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Reader:
    """Runs commands and keeps what they said, word for word, beside the reason where they said nothing."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.raw: dict[str, str] = {}
        self.unread: dict[str, str] = {}

    def ask(self, *argv: str, timeout_s: float = 10) -> str:
        name = " ".join(argv)
        done = self.place.run(argv, timeout_s=timeout_s)
        if not done.ok:
            self.unread[name] = " ".join((done.stderr.strip() or done.stdout.strip() or f"rc {done.rc}").split())[:300]
            return ""
        self.raw[name] = done.stdout
        return done.stdout

    def file(self, path: str) -> str:
        try:
            return (self.place.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def read(place: Place, node: str, rails: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One node's end: its functions, their GIDs, the kernel's lines, and whether its peers answer."""
    reader = Reader(place)
    devices = read_devices(place.root)
    resolved, wrong = resolve(devices, [rail for rail in rails if rail.get("rdma_device")], node)
    links = addresses(reader)
    by_netdev = {str(rail["netdev"]): rail for rail in rails}
    names = list(dict.fromkeys([*by_netdev, *connectx(place.root)]))
    functions = [function(reader, name, by_netdev.get(name), devices, links) for name in names]
    log = reader.ask("dmesg")
    # Of the log only what concerns the link is anybody's business.
    reader.raw.pop("dmesg", None)
    kernel = hardware.kernel(log)
    lines = about(log.splitlines(), [*names, *(str(item["pci"]) for item in functions if item["pci"])])
    return {
        "node": node,
        "serving": serving(place.run),
        "uptime_s": whole(reader.file("/proc/uptime").partition(".")[0]) or 0,
        "functions": functions,
        "gids": [item.as_dict() for item in resolved],
        "gids_wrong": [{"code": item.code, "found": item.found, "table": list(item.evidence)} for item in wrong],
        "hot_plugs": kernel["cable_events"],
        "power_lines": len(kernel["power_lines"]),
        "kernel_lines": lines,
        "answers": answers(place, rails, links),
        "versions": versions(reader, functions),
        "raw": reader.raw,
        "unread": reader.unread,
    }


def brief(place: Place, node: str, rails: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run needs to know: which functions are ready, and their GIDs."""
    reader = Reader(place)
    links = addresses(reader)
    resolved, _ = resolve(read_devices(place.root), [rail for rail in rails if rail.get("rdma_device")], node)
    functions = []
    for rail in rails:
        link = links.get(str(rail["netdev"]), {})
        functions.append(
            {
                "netdev": rail["netdev"],
                "rail": rail["rail"],
                "address": rail["address"],
                "exists": bool(link),
                "admin_up": bool(link.get("admin_up")),
                "carrier": bool(link.get("carrier")),
                "addresses": list(link.get("addresses", ())),
            }
        )
    return {"functions": functions, "gids": [item.as_dict() for item in resolved]}


def about(lines: Iterable[str], names: Iterable[str], most: int = 60) -> list[str]:
    """The last kernel lines that concern the named functions, their driver or their slot."""
    wanted = re.compile("|".join(["mlx5", "cx7-pcie-hotplug", *(re.escape(name) for name in names if name)]))
    return [line.strip() for line in lines if wanted.search(line)][-most:]


def connectx(root: Path) -> list[str]:
    """The interfaces of ConnectX functions, in the fabric or not."""
    base = root / "sys/class/net"
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [
        name for name in names if os.path.basename(os.path.realpath(base / name / "device/driver")) == CONNECTX_DRIVER
    ]


def addresses(reader: Reader) -> dict[str, dict[str, Any]]:
    """Flags, MTU and IPv4 addresses of every interface."""
    try:
        told = parse_addr(reader.ask("ip", "-j", "address"))
    except ValueError as wrong:
        reader.unread["ip -j address"] = str(wrong)
        return {}
    # The whole list names every interface of the machine, which concerns nobody.
    reader.raw.pop("ip -j address", None)
    return {
        link.name: {
            "admin_up": link.admin_up,
            "carrier": link.carrier,
            "mtu": link.mtu,
            "addresses": [address.partition("/")[0] for address in link.addresses],
        }
        for link in told
    }


def function(
    reader: Reader,
    netdev: str,
    rail: Mapping[str, Any] | None,
    devices: Sequence[Mapping[str, Any]],
    links: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One function: its link, its slot, its cable and its counters."""
    base = f"/sys/class/net/{netdev}"
    link = links.get(netdev)
    device = next((item for item in devices if item["netdev"] == netdev), None)
    found: dict[str, Any] = {
        "netdev": netdev,
        "rail": rail["rail"] if rail else None,
        "address": rail["address"] if rail else None,
        "exists": link is not None,
        "admin_up": bool(link and link["admin_up"]),
        "carrier": bool(link and link["carrier"]),
        "mtu": link["mtu"] if link else None,
        "addresses": list(link["addresses"]) if link else [],
        "rdma_device": device["name"] if device else None,
        "rdma_state": device["state"] if device else None,
        "pci": rail.get("pci") if rail else None,
        "carrier_changes": whole(reader.file(f"{base}/carrier_changes")) or 0,
        "speed_mbps": None,
        "driver": "",
        "firmware": "",
        "pcie": None,
        "cable": None,
        "qdisc": [],
        "counters": {},
    }
    if link is None:
        return found
    found["speed_mbps"] = parse_link(reader.ask("ethtool", netdev)).speed_mbps
    driver = parse_driver(reader.ask("ethtool", "-i", netdev))
    found.update(driver=driver.driver, firmware=driver.firmware)
    found["pci"] = found["pci"] or (driver.bus_info if _PCI.fullmatch(driver.bus_info) else None)
    if driver.driver == CONNECTX_DRIVER:
        cable = parse_module(reader.ask("ethtool", "-m", netdev))
        # Its serial number is nobody's business.
        cable.pop("serial", None)
        found["cable"] = {**cable, "listed": cable.get("part") in hardware.KNOWN_CABLES} if cable else None
        reader.ask("ethtool", "--show-fec", netdev)
        reader.ask("ethtool", "-a", netdev)
    if found["pci"] and driver.driver == CONNECTX_DRIVER:
        found["pcie"] = next(
            (asdict(item) for item in parse_links(reader.ask("lspci", "-D", "-vv", "-s", str(found["pci"])))), None
        )
    shown = reader.ask("tc", "qdisc", "show", "dev", netdev).splitlines()
    found["qdisc"] = [line.strip() for line in shown if re.search(r"\b(tbf|htb|netem|cake|police|hfsc)\b", line)]
    found["counters"] = count(reader.place, netdev, found["rdma_device"])
    return found


def count(place: Place, netdev: str, rdma_device: str | None) -> dict[str, int]:
    """The counters of one function, of its RDMA device too where it has one."""
    return keeper.counters({"netdev": netdev, "device": rdma_device}, place.root, place.said)


def answers(
    place: Place, rails: Sequence[Mapping[str, Any]], links: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each peer on each rail: does it answer, and do frames of full size pass."""
    wanted = []
    for rail in rails:
        link = links.get(str(rail["netdev"]))
        held = link is not None and rail["address"] in link["addresses"] and link["carrier"]
        for peer, address in sorted(rail["peer_addresses"].items()):
            wanted.append((rail, peer, address, int(link["mtu"] or 1500) if link and held else None))
    if not wanted:
        return []
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda item: _answer(place, *item), wanted))


def _answer(place: Place, rail: Mapping[str, Any], peer: str, address: str, mtu: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"rail": rail["rail"], "netdev": rail["netdev"], "peer": peer, "address": address}
    if mtu is None:
        return {**found, "reached": None, "full_size": None, "said": "not asked: no carrier or no address on this end"}
    argv = ["ping", "-n", "-c", "2", "-i", "0.3", "-W", "2", "-I", str(rail["netdev"])]
    small = place.run([*argv, address], timeout_s=10)
    large = place.run([*argv, "-M", "do", "-s", str(mtu - HEADERS_BYTES), address], timeout_s=10)
    said = "; ".join(line.strip() for line in small.stdout.splitlines() if "packet loss" in line or "rtt" in line)
    return {**found, "reached": small.ok, "full_size": large.ok, "said": said or small.stderr.strip()[:200]}


def versions(reader: Reader, functions: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What has to be equal on both ends."""
    told = {"kernel": reader.file("/proc/sys/kernel/osrelease")}
    for item in functions:
        if item["firmware"]:
            told[f"firmware of {item['netdev']}"] = f"{item['driver']} {item['firmware']}"
    module = reader.file("/sys/module/mlx5_core/version")
    if module:
        told["mlx5_core"] = module
    perftest = reader.place.run(["ib_write_bw", "--version"])
    line = next((x for x in (perftest.stdout + perftest.stderr).splitlines() if x.startswith("Version:")), "")
    told["perftest"] = line.removeprefix("Version:").strip() or "not installed"
    return told
