"""The netplan transaction on a machine of folders: what it decides, what it does, and that it can be taken back."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import guard, netplan, rollback, undo
from ansible.module_utils.spark.findings import Finding

from tests.unit.fabric.machine import Machine, said

UUID = "2edf06d6-63e5-4ef5-8f3d-2a6e4d2c9a01"
ORPHAN = f"/etc/netplan/90-NM-{UUID}.yaml"
OURS = "/etc/netplan/40-spark-fabric.yaml"
FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
FACTORY_NS = 1_759_104_000_000_000_000
RAILS = [
    netplan.Rail(0, FIRST, "192.168.200.12", 24, {"spark-02": "192.168.200.13"}),
    netplan.Rail(1, SECOND, "192.168.201.12", 24, {"spark-02": "192.168.201.13"}),
]


def text(renderer: str = "networkd") -> str:
    lines = ["network:", "  version: 2", "  ethernets:"]
    for rail in RAILS:
        lines += [f"    {rail.netdev}:", f"      renderer: {renderer}", f"      addresses: [{rail.cidr}]"]
    return "\n".join(lines) + "\n"


def wanted(**changes: Any) -> netplan.Wanted:
    given: dict[str, Any] = {
        "node": "spark-01",
        "path": OURS,
        "text": text(),
        "rails": RAILS,
        "mtu": 1500,
        "orphans": [],
        "rollback_s": 120,
    }
    return netplan.Wanted(**{**given, **changes})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.link("lo", "127.0.0.1/8", mtu=65536)
    machine.link("enP7s7", "10.77.0.12/24")
    machine.link(FIRST, up=False)
    machine.link(SECOND, up=False)
    return machine


@pytest.fixture
def node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> guard.Node:
    def call(argv: list[str], timeout_s: float = 60) -> dict[str, Any]:
        return {"argv": argv, "rc": machine(argv).rc, "said": ""}

    monkeypatch.setattr(rollback, "call", call)
    return guard.Node(machine, machine.root)


def put(machine: Machine, path: str, data: bytes, mode: int = 0o600) -> Path:
    file = machine.root / path.lstrip("/")
    file.write_bytes(data)
    file.chmod(mode)
    os.utime(file, ns=(FACTORY_NS, FACTORY_NS))
    return file


def set_addresses(machine: Machine, *, mtu: int = 1500) -> None:
    for rail in RAILS:
        machine.link(rail.netdev, rail.cidr, mtu=mtu)


def codes(findings: list[Finding]) -> list[str]:
    return [item.code for item in findings]


def change(node: guard.Node, asked: netplan.Wanted) -> tuple[netplan.Decision, dict[str, Any], list[Finding]]:
    decision = netplan.decide(node, asked)
    assert not decision.findings
    assert netplan.validate(node, asked, decision) is None
    done, wrong = netplan.carry_out(node, asked, decision)
    return decision, done, wrong


# --- orphans ---------------------------------------------------------------------------------------------------------


def test_an_orphan_is_moved_with_everything_it_is(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715), mode=0o640)
    _, done, wrong = change(node, wanted(orphans=[ORPHAN]))
    assert not wrong
    moved = done["quarantined"][0]
    kept = machine.root / moved["to"].lstrip("/")
    status = kept.stat()
    assert kept.read_bytes() == bytes(715)
    assert (moved["sha256"], moved["mode"]) == (hashlib.sha256(bytes(715)).hexdigest(), "0640")
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o640, FACTORY_NS)
    assert kept.parent.stat().st_mode & 0o077 == 0
    assert not (machine.root / ORPHAN.lstrip("/")).exists()
    entry = undo.read(root=node.state / "undo")[0]
    assert (entry["kind"], entry["path"], entry["to"]) == ("file_moved", ORPHAN, moved["to"])


def test_networkmanager_silent_stops_everything(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715))
    machine.uuids = None
    decision = netplan.decide(node, wanted(orphans=[ORPHAN]))
    assert codes(decision.findings) == ["NETPLAN_NM_SILENT"]
    assert not decision.changed


def test_a_live_connections_file_is_left_with_the_cure(machine: Machine, node: guard.Node) -> None:
    file = put(machine, ORPHAN, bytes(715))
    machine.uuids = [UUID]
    decision = netplan.decide(node, wanted(orphans=[ORPHAN]))
    assert codes(decision.findings) == ["NETPLAN_NUL_LIVE"]
    assert f"nmcli connection modify {UUID}" in decision.findings[0].remedy
    assert file.read_bytes() == bytes(715)


@pytest.mark.parametrize("data", [b"network: {version: 2}\n", b"network:\n" + bytes(200), b""])
def test_a_file_that_is_no_orphan_any_more_is_left(data: bytes, machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, data)
    decision = netplan.decide(node, wanted(orphans=[ORPHAN]))
    assert codes(decision.findings) == ["NETPLAN_ORPHAN_CHANGED"]
    assert not decision.quarantine


def test_an_all_nul_link_is_not_followed(machine: Machine, node: guard.Node) -> None:
    elsewhere = put(machine, "/etc/other", bytes(715))
    (machine.root / ORPHAN.lstrip("/")).symlink_to(elsewhere)
    assert codes(netplan.decide(node, wanted(orphans=[ORPHAN])).findings) == ["NETPLAN_ORPHAN_CHANGED"]


def test_a_file_moved_before_is_nothing_to_do(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    put(machine, OURS, text().encode())
    decision = netplan.decide(node, wanted(orphans=[ORPHAN]))
    assert not decision.findings
    assert not decision.changed


# --- deciding --------------------------------------------------------------------------------------------------------


def test_factory_state_wants_file_and_addresses(machine: Machine, node: guard.Node) -> None:
    decision = netplan.decide(node, wanted())
    assert (decision.write, decision.apply, decision.adopted) == (True, True, False)
    shown = netplan.diffs(node, wanted(), decision)
    assert shown[0]["after"] == text()
    assert f"{FIRST} 192.168.200.12/24 mtu 1500" in shown[1]["after"]


def test_right_file_and_right_addresses_are_nothing_to_do(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    put(machine, OURS, text().encode())
    assert not netplan.decide(node, wanted()).changed


def test_a_lost_address_is_applied_again(machine: Machine, node: guard.Node) -> None:
    machine.link(FIRST, RAILS[0].cidr)
    put(machine, OURS, text().encode())
    decision = netplan.decide(node, wanted())
    assert (decision.write, decision.apply) == (False, True)


def test_another_mtu_is_applied(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    put(machine, OURS, text().encode())
    assert netplan.decide(node, wanted(mtu=9000)).apply


def test_a_readable_file_for_others_is_corrected_without_a_blink(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    put(machine, OURS, text().encode(), mode=0o644)
    decision = netplan.decide(node, wanted())
    assert (decision.write, decision.apply) == (True, False)


def test_a_network_made_by_another_file_is_adopted(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    put(machine, "/etc/netplan/40-cx7.yaml", text().encode())
    decision = netplan.decide(node, wanted())
    assert decision.adopted
    assert codes(decision.findings) == ["FABRIC_ADOPTED"]
    assert not decision.changed


def test_a_profile_of_networkmanagers_own_is_adopted(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    profiles = "".join(f"{rail.netdev}:/etc/NetworkManager/system-connections/a\\:{rail.rail}\n" for rail in RAILS)
    machine.answer("nmcli", "-t", "-f", "DEVICE,FILENAME", stdout=profiles)
    assert netplan.decide(node, wanted()).adopted


def test_addresses_set_by_hand_get_a_file_and_no_apply(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    decision = netplan.decide(node, wanted())
    assert (decision.adopted, decision.write, decision.apply) == (False, True, False)


def test_what_networkd_remembers_of_a_removed_file_does_not_last(machine: Machine, node: guard.Node) -> None:
    set_addresses(machine)
    machine.answer("networkctl", stdout=json.dumps({"NetworkFile": f"/run/systemd/network/10-netplan-{FIRST}.network"}))
    assert not netplan.decide(node, wanted()).adopted


def test_another_files_claim_on_one_rail_is_refused(machine: Machine, node: guard.Node) -> None:
    machine.link(FIRST, RAILS[0].cidr)
    put(machine, "/etc/netplan/40-cx7.yaml", f"network:\n  ethernets:\n    {FIRST}: {{dhcp4: true}}\n".encode())
    decision = netplan.decide(node, wanted())
    assert codes(decision.findings) == ["NETPLAN_FOREIGN_CLAIM"]
    assert "40-cx7.yaml" in decision.findings[0].remedy


def test_a_missing_function(machine: Machine, node: guard.Node) -> None:
    del machine.links[SECOND]
    assert codes(netplan.decide(node, wanted()).findings) == ["FABRIC_FUNCTION_MISSING"]


# --- validating ------------------------------------------------------------------------------------------------------


def test_the_tree_is_checked_as_it_will_be(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715))
    put(machine, "/etc/netplan/90-NM-other.yaml", b"network: {version: 2}\n")
    seen: dict[str, bytes] = {}

    def generate(argv: Any) -> Any:
        folder = Path(argv[-1]) / "etc/netplan"
        seen.update({path.name: path.read_bytes() for path in folder.iterdir()})
        return said(rc=1, stderr=f"{folder}/90-NM-other.yaml:1:1: Invalid YAML\n")

    asked = wanted(orphans=[ORPHAN])
    machine.answer(str(machine.root / "usr/libexec/netplan/generate"), to=generate)
    invalid = netplan.validate(node, asked, netplan.decide(node, asked))
    assert sorted(seen) == ["40-spark-fabric.yaml", "90-NM-other.yaml"]
    assert seen["40-spark-fabric.yaml"] == text().encode()
    assert invalid is not None
    assert invalid.code == "NETPLAN_INVALID"
    assert invalid.evidence == ("/etc/netplan/90-NM-other.yaml:1:1: Invalid YAML",)
    assert (machine.root / ORPHAN.lstrip("/")).exists()


def test_no_generator(machine: Machine, node: guard.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.root / "usr/libexec/netplan/generate").unlink()
    monkeypatch.setattr("shutil.which", lambda name: None)
    missing = netplan.validate(node, wanted(), netplan.decide(node, wanted()))
    assert missing is not None
    assert missing.code == "NETPLAN_TOOL_MISSING"


# --- changing --------------------------------------------------------------------------------------------------------


def test_the_rollback_is_armed_before_anything_changes(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715))
    there: list[bool] = []

    def look(argv: Any) -> Any:
        there.append((machine.root / ORPHAN.lstrip("/")).exists())
        return said()

    machine.answer("systemd-run", to=look)
    _, done, _ = change(node, wanted(orphans=[ORPHAN]))
    assert there == [True]
    assert (done["armed"], done["applied"]) == (True, True)
    armed = machine.ran("systemd-run")[0]
    assert "--on-active=120s" in armed
    assert Path(armed[-1]).read_text() == Path(rollback.__file__).read_text()
    assert machine.ran("netplan", "apply")
    assert (machine.root / OURS.lstrip("/")).stat().st_mode & 0o7777 == 0o600
    assert (machine.root / "etc/systemd/system" / guard.BOOT_UNIT).exists()


def test_without_a_timer_nothing_is_changed(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715))
    machine.answer("systemd-run", rc=1, stderr="Failed to start transient timer unit")
    _, done, wrong = change(node, wanted(orphans=[ORPHAN]))
    assert codes(wrong) == ["FABRIC_ROLLBACK_NOT_ARMED"]
    assert not done["armed"]
    assert (machine.root / ORPHAN.lstrip("/")).exists()
    assert not (machine.root / OURS.lstrip("/")).exists()
    assert not guard.pending(node)


def test_networkmanager_is_never_restarted(machine: Machine, node: guard.Node) -> None:
    change(node, wanted(text=text("NetworkManager")))
    assert not machine.ran("netplan", "apply")
    assert not machine.ran("netplan", "generate")
    assert (str(machine.root / "usr/libexec/netplan/generate"),) in machine.calls
    ups = [call[-1] for call in machine.ran("nmcli", "--wait")]
    assert ups == [f"netplan-{FIRST}", f"netplan-{SECOND}"]


def test_a_function_that_networkmanager_ignores_is_handed_to_it(machine: Machine, node: guard.Node) -> None:
    machine.answer("nmcli", "-t", "-f", "DEVICE,STATE", stdout=f"{FIRST}:unmanaged\n{SECOND}:disconnected\n")
    change(node, wanted(text=text("NetworkManager")))
    assert [call[3] for call in machine.ran("nmcli", "device", "set")] == [FIRST]


def test_a_timer_of_an_earlier_run_makes_room(machine: Machine, node: guard.Node) -> None:
    answers = [said(rc=1, stderr="Unit spark-fabric-rollback.timer was already loaded"), said()]
    machine.answer("systemd-run", to=lambda argv: answers.pop(0))
    _, done, wrong = change(node, wanted())
    assert (done["armed"], wrong) == (True, [])
    assert machine.ran("systemctl", "stop", "spark-fabric-rollback.timer")


def test_networkd_beside_networkmanager_is_reloaded_alone(machine: Machine, node: guard.Node) -> None:
    machine.answer("nmcli", "-t", "-f", "RUNNING", stdout="running\n")
    change(node, wanted())
    assert not machine.ran("netplan", "apply")
    assert [call[-1] for call in machine.ran("networkctl", "reconfigure")] == [FIRST, SECOND]
    rollback.roll_back(node.rollback)
    assert not machine.ran("netplan", "apply")


def test_without_carrier_networkmanager_may_come_later(machine: Machine, node: guard.Node) -> None:
    for rail in RAILS:
        machine.link(rail.netdev, carrier=False)
    machine.answer("nmcli", "--wait", rc=4, stderr="Error: Connection activation failed")
    _, done, wrong = change(node, wanted(text=text("NetworkManager")))
    assert not wrong
    assert done["armed"]


def test_a_failed_apply_goes_back_at_once(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715), mode=0o640)
    before = put(machine, OURS, b"network: {version: 2}\n")
    state = before.stat()
    machine.answer("netplan", "apply", rc=78, stderr="boom\n")
    _, done, wrong = change(node, wanted(orphans=[ORPHAN]))
    assert codes(wrong) == ["NETPLAN_APPLY_FAILED"]
    assert wrong[0].evidence == ("boom",)
    assert not done["armed"]
    after = before.stat()
    assert before.read_bytes() == b"network: {version: 2}\n"
    assert (after.st_mode, after.st_mtime_ns) == (state.st_mode, state.st_mtime_ns)
    orphan = machine.root / ORPHAN.lstrip("/")
    assert orphan.read_bytes() == bytes(715)
    assert (orphan.stat().st_mode & 0o7777, orphan.stat().st_mtime_ns) == (0o640, FACTORY_NS)
    assert not (machine.root / "etc/systemd/system" / guard.BOOT_UNIT).exists()


# --- taking back and keeping -----------------------------------------------------------------------------------------


def test_the_timer_brings_everything_back(machine: Machine, node: guard.Node) -> None:
    put(machine, ORPHAN, bytes(715))
    change(node, wanted(orphans=[ORPHAN]))
    machine.calls.clear()
    report = rollback.roll_back(node.rollback)
    assert report is not None
    assert (machine.root / ORPHAN.lstrip("/")).read_bytes() == bytes(715)
    assert not (machine.root / OURS.lstrip("/")).exists()
    assert ("ip", "address", "del", "192.168.200.12/24", "dev", FIRST) in machine.calls
    assert ("ip", "link", "set", "dev", FIRST, "down") in machine.calls
    assert undo.read(root=node.state / "undo")[-1]["kind"] == "rolled_back"
    assert rollback.roll_back(node.rollback) is None


def test_an_interrupted_rollback_is_finished_by_the_next(
    machine: Machine, node: guard.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine, ORPHAN, bytes(715))
    change(node, wanted(orphans=[ORPHAN]))

    def power_cut(state: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rollback, "reapply", power_cut)
        with pytest.raises(KeyboardInterrupt):
            rollback.roll_back(node.rollback)
    assert rollback.roll_back(node.rollback) is not None
    assert (machine.root / ORPHAN.lstrip("/")).read_bytes() == bytes(715)


def test_confirmed_once_and_for_all(machine: Machine, node: guard.Node) -> None:
    change(node, wanted())
    assert guard.pending(node)
    assert guard.confirm(node)
    assert not guard.pending(node)
    assert rollback.roll_back(node.rollback) is None
    assert (machine.root / OURS.lstrip("/")).read_text() == text()
    assert not (machine.root / "etc/systemd/system" / guard.BOOT_UNIT).exists()
    assert not guard.confirm(node)


def test_an_interrupted_run_is_confirmed_by_the_next(machine: Machine, node: guard.Node) -> None:
    change(node, wanted())
    set_addresses(machine)
    again = netplan.decide(node, wanted())
    assert not again.changed
    assert again.pending
    assert not netplan.settle(node, again)
    done, wrong = netplan.carry_out(node, wanted(), again)
    assert (done["armed"], done["applied"], wrong) == (True, False, [])


def test_an_interrupted_run_of_something_else_is_taken_back_first(machine: Machine, node: guard.Node) -> None:
    change(node, wanted())
    other = wanted(text=text("NetworkManager"))
    assert netplan.settle(node, netplan.decide(node, other))
    assert not guard.pending(node)
    assert netplan.decide(node, other).before is None


def test_a_file_written_can_be_undone_from_the_journal(machine: Machine, node: guard.Node) -> None:
    before = put(machine, OURS, b"network: {version: 2}\n", mode=0o640)
    change(node, wanted())
    entry = next(e for e in undo.read(root=node.state / "undo") if e["kind"] == "file_written")
    assert entry["sha256"] == hashlib.sha256(before.read_bytes()).hexdigest()
    assert entry["before"]["mode"] == "0640"
    assert Path(entry["backup"]).read_bytes() == b"network: {version: 2}\n"
