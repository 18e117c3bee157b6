"""ip, rdma, sysfs GID tables, ethtool, lspci, nmcli and ss."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.spark.parse import ethtool, ip, lspci, nmcli, rdma, sockets

NET = Path(__file__).parent.parent / "fixtures" / "net"


def read(name: str) -> str:
    return (NET / name).read_text()


def test_addresses_before_and_after_the_fabric_is_set_up() -> None:
    before = {link.name: link for link in ip.parse_addr(read("ip-addr-before.json"))}
    assert list(before) == ["lo", "mgmt0", "enp1s0f0np0", "enP2p1s0f0np0"]
    assert before["enp1s0f0np0"].addresses == ()
    assert before["enp1s0f0np0"].carrier
    assert before["enp1s0f0np0"].admin_up
    assert before["enp1s0f0np0"].mtu == 1500
    after = {link.name: link for link in ip.parse_addr(read("ip-addr-after.json"))}
    assert after["enp1s0f0np0"].addresses == ("192.168.100.11/24",)
    # A link-local address beside the planned one stays visible: it adds a GID.
    assert after["enP2p1s0f0np0"].addresses == ("169.254.191.53/16", "192.168.101.11/24")
    assert after["enp1s0f0np0"].mac == "52:54:00:aa:00:01"


def test_links_without_addresses_and_with_a_master() -> None:
    assert {link.name: link.mtu for link in ip.parse_addr(read("ip-link.json"))}["enp1s0f0np0"] == 9000
    text = '[{"ifname":"a","flags":["BROADCAST"],"mtu":1500,"operstate":"DOWN","master":"bond0"},{}]'
    assert ip.parse_addr(text) == [ip.Link("a", "", "down", False, 1500, "bond0", ())]


@pytest.mark.parametrize("text", ["{}", "[1]", "nonsense"])
def test_what_ip_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's message or ours
        ip.parse_addr(text)


def test_routes() -> None:
    text = '[{"dst":"default","gateway":"10.0.2.2","dev":"mgmt0","metric":100},{"dst":"192.168.200.0/24","dev":"e0"}]'
    assert ip.parse_routes(text) == [
        {"dst": "default", "dev": "mgmt0", "gateway": "10.0.2.2", "metric": 100},
        {"dst": "192.168.200.0/24", "dev": "e0", "gateway": None, "metric": 0},
    ]
    assert ip.parse_routes("") == []


def test_routes_of_proc() -> None:
    text = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "mgmt0\t00000000\t0202000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "enp1s0f0np0\t00C8A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "damaged\tline\n"
    )
    assert ip.parse_proc_route(text) == [
        {"dst": "default", "dev": "mgmt0", "gateway": "10.0.2.2", "metric": 100},
        {"dst": "192.168.200.0/24", "dev": "enp1s0f0np0", "gateway": None, "metric": 0},
    ]
    assert ip.parse_proc_route("") == []


ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def gid_table(port: Path, slots: dict[int, tuple[str, str, str]], size: int) -> None:
    """A port as sysfs shows it; a missing type file stands for the EINVAL of an empty slot."""
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    for index in range(size):
        gid, kind, netdev = slots.get(index, (ZERO, "", ""))
        (port / "gids" / str(index)).write_text(f"{gid}\n")
        if kind:
            (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
        if netdev:
            (port / "gid_attrs/ndevs" / str(index)).write_text(f"{netdev}\n")
    (port / "state").write_text("4: ACTIVE\n")


def test_gid_tables_of_soft_roce(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/infiniband/rocep1s0f0"
    gid_table(
        device / "ports/1",
        {
            0: ("fe80:0000:0000:0000:5054:00ff:feaa:0001", "RoCE v2", "enp1s0f0np0"),
            1: ("0000:0000:0000:0000:0000:ffff:c0a8:640b", "RoCE v2", "enp1s0f0np0"),
        },
        1024,
    )
    (device / "parent").write_text("enp1s0f0np0\n")
    (found,) = rdma.read_devices(tmp_path)
    assert (found["name"], found["port"], found["netdev"], found["state"]) == ("rocep1s0f0", 1, "enp1s0f0np0", "ACTIVE")
    assert [(gid["index"], gid["type"]) for gid in found["gids"]] == [(0, "RoCE v2"), (1, "RoCE v2")]
    assert found["gids"][1]["gid"] == "0000:0000:0000:0000:0000:ffff:c0a8:640b"


def test_gid_tables_of_hardware_in_order_and_with_holes(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/infiniband/roceP2p1s0f0"
    v4 = "0000:0000:0000:0000:0000:ffff:c0a8:c90c"
    gid_table(
        device / "ports/1",
        {
            2: (v4, "IB/RoCE v1", "enP2p1s0f0np0"),
            10: (v4, "RoCE v2", "enP2p1s0f0np0"),
            # Gone between the two reads.
            11: (v4, "", ""),
        },
        16,
    )
    (device / "device/net/enP2p1s0f0np0").mkdir(parents=True)
    (found,) = rdma.read_devices(tmp_path)
    assert found["netdev"] == "enP2p1s0f0np0"
    assert [(gid["index"], gid["type"]) for gid in found["gids"]] == [(2, "IB/RoCE v1"), (10, "RoCE v2")]


def test_a_node_without_rdma(tmp_path: Path) -> None:
    assert rdma.read_devices(tmp_path) == []
    assert rdma.read_gids(tmp_path / "ports/1") == []


def test_ethtool_link() -> None:
    assert ethtool.parse_link(read("ethtool-speed200g.txt")).speed_mbps == 200000
    unknown = ethtool.parse_link(read("ethtool.txt"))
    assert unknown.speed_mbps is None
    assert unknown.link_detected is True
    assert ethtool.parse_link(read("ethtool-nosuch.txt")) == ethtool.EthtoolLink(None, None, None)
    spark = "Settings for enp1s0f0np0:\n\tSpeed: 200000Mb/s\n\tLanes: 4\n\tAuto-negotiation: on\n\tLink detected: yes\n"
    assert ethtool.parse_link(spark) == ethtool.EthtoolLink(200000, True, True, 4)


def test_ethtool_driver() -> None:
    assert ethtool.parse_driver(read("ethtool-i.txt")) == ethtool.EthtoolDriver("virtio_net", "", "0000:00:04.0")
    assert ethtool.parse_driver("") == ethtool.EthtoolDriver("", "", "")


def test_counters_stay_exact() -> None:
    counters = ethtool.parse_counters(read("ethtool-S-mlx5.txt"))
    assert counters["tx_vport_rdma_unicast_bytes"] == 9007199254740993
    assert counters["rx_vport_rdma_unicast_bytes"] == 18014398509481985
    assert counters["tx_discards_phy"] == 3
    assert "[0] rx_ring_full" not in counters
    assert ethtool.parse_counters(read("ethtool-S.txt"))["tx_kicks"] == 14293
    assert ethtool.parse_counters("no stats available\n") == {}


def test_pcie_links() -> None:
    healthy, slow, hidden = lspci.parse_links(read("lspci-vv.txt"))
    assert (healthy.address, healthy.speed_gts, healthy.width, healthy.degraded) == ("0000:01:00.0", 32.0, 4, False)
    assert (slow.address, slow.speed_gts, slow.width, slow.degraded) == ("0002:01:00.0", 2.5, 2, True)
    assert hidden.degraded is None
    assert "ConnectX-7" in healthy.description


def test_pcie_list_without_links() -> None:
    devices = lspci.parse_links(read("lspci.txt"))
    assert devices[3].address == "0000:00:03.0"
    assert all(device.degraded is None for device in devices)


def test_nmcli_uuids_and_fields() -> None:
    text = "05ec54af-9f53-3227-867e-c7e879b25c37\ne9ba5b83-c365-4847-bedb-4a39ff520085\n\nError: nonsense\n"
    assert nmcli.parse_uuids(text) == ["05ec54af-9f53-3227-867e-c7e879b25c37", "e9ba5b83-c365-4847-bedb-4a39ff520085"]
    assert nmcli.parse_uuids("Error: NetworkManager is not running.\n") == []
    assert nmcli.split_terse(r"Home\: 5 GHz:a\\b::wifi") == ["Home: 5 GHz", "a\\b", "", "wifi"]


def test_listeners() -> None:
    text = (
        'LISTEN 0 4096 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=411,fd=17))\n'
        "LISTEN 0      128          0.0.0.0:22         0.0.0.0:*    \n"
        'LISTEN 0 2048 [::]:8000 [::]:* users:(("vllm",pid=77,fd=9),("vllm",pid=78,fd=9))\n'
        'LISTEN 0 5 *:12000 *:* users:(("ib_write_bw",pid=901,fd=4))\n'
        "ESTAB 0 0 10.0.0.1:22 10.0.0.2:50000\n"
        "rubbish\n"
    )
    assert [(entry["port"], entry["address"], entry["process"]) for entry in sockets.parse_listeners(text)] == [
        (53, "127.0.0.53", "systemd-resolve[411]"),
        (22, "0.0.0.0", ""),
        (8000, "::", "vllm[77]"),
        (12000, "*", "ib_write_bw[901]"),
    ]
    assert sockets.parse_listeners("") == []
