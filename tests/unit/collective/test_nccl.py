"""NCCL's log: two of NCCL 2.28 as it was, with no RDMA device, and lines in its form for what a Spark has."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.spark.parse.nccl import parse_log

DATA = Path(__file__).parent / "data"
PREFIX = "spark-01:71:93 [0] NCCL INFO "

TWINS = f"""\
{PREFIX}NCCL version 2.27.7+cuda13.0
{PREFIX}NCCL_IB_HCA set to =rocep1s0f0,roceP2p1s0f0
{PREFIX}NET/IB : Made virtual device [0] name=rocep1s0f0 speed=200000 ndevs=1
{PREFIX}NET/IB : Made virtual device [1] name=roceP2p1s0f0 speed=200000 ndevs=1
{PREFIX}NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.12<0>
{PREFIX}Using network IB
{PREFIX}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
{PREFIX}Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/1
{PREFIX}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
{PREFIX}Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1
{PREFIX}NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 311 mtu 3 GID 3 (0/D0C8A8C0FFFF0000) fifoRkey=0x1 fifoLkey=0x1
{PREFIX}NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 312 mtu 3 GID 4 (0/D0C9A8C0FFFF0000) fifoRkey=0x1 fifoLkey=0x1
"""
MERGED = f"""\
{PREFIX}NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.12<0>
{PREFIX}NET/IB : Made virtual device [2] name=rocep1s0f0+roceP2p1s0f0 speed=400000 ndevs=2
{PREFIX}Using network IB
{PREFIX}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2
"""
PLUGIN = f"""\
{PREFIX}NET/Plugin: Loaded net plugin NCCL RDMA Plugin v11 (v11)
{PREFIX}P2P plugin v11 IBext_v11
{PREFIX}NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.12<0>
{PREFIX}Using network IBext_v11
{PREFIX}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v11/0/GDRDMA
{PREFIX}Channel 01/0 : 0[0] -> 1[0] [send] via NET/IBext_v11/1/GDRDMA
"""
OLD = f"""\
NCCL version 2.19.3+cuda12.3
{PREFIX}NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB enP7s7:10.0.0.5<0>
{PREFIX}Using network IB
{PREFIX}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_nccl_says_without_an_rdma_device(rank: int) -> None:
    log = parse_log((DATA / f"nccl-2.28-sockets-rank{rank}.log").read_text().splitlines())
    assert log.version == "2.28.9"
    assert (log.transport, log.over_sockets) == ("NET/Socket", True)
    assert log.channels == {"NET/Socket": 4}
    assert (log.hcas, log.interfaces, log.carried) == ([], ["lo"], ["lo"])
    assert any("NET/IB : No device found" in line for line in log.lines)


@pytest.mark.parametrize(
    ("text", "transport", "channels", "hcas", "carried"),
    [
        (TWINS, "NET/IB", {"NET/IB": 4}, 2, ["rocep1s0f0", "roceP2p1s0f0"]),
        (MERGED, "NET/IB", {"NET/IB": 1}, 2, ["rocep1s0f0", "roceP2p1s0f0"]),
        (PLUGIN, "NET/IBext_v11", {"NET/IBext_v11": 2}, 2, ["rocep1s0f0", "roceP2p1s0f0"]),
        (OLD, "NET/IB", {"NET/IB": 1}, 1, ["rocep1s0f0"]),
    ],
    ids=["twins", "merged", "plugin", "old"],
)
def test_rdma_is_told_with_its_devices(
    text: str, transport: str, channels: dict[str, int], hcas: int, carried: list[str]
) -> None:
    log = parse_log(text.splitlines())
    assert (log.transport, log.over_sockets) == (transport, False)
    assert log.channels == channels
    assert len(log.hcas) == hcas
    assert log.carried == carried


def test_the_gid_of_each_device_and_the_plugin_are_kept() -> None:
    log = parse_log(TWINS.splitlines())
    assert log.gids == {"rocep1s0f0": 3, "roceP2p1s0f0": 4}
    assert log.version == "2.27.7"
    assert parse_log(PLUGIN.splitlines()).plugins == ["NCCL RDMA Plugin v11 (v11)"]


def test_one_channel_over_sockets_makes_it_sockets() -> None:
    log = parse_log([*TWINS.splitlines(), f"{PREFIX}Channel 02/0 : 0[0] -> 1[0] [send] via NET/Socket/0"])
    assert (log.transport, log.over_sockets) == ("NET/Socket", True)


def test_a_channel_inside_a_node_is_no_transport_between_nodes() -> None:
    log = parse_log([f"{PREFIX}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", f"{PREFIX}Using network IB"])
    assert log.transport == "NET/IB"
    assert log.channels == {"P2P/CUMEM": 1}


def test_silence_is_no_transport() -> None:
    assert parse_log(["something else", ""]).transport is None
