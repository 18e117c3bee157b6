"""Evidence of a healthy pair of Sparks, and how a case changes it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

NODES = ("spark-01", "spark-02")
RAILS = (("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"), ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"))
HEALTHY: dict[str, Any] = {
    "write": [92.57, 92.57],
    "back": [92.57, 97.28],
    "both": [184.5, 184.5],
    "tcp": [40.0, 41.0],
    "latency": [1.99, 1.99],
    "loopback": {"spark-01": [98.0, 98.0], "spark-02": [98.0, 98.0]},
}
COUNTERS = {
    "rx_pcs_symbol_err_phy": 0,
    "rx_corrected_bits_phy": 1000,
    "tx_discards_phy": 0,
    "rx_discards_phy": 0,
    "rx_out_of_buffer": 0,
}


def address(node: str, rail: int) -> str:
    return f"192.168.{200 + rail}.{12 + NODES.index(node)}"


def function(node: str, rail: int) -> dict[str, Any]:
    netdev, device, pci = RAILS[rail]
    return {
        "netdev": netdev,
        "rail": rail,
        "address": address(node, rail),
        "exists": True,
        "admin_up": True,
        "carrier": True,
        "mtu": 1500,
        "addresses": [address(node, rail)],
        "rdma_device": device,
        "rdma_state": "ACTIVE",
        "pci": pci,
        "carrier_changes": 2,
        "speed_mbps": 200000,
        "driver": "mlx5_core",
        "firmware": "28.45.4028",
        "pcie": {"speed_gts": 32.0, "width": 4, "capable_gts": 32.0, "capable_width": 4},
        "cable": {"vendor": "Amphenol", "part": "NJAAKK0006", "kind": "", "length": "0.5m", "listed": True},
        "qdisc": [],
        "counters": dict(COUNTERS),
    }


def read(node: str) -> dict[str, Any]:
    other = NODES[1 - NODES.index(node)]
    return {
        "node": node,
        "serving": None,
        "uptime_s": 4000.0,
        "functions": [function(node, rail) for rail in (0, 1)],
        "gids": [
            {
                "rail": rail,
                "netdev": RAILS[rail][0],
                "rdma_device": RAILS[rail][1],
                "port": 1,
                "index": 3,
                "gid": f"0000:0000:0000:0000:0000:ffff:c0a8:c{8 + rail}0c",
                "address": address(node, rail),
            }
            for rail in (0, 1)
        ],
        "gids_wrong": [],
        "hot_plugs": [],
        "power_lines": 0,
        "kernel_lines": [],
        "answers": [
            {
                "rail": rail,
                "netdev": RAILS[rail][0],
                "peer": other,
                "address": address(other, rail),
                "reached": True,
                "full_size": True,
                "said": "",
            }
            for rail in (0, 1)
        ],
        "versions": {"kernel": "6.17.0-1032-nvidia", "perftest": "6.20"},
        "raw": {"ethtool enp1s0f0np0": "Speed: 200000Mb/s\n"},
        "unread": {},
    }


def run(kind: str, source: str, target: str, rates: Any, counted: Mapping[str, Any]) -> dict[str, Any]:
    """``rates`` has one number per rail, the kind of its failure, or is the reason why nothing was run."""
    base = {"kind": kind, "from": source, "to": target, "seconds": 10.0, "skipped": None, "overlap_share": 1.0}
    if isinstance(rates, str):
        return {**base, "seconds": 0, "rails": [], "skipped": rates}
    rails = []
    for rail, rate in enumerate(rates):
        number = None if isinstance(rate, str) else float(rate)
        failed = {"kind": rate, "meaning": f"it failed: {rate}", "evidence": ["a line"]} if number is None else None
        sent = {"tx_bytes_phy": int((number or 0) * 1.07 * 10e9 / 8)} if kind != "tcp" else {}
        here = {**sent, **counted.get("here", {})} if kind in ("write", "both") and source != target else {}
        rails.append(
            {
                "rail": rail,
                "netdev": RAILS[rail][0],
                "rdma_device": RAILS[rail][1],
                "gid_index": 3,
                "gbps": None if kind == "latency" else number,
                "latency_us": number if kind == "latency" else None,
                "speed_mbps": 200000,
                "failure": failed,
                "here": here,
                "there": dict(counted.get("there", {})) if here else {},
                "argv": ["ib_write_bw", "-d", RAILS[rail][1]],
                "stdout": "",
                "stderr": "",
            }
        )
    whole = kind != "latency" and not any(isinstance(rate, str) for rate in rates)
    return {**base, "rails": rails, "sum_gbps": round(sum(rates), 6) if whole else None}


def evidence(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case changes ``rates`` by kind, ``functions`` by "node netdev", ``reads`` and ``nodes`` by node, ``counted`` on
    either end of the runs, ``moved`` counters over the whole, and may drop a rail (``rails: 1``)."""
    rates = {**copy.deepcopy(HEALTHY), **case.get("rates", {})}
    counted = case.get("counted", {})
    head, worker = NODES
    runs = [run("loopback", node, node, rates["loopback"][node], {}) for node in NODES if node in rates["loopback"]]
    runs += [
        run("latency", head, worker, rates["latency"], {}),
        run("write", head, worker, rates["write"], counted),
        run("write", worker, head, rates["back"], {}),
        run("both", head, worker, rates["both"], {}),
        run("tcp", head, worker, rates["tcp"], {}),
    ]
    nodes: dict[str, Any] = {}
    for node in NODES:
        told = {**read(node), **case.get("reads", {}).get(node, {})}
        if case.get("rails") == 1:
            told["functions"] = told["functions"][:1]
        for item in told["functions"]:
            item.update(case.get("functions", {}).get(f"{node} {item['netdev']}", {}))
            if case.get("software"):
                item.update(driver="virtio_net", speed_mbps=None, pcie=None, cable=None)
        after = {
            item["netdev"]: {
                **item["counters"],
                "rx_corrected_bits_phy": item["counters"].get("rx_corrected_bits_phy", 0) + 10214,
            }
            for item in told["functions"]
        }
        changes = {item["netdev"]: item["carrier_changes"] for item in told["functions"]}
        for place, moved in case.get("moved", {}).items():
            name, netdev = place.split()
            if name == node:
                changes[netdev] += moved.pop("carrier_changes", 0)
                after[netdev].update({key: after[netdev].get(key, 0) + by for key, by in moved.items()})
        nodes[node] = {
            "role": "head" if node == head else "worker",
            "management_address": f"203.0.113.{12 + NODES.index(node)}",
            "read": told,
            "silent": None,
            "after": {"counters": after, "carrier_changes": changes},
            "facts": {"firewall": {"active": False, "kind": None, "evidence": []}},
            **case.get("nodes", {}).get(node, {}),
        }
    if case.get("software"):
        for one in runs:
            for rail in one["rails"]:
                rail.update(speed_mbps=None, here={}, there={})
    return {
        "cluster": "pair_a",
        "transport": case.get("transport", "rdma"),
        "min_gbps": case.get("min_gbps", 170),
        "min_both_ways_gbps": case.get("min_both_ways_gbps", 300),
        "rails": [{"rail": rail, "subnet": f"192.168.{200 + rail}.0/24"} for rail in (0, 1)],
        "nodes": nodes,
        "runs": runs,
        "plan_findings": [],
    }
