"""What no program prints: numbers without end, documents without a floor. Each parser says what it can, or that it is
none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.link import hardware, keeper
from ansible.module_utils.spark.parse import ethtool, firewall, ip, lspci, nccl, nmcli, perftest, rdma, sockets, system
from ansible.module_utils.spark.parse import systemd as units
from ansible.module_utils.spark.parse.whole import document, whole

LONG = "9" * 5000
DEEP = "[" * 100_000

TOLERANT: dict[str, tuple[Callable[[str], Any], str, Any]] = {
    "a speed": (ethtool.parse_link, f"\tSpeed: {LONG}Mb/s\n\tLanes: {LONG}\n", ethtool.EthtoolLink(None, None, None)),
    "a counter": (ethtool.parse_counters, f"  a: {LONG}\n  b: 18446744073709551615\n", {"b": 2**64 - 1}),
    "other digits": (ethtool.parse_counters, "  a: \u0664\u0662\n", {}),
    "a width": (
        lambda text: [link.width for link in lspci.parse_links(text)],
        f"0000:01:00.0 Ethernet\n\t\tLnkSta:\tSpeed 32GT/s, Width x{LONG}\n",
        [None],
    ),
    "a PCIe speed": (
        lambda text: [link.speed_gts for link in lspci.parse_links(text)],
        "0000:01:00.0 Ethernet\n\t\tLnkSta:\tSpeed 3.2.1GT/s, Width x4\n",
        [None],
    ),
    "memory": (system.parse_meminfo, f"MemTotal: {LONG} kB\n", {"total_bytes": 0, "available_bytes": 0}),
    "a port": (sockets.parse_listeners, f"LISTEN 0 1 0.0.0.0:{LONG} 0.0.0.0:*\n", []),
    "a version": (perftest.writes_json, f"{LONG}.1", False),
    "a GID index": (lambda text: perftest.parse_run(text).gid_index, f" GID index       : {LONG}\n", None),
    "a GID": (lambda text: perftest.parse_run(text).local_address, f" GID: {':'.join([LONG] * 16)}\n", None),
    "a row": (
        lambda text: perftest.parse_run(text).rows,
        f"#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n {LONG} 1 1 1 1\n",
        (),
    ),
    "a status": (
        lambda text: getattr(perftest.failure(1, "", text), "kind", None),
        f"Completion with error\nFailed status {LONG}\n",
        "completion_error",
    ),
    "a device of NCCL": (
        lambda text: nccl.parse_log([text]).gids,
        f"NET/IB: IbDev {LONG} Port 1 qpn 3 GID {LONG} (x)",
        {},
    ),
    "a stamp of the kernel": (
        lambda text: hardware.kernel(text)["cable_events"],
        f"[{LONG}.000000] mlx5_core 0000:01:00.0: Cable plugged\n",
        [],
    ),
    "a route": (ip.parse_proc_route, f"\neth0\t00000000\t00000000\t1\t0\t0\t{LONG}\t00000000\n", []),
    "a connection": (nmcli.parse_connections, DEEP, []),
    "a rule set": (firewall.nft_input, DEEP, (False, [])),
    "a command line": (lambda text: units.ports([text]), f"--port {LONG}", []),
}


@pytest.mark.parametrize("case", TOLERANT, ids=str)
def test_what_is_no_number_is_none(case: str) -> None:
    parse, text, result = TOLERANT[case]
    assert parse(text) == result


@pytest.mark.parametrize("text", [DEEP, f"[{LONG}]", '{"a": ' * 50_000, "nothing", "17", '["x"]'])
@pytest.mark.parametrize(
    "parse",
    [ip.parse_addr, ip.parse_routes, lambda text: perftest.parse_json(text, gbits=True)],
    ids=["addresses", "routes", "perftest"],
)
def test_a_document_that_cannot_be_read_is_one_kind_of_error(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one it is depends on the document
        parse(text)


def test_a_result_without_bounds_is_none() -> None:
    result = '{"test_info": {}, "results": {"MsgSize": 1e999, "n_iterations": 1}}'
    with pytest.raises(ValueError, match="not a perftest result"):
        perftest.parse_json(result, gbits=True)


def test_whole_numbers_and_documents() -> None:
    assert [whole(text) for text in ("0", "18446744073709551615", LONG, "-1", "1.0", "", None, "\u0664")] == [
        *(0, 2**64 - 1),
        *[None] * 6,
    ]
    assert document('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="too deeply"):
        document(DEEP)


def test_files_of_the_kernel_that_hold_no_number(tmp_path: Path) -> None:
    rail = {"netdev": "enp1s0f0np0", "device": "rocep1s0f0"}
    folder = tmp_path / "sys/class/net/enp1s0f0np0/statistics"
    folder.mkdir(parents=True)
    for name in ("tx_bytes", "rx_bytes"):
        (folder / name).write_text(LONG)
    assert keeper.moving(rail, tmp_path) is None
    told = keeper.counters(rail, tmp_path, lambda argv: f"  tx_bytes_phy: {LONG}\n  rx_bytes_phy: 7\n")
    assert told == {"rx_bytes_phy": 7}
    (tmp_path / "gids").mkdir()
    (tmp_path / "gids" / ("9" * 200)).write_text("x")
    assert rdma.read_gids(tmp_path) == []
