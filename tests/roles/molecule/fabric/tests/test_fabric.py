"""fabric: two rails with addresses, the orphan in quarantine, and everybody else's files as they were."""

from __future__ import annotations

import hashlib
import json

from testinfra.host import Host

RAILS = {"enp1s0f0np0": "192.168.200.", "enP2p1s0f0np0": "192.168.201."}
ORPHAN_SHA256 = hashlib.sha256(bytes(715)).hexdigest()


def test_both_rails_reach_the_peer(host: Host) -> None:
    for netdev, subnet in RAILS.items():
        own = [a for a in host.interface(netdev).addresses if a.startswith(subnet)]
        assert len(own) == 1
        peer = subnet + ("13" if own[0].endswith(".12") else "12")
        assert host.run("ping -c 1 -W 2 -I %s %s", netdev, peer).rc == 0


def test_the_file_is_for_root_alone(host: Host) -> None:
    file = host.file("/etc/netplan/40-spark-fabric.yaml")
    assert (file.user, file.group, file.mode) == ("root", "root", 0o600)
    assert host.run("netplan generate").rc == 0


def test_the_orphan_is_kept_as_it_was_and_recorded(host: Host) -> None:
    journal = host.check_output("cat /var/lib/spark-cluster/undo/journal.jsonl")
    moved = [entry for entry in map(json.loads, journal.splitlines()) if entry["kind"] == "file_moved"]
    assert len(moved) == 1
    assert not host.file(moved[0]["path"]).exists
    kept = host.file(moved[0]["to"])
    assert kept.sha256sum == ORPHAN_SHA256 == moved[0]["before"]["sha256"]
    assert kept.mode == 0o600
    assert kept.mtime.date().isoformat() == "2025-09-29"


def test_a_file_of_a_live_connection_is_left_alone(host: Host) -> None:
    [line] = host.check_output("sha256sum /etc/netplan/90-NM-*.yaml").splitlines()
    assert line.split()[0] != ORPHAN_SHA256


def test_no_rollback_waits(host: Host) -> None:
    assert host.check_output("systemctl list-timers --all --no-legend 'spark-*'") == ""
