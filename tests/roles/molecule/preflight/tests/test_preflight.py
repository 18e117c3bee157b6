"""preflight looks and changes nothing."""

from __future__ import annotations

from testinfra.host import Host

OURS = "/etc/spark-cluster /usr/local/lib/spark-cluster /var/lib/spark-cluster /etc/netplan/40-spark-fabric.yaml"


def test_nothing_of_ours_is_on_the_node(host: Host) -> None:
    assert host.run(f"ls -d {OURS} 2>/dev/null").stdout == ""


def test_the_orphan_lies_where_it_was(host: Host) -> None:
    found = host.check_output("find /etc/netplan -name '90-NM-*.yaml' -size 715c -exec stat -c '%Y' {} +")
    assert [int(line) // 86400 for line in found.split()] == [20360]  # 2025-09-29


def test_no_rail_has_an_address(host: Host) -> None:
    assert host.check_output("ip -4 -br addr show enp1s0f0np0; ip -4 -br addr show enP2p1s0f0np0").count("/24") == 0


def test_the_earlier_deployment_is_still_enabled(head: Host) -> None:
    assert head.service("vllm-single.service").is_enabled
