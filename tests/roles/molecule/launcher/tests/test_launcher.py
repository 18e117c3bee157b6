"""launcher: the same bytes on every node, as the manifest says, and nothing started."""

from __future__ import annotations

import json

from testinfra.host import Host

FOLDER = "/usr/local/lib/spark-cluster"


def test_the_files_are_those_of_the_manifest(host: Host) -> None:
    listed = json.loads(host.check_output(f"cat {FOLDER}/manifest.json"))["files"]
    assert f"{FOLDER}/rankctl.pyz" in listed
    said = host.check_output("sha256sum " + " ".join(listed))
    assert {path: digest for digest, path in (line.split() for line in said.splitlines())} == listed


def test_both_nodes_have_the_same(hosts: list[Host]) -> None:
    command = f"find {FOLDER} -type f -exec sha256sum {{}} + | sort; stat -c '%a %U %n' {FOLDER}/*"
    assert len({host.check_output(command) for host in hosts}) == 1


def test_the_plan_is_this_nodes_own_and_for_root_alone(host: Host) -> None:
    file = host.file("/etc/spark-cluster/plan.json")
    assert (file.user, file.mode) == ("root", 0o600)
    assert json.loads(file.content_string)["node"] == host.check_output("hostname")


def test_rankctl_runs_without_a_controller(host: Host) -> None:
    assert host.run(f"python3 {FOLDER}/rankctl.pyz status --json").rc in (0, 3)


def test_nothing_was_started(host: Host) -> None:
    assert host.run("systemctl is-active spark-rank.service").stdout.strip() == "inactive"
