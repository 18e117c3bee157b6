"""reboot_safety: the unit of an earlier deployment is out of the boot, and can be put back."""

from __future__ import annotations

import json

from testinfra.host import Host

UNIT = "vllm-single.service"


def test_the_unit_is_disabled_and_still_there(head: Host) -> None:
    assert head.run("systemctl is-enabled %s", UNIT).stdout.strip() == "disabled"
    assert head.file(f"/etc/systemd/system/{UNIT}").exists


def test_the_journal_can_put_it_back(head: Host) -> None:
    lines = head.check_output("cat /var/lib/spark-cluster/undo/journal.jsonl").splitlines()
    [entry] = [entry for entry in map(json.loads, lines) if entry["kind"] == "unit_disabled"]
    assert (entry["unit"], entry["was_enabled"]) == (UNIT, True)


def test_other_units_are_left_alone(host: Host) -> None:
    for unit in ("docker.service", "ssh.service", "NetworkManager.service"):
        assert host.run("systemctl is-enabled %s", unit).stdout.strip() == "enabled"
