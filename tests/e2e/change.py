"""A change of the network on one node, up to where it would be confirmed, and what is compared afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .virtual_pair import VirtualPair

HEAD, WORKER = "spark-01", "spark-02"
OURS = "/etc/netplan/40-spark-fabric.yaml"
STATE = "/var/lib/spark-cluster"
FUNCTIONS = ("enp1s0f0np0", "enP2p1s0f0np0")
HOSTS = {HEAD: 12, WORKER: 13}


def rails(node: str) -> list[dict[str, Any]]:
    peer = WORKER if node == HEAD else HEAD
    return [
        {
            "rail": rail,
            "netdev": netdev,
            "address": f"192.168.{200 + rail}.{HOSTS[node]}",
            "prefix": 24,
            "peer_addresses": {peer: f"192.168.{200 + rail}.{HOSTS[peer]}"},
        }
        for rail, netdev in enumerate(FUNCTIONS)
    ]


def text(node: str, mtu: int = 1500, renderer: str = "NetworkManager") -> str:
    lines = ["network:", "  version: 2", "  ethernets:"]
    for rail in rails(node):
        lines += [f"    {rail['netdev']}:", f"      renderer: {renderer}"]
        lines += [f"      addresses: [{rail['address']}/24]", "      link-local: []", f"      mtu: {mtu}"]
    return "\n".join(lines) + "\n"


def orphans(pair: VirtualPair, node: str) -> list[str]:
    found = pair.sh(node, "for f in /etc/netplan/90-NM-*.yaml; do tr -d '\\0' < $f | grep -q . || echo $f; done")
    return found.split()


def change(pair: VirtualPair, node: str, rollback_s: int, **changes: Any) -> dict[str, Any]:
    """What the role does on one node, up to where it would confirm."""
    key = f"net.ipv4.conf.{FUNCTIONS[0]}.arp_ignore"
    sysctl = {"path": "/etc/sysctl.d/40-spark-fabric.conf", "text": f"{key} = 1\n", "values": {key: "1"}}
    given: dict[str, Any] = {"node": node, "path": OURS, "text": text(node), "rails": rails(node), "sysctl": sysctl}
    given |= {"orphans": orphans(pair, node), "rollback_s": rollback_s}
    done = pair.module(node, "fabric_netplan", **{**given, **changes})
    assert not done["failed"], done
    assert done["armed"]
    return done


def both(act: Callable[[str], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, (HEAD, WORKER)))


def foreign(found: dict[str, Any]) -> dict[str, Any]:
    """A snapshot without our own folder for state, which a rollback leaves and a reset removes."""
    return {
        node: {**entry, "files": {p: f for p, f in entry["files"].items() if not p.startswith(f"{STATE}/")}}
        for node, entry in found.items()
    }


def until_settled(pair: VirtualPair, node: str, within_s: float) -> float:
    """Wait until the node has no change pending any more; the seconds that it took."""
    began = time.monotonic()
    # On the node itself: a console command costs more than the precision that is wanted.
    script = f"for i in $(seq {int(within_s)}); do [ -e {STATE}/rollback/state.json ] || exit 0; sleep 1; done; exit 1"
    pair.sh(node, script)
    return time.monotonic() - began


def reset_by_modules(pair: VirtualPair, node: str) -> None:
    network = pair.module(node, "node_reset", node=node, phase="network")
    assert not network["failed"], network
    rest = pair.module(node, "node_reset", node=node, phase="rest", armed=network["armed"])
    assert not rest["failed"], rest
    assert [item["code"] for item in rest["findings"]] == ["RESET_DONE"], rest
