"""What stands against a fabric is seen before anything is changed: real faults on the VM pair, by module calls.

Every test leaves the pair as it found it; none of them changes what the next one needs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.vm.qemu import Monitor

from .fabric_plan import cluster_of, everywhere, facts_of, plan_of, said, wire_of
from .virtual_pair import PROJECT, VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HEAD, WORKER = "spark-01", "spark-02"
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
GHOST = "52:54:00:99:00:01"


@contextmanager
def fault(pair: VirtualPair, node: str, make: str, undo: str) -> Iterator[None]:
    pair.sh(node, make)
    try:
        yield
    finally:
        pair.sh(node, undo)


@contextmanager
def ghost(pair: VirtualPair, node: str, address: str) -> Iterator[None]:
    """A host that no inventory knows, on the same cable as the first function of a node."""
    make = f"""
        ip netns add ghost
        ip link add ghost0 link {FIRST} address {GHOST} type macvlan mode bridge
        ip link set ghost0 netns ghost
        ip -n ghost addr add {address}/24 dev ghost0
        ip -n ghost link set ghost0 up
    """
    with fault(pair, node, make, "ip netns del ghost"):
        yield


def test_frames_find_both_cables_and_the_stranger_who_has_our_address(vm_pair: VirtualPair) -> None:
    cluster, facts = cluster_of(vm_pair), facts_of(vm_pair)
    before = vm_pair.snapshot()
    with ghost(vm_pair, WORKER, "192.168.200.12"):
        wire = wire_of(vm_pair, cluster, facts)
    heard = {(item["netdev"], item["peer"], item["peer_netdev"]) for item in wire[HEAD]["heard"]}
    assert heard == {(FIRST, WORKER, FIRST), (SECOND, WORKER, SECOND)}
    assert all(report["met"] for report in wire.values())
    plan = plan_of(cluster, facts, wire)
    assert said(plan) == {("FABRIC_ADDRESS_ANSWERED", HEAD)}, plan["findings"]
    taken = next(item for item in plan["findings"] if item["code"] == "FABRIC_ADDRESS_ANSWERED")
    assert "192.168.200.12" in taken["found"]
    assert GHOST in taken["remedy"]
    assert changed_paths(before, vm_pair.snapshot()) == {}


@pytest.mark.long
def test_a_free_wire_is_no_refusal(vm_pair: VirtualPair) -> None:
    cluster, facts = cluster_of(vm_pair), facts_of(vm_pair)
    with ghost(vm_pair, WORKER, "192.168.200.99"):
        wire = wire_of(vm_pair, cluster, facts)
    plan = plan_of(cluster, facts, wire)
    assert said(plan) == set(), plan["findings"]
    assert [rail["netdev"] for rail in plan["nodes"][0]["rails"]] == [FIRST, SECOND]


KEYFILE = f"""[connection]
id=cx7
uuid=6a1d8f1e-30a4-4c8e-9d07-3a3f0d6a7b11
type=ethernet
interface-name={FIRST}

[ipv4]
method=manual
address1=10.9.0.1/24
"""
KEYFILE_PATH = "/etc/NetworkManager/system-connections/cx7.nmconnection"
CONFIGURED = {
    # Where NetworkManager was built with netplan this profile would be a netplan file, and the other finding.
    "a saved profile": (
        f"nmcli connection add type ethernet ifname {FIRST} con-name cx7 ipv4.method manual ipv4.addresses 10.9.0.1/24",
        "nmcli connection delete cx7",
        {"NM_PROFILE_CLAIM"},
    ),
    "a key file": (
        f"umask 077; printf '%s' '{KEYFILE}' > {KEYFILE_PATH}; nmcli connection load {KEYFILE_PATH}",
        f"rm -f {KEYFILE_PATH}; nmcli connection reload",
        {"NM_PROFILE_CLAIM"},
    ),
    "a netplan file": (
        f"umask 077; printf 'network:\\n  ethernets:\\n    {FIRST}: {{dhcp4: true}}\\n' > /etc/netplan/50-cx7.yaml",
        "rm /etc/netplan/50-cx7.yaml",
        {"NETPLAN_FOREIGN_CLAIM"},
    ),
    "a tab": (
        "umask 077; printf 'network:\\n\\tversion: 2\\n' > /etc/netplan/50-x.yaml",
        "rm /etc/netplan/50-x.yaml",
        {"NETPLAN_UNREADABLE"},
    ),
    "text and then NULs": (
        "umask 077; printf 'network:\\n  version: 2\\n\\0\\0\\0' > /etc/netplan/50-x.yaml",
        "rm /etc/netplan/50-x.yaml",
        {"NETPLAN_UNREADABLE"},
    ),
    "an empty file": ("touch /etc/netplan/50-x.yaml", "rm /etc/netplan/50-x.yaml", set()),
    "a bond": (
        f"ip link add bond7 type bond mode active-backup; ip link set {FIRST} down; ip link set {FIRST} master bond7",
        f"ip link set {FIRST} nomaster; ip link del bond7; ip link set {FIRST} up",
        {"FABRIC_FUNCTION_ENSLAVED"},
    ),
    "a bridge": (
        f"ip link add br7 type bridge; ip link set {SECOND} master br7",
        f"ip link set {SECOND} nomaster; ip link del br7",
        {"FABRIC_FUNCTION_ENSLAVED"},
    ),
    "both functions in one subnet": (
        f"ip addr add 10.9.0.1/24 dev {FIRST}; ip addr add 10.9.0.2/24 dev {SECOND}",
        f"ip addr del 10.9.0.1/24 dev {FIRST}; ip addr del 10.9.0.2/24 dev {SECOND}",
        {"FABRIC_ONE_SUBNET"},
    ),
    "a route over the rails": (
        "ip route add 192.168.0.0/16 via 10.77.1.2 dev enP7s7",
        "ip route del 192.168.0.0/16",
        {"FABRIC_SUBNET_OVERLAP"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("what", CONFIGURED)
def test_what_somebody_else_configured_is_named(vm_pair: VirtualPair, what: str) -> None:
    make, undo, expected = CONFIGURED[what]
    with fault(vm_pair, HEAD, make, undo):
        plan = plan_of(cluster_of(vm_pair), facts_of(vm_pair))
    found = said(plan)
    assert {code for code, _ in found} == expected, plan["findings"]
    assert {node for _, node in found} <= {HEAD}


@pytest.mark.long
def test_networkmanager_that_hangs_stops_the_plan(vm_pair: VirtualPair) -> None:
    pid = "$(systemctl show -p MainPID --value NetworkManager)"
    with fault(vm_pair, HEAD, f"kill -STOP {pid}", f"kill -CONT {pid}"):
        plan = plan_of(cluster_of(vm_pair), facts_of(vm_pair))
    assert said(plan) == {("NETPLAN_NM_SILENT", HEAD)}, plan["findings"]


@pytest.mark.long
def test_a_cable_without_a_signal_is_told_from_a_function_that_is_off(vm_pair: VirtualPair) -> None:
    cluster = cluster_of(vm_pair)
    with fault(vm_pair, WORKER, f"ip link set {SECOND} down", f"ip link set {SECOND} up"):
        plan = plan_of(cluster, facts_of(vm_pair))
    assert said(plan) == set(), plan["findings"]
    assert ("FABRIC_SWITCHED_OFF", WORKER) in said(plan, "note")
    with Monitor(PROJECT / ".lab" / vm_pair.name, 1) as monitor:
        monitor.execute("set_link", name="rail0", up=False)
        try:
            plan = plan_of(cluster, facts_of(vm_pair))
        finally:
            monitor.execute("set_link", name="rail0", up=True)
    assert said(plan) == {("FABRIC_LINK_DOWN", WORKER)}, plan["findings"]


@pytest.mark.long
def test_a_network_that_is_right_is_adopted_and_one_node_without_joins_it(vm_pair: VirtualPair) -> None:
    add = "nmcli connection add type ethernet ifname {} con-name cx7-{} ipv4.method manual ipv4.addresses {}"
    up = "nmcli --wait 20 connection up cx7-{}"
    for rank, node in enumerate(vm_pair.nodes):
        for rail, netdev in enumerate((FIRST, SECOND)):
            vm_pair.sh(node, add.format(netdev, rail, f"10.9.{rail}.{1 + rank}/24") + "; " + up.format(rail))
    try:
        cluster, facts = cluster_of(vm_pair), facts_of(vm_pair)
        before = vm_pair.snapshot()
        plan = plan_of(cluster, facts)
        assert said(plan) == set(), plan["findings"]
        assert ("FABRIC_SUBNETS_FOUND", cluster.name) in said(plan, "note")
        assert [rail["address"] for rail in plan["nodes"][1]["rails"]] == ["10.9.0.2", "10.9.1.2"]

        arguments: dict[str, Any] = {
            str(one["node"]): {
                "node": one["node"],
                "rails": one["rails"],
                "mtu": plan["mtu"],
                "path": one["netplan"]["path"],  # type: ignore[index]
                "text": one["netplan"]["text"],  # type: ignore[index]
            }
            for one in plan["nodes"]
        }
        for result in everywhere(vm_pair, "fabric_netplan", arguments).values():
            assert (result["changed"], result["adopted"]) == (False, True), result
        assert changed_paths(before, vm_pair.snapshot()) == {}
    finally:
        for rail in (0, 1):
            vm_pair.sh(WORKER, f"nmcli connection delete cx7-{rail}")
    try:
        plan = plan_of(cluster, facts_of(vm_pair))
        assert said(plan) == set(), plan["findings"]
        assert [bool(node["adopted_from"]) for node in plan["nodes"]] == [True, False]
        assert [rail["address"] for rail in plan["nodes"][1]["rails"]] == ["10.9.0.13", "10.9.1.13"]
    finally:
        for rail in (0, 1):
            vm_pair.sh(HEAD, f"nmcli connection delete cx7-{rail}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture
def shared_port(tmp_path: Path) -> Iterator[VirtualPair]:
    """A pair of its own, both functions of both nodes in one broadcast domain."""
    name, ports = "lab-shared", dict(zip(("22212", "22213"), map(str, free_ports(2)), strict=True))
    machines = (PROJECT / "lab" / "machines" / "lab-fabric.yml").read_text(encoding="utf-8")
    hosts = (PROJECT / "inventory" / "lab-fabric" / "hosts.yml").read_text(encoding="utf-8")
    machines = machines.replace("name: lab-fabric", f"name: {name}").replace("shared_port: false", "shared_port: true")
    hosts = hosts.replace("{{ inventory_dir }}/../../.lab/lab-fabric", str(PROJECT / ".lab" / name))
    for old, new in ports.items():
        machines, hosts = machines.replace(old, new), hosts.replace(old, new)
    (tmp_path / f"{name}.yml").write_text(machines, encoding="utf-8")
    inventory = tmp_path / name
    (inventory / "group_vars").mkdir(parents=True)
    (inventory / "hosts.yml").write_text(hosts, encoding="utf-8")
    variables = f"cluster_name: {name}\ntakeover: true\ndisk_headroom_gib: 1\n"
    (inventory / "group_vars" / "lab_fabric.yml").write_text(variables, encoding="utf-8")
    pair = VirtualPair(name, folder=tmp_path)
    pair.lab("up")
    try:
        yield pair
    finally:
        pair.lab("down")


@pytest.mark.long
def test_twins_in_one_broadcast_domain_answer_for_themselves_once_the_plan_is_carried_out(
    shared_port: VirtualPair,
) -> None:
    cluster, facts = cluster_of(shared_port), facts_of(shared_port)
    wire = wire_of(shared_port, cluster, facts)
    heard = {(item["netdev"], item["peer"], item["peer_netdev"]) for item in wire[HEAD]["heard"]}
    assert {(FIRST, HEAD, SECOND), (FIRST, WORKER, SECOND), (SECOND, WORKER, FIRST)} <= heard
    plan = plan_of(cluster, facts, wire)
    assert said(plan) == set(), plan["findings"]
    worker: Any = plan["nodes"][1]
    for rail in worker["rails"]:
        shared_port.sh(WORKER, f"ip addr add {rail['address']}/24 dev {rail['netdev']}")
    asked = [rail["address"] for rail in worker["rails"]]

    def answers() -> dict[str, int]:
        """How many functions of the worker answer for each of its addresses."""
        ask = {"cluster": cluster.name, "node": HEAD, "peers": [], "netdevs": [FIRST], "addresses": asked}
        report = shared_port.module(HEAD, "fabric_frames", **ask)["wire"]
        return {address: sum(item["address"] == address for item in report["answered"]) for address in asked}

    assert set(answers().values()) == {2}
    for name, value in worker["sysctl"]["values"].items():
        shared_port.sh(WORKER, f"sysctl -qw {name}={value}")
    assert set(answers().values()) == {1}
