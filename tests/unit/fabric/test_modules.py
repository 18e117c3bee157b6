"""The modules themselves: what they return, and what they refuse, on a machine of folders."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import gids, guard, reach, rollback
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.runner import Completed
from ansible.module_utils.testing import patch_module_args

from tests.unit.fabric.machine import Machine

LIBRARY = Path(__file__).resolve().parents[3] / "library"
RAILS: list[dict[str, Any]] = [
    {"rail": rail, "netdev": name, "address": f"192.168.{200 + rail}.12", "prefix": 24, "peer_addresses": {}}
    for rail, name in enumerate(("enp1s0f0np0", "enP2p1s0f0np0"))
]
TEXT = "network:\n  ethernets:\n" + "".join(
    f"    {rail['netdev']}: {{renderer: networkd, addresses: [{rail['address']}/24]}}\n" for rail in RAILS
)
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    for rail in RAILS:
        machine.link(rail["netdev"], up=False)
    monkeypatch.setattr(guard, "Node", lambda run, root=tmp_path, real=guard.Node: real(machine, root))
    monkeypatch.setattr(link, "Place", lambda run, python, real=link.Place: real(machine, tmp_path, python))
    monkeypatch.setattr(rollback, "call", lambda argv, timeout_s=60: {"argv": argv, "rc": machine(argv).rc, "said": ""})
    return machine


@pytest.fixture
def call(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a module of ours as Ansible would, with its commands going to the machine."""

    def run(name: str, **arguments: Any) -> dict[str, Any]:
        spec = importlib.util.spec_from_file_location(name, LIBRARY / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, "run"):
            monkeypatch.setattr(module, "run", machine)
        with patch_module_args({"node": "spark-01", **arguments}), pytest.raises(SystemExit):
            module.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def codes(result: dict[str, Any]) -> list[str]:
    return [item["code"] for item in result["findings"]]


def configure(call: Call, **arguments: Any) -> dict[str, Any]:
    given = {"path": "/etc/netplan/40-spark-fabric.yaml", "text": TEXT, "rails": RAILS}
    return call("fabric_netplan", **{**given, **arguments})


def test_check_mode_shows_the_file_and_writes_nothing(call: Call, machine: Machine) -> None:
    result = configure(call, _ansible_check_mode=True)
    assert result["changed"]
    assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]
    assert result["diff"][0]["after"] == TEXT
    assert list((machine.root / "etc/netplan").iterdir()) == []
    assert not machine.ran("systemd-run")


def test_change_prove_keep(call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SETTLE_S", 0)
    monkeypatch.setattr(reach, "GOOD_IN_A_ROW", 1)
    assert configure(call)["armed"]
    for rail in RAILS:
        machine.link(rail["netdev"], f"{rail['address']}/24")
    proof = call("fabric_confirm", rails=RAILS)
    assert (proof["pending"], codes(proof)) == (True, ["FABRIC_CONFIRMED"])
    kept = call("fabric_confirm", rails=RAILS, state="kept")
    assert (kept["changed"], kept["pending"]) == (True, False)
    again = configure(call)
    assert (again["changed"], again["armed"], again["findings"]) == (False, False, [])


def test_a_change_that_went_back_is_not_kept(call: Call, machine: Machine) -> None:
    configure(call)
    rollback.roll_back(machine.root / "var/lib/spark-cluster/rollback")
    for late in (call("fabric_confirm", rails=RAILS, armed=True), call("fabric_confirm", rails=RAILS, state="kept")):
        assert late["failed"]
        assert codes(late) == ["FABRIC_ROLLED_BACK"]
        assert "not confirmed in time" in late["findings"][0]["evidence"][0]


def test_an_armed_change_is_put_back_at_once_when_asked(call: Call, machine: Machine) -> None:
    configure(call)
    back = call("fabric_confirm", rails=RAILS, state="reverted")
    assert (back["failed"], back["changed"], codes(back)) == (True, True, ["FABRIC_ROLLED_BACK"])
    assert "a node of the cluster was not proven" in back["findings"][0]["evidence"][0]
    assert list((machine.root / "etc/netplan").iterdir()) == []
    assert not guard.pending(guard.Node(machine))


def test_an_mtu_that_is_not_carried_is_no_proof(call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [{**rail, "peer_addresses": {"spark-02": f"192.168.{200 + rail['rail']}.13"}} for rail in RAILS]
    for rail in RAILS:
        machine.link(rail["netdev"], f"{rail['address']}/24", mtu=9000)
    machine.answer("ping", "-n", "-q", "-M", "do", "-s", "8972", rc=1, stdout="3 packets transmitted, 0 received")
    result = call("fabric_confirm", rails=peers, mtu=9000)
    assert result["failed"]
    assert codes(result) == ["FABRIC_MTU_NOT_CARRIED"] * 2
    assert result["measurements"]["mtu"]["carried"] is False
    machine.answer("ping", "-n", "-q", "-M", "do", "-s", "8972", stdout="3 packets transmitted, 3 received")
    result = call("fabric_confirm", rails=peers, mtu=9000)
    assert (codes(result), result["measurements"]["mtu"]["carried"]) == (["FABRIC_CONFIRMED"], True)


def test_a_refusal_changes_nothing(call: Call, machine: Machine) -> None:
    machine.uuids = None
    orphan = machine.root / "etc/netplan/90-NM-2edf06d6-63e5-4ef5-8f3d-2a6e4d2c9a01.yaml"
    orphan.write_bytes(bytes(715))
    refused = configure(call, orphans=["/etc/netplan/" + orphan.name])
    assert refused["failed"]
    assert not refused["changed"]
    assert codes(refused) == ["NETPLAN_NM_SILENT"]
    assert [path.name for path in (machine.root / "etc/netplan").iterdir()] == [orphan.name]


def test_confirming_before_there_are_addresses_is_no_proof(call: Call, machine: Machine) -> None:
    result = call("fabric_confirm", rails=RAILS, _ansible_check_mode=True)
    assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]
    assert not machine.ran("ping")


def test_no_gids_over_tcp_is_said(call: Call) -> None:
    result = call("gid_info", rails=RAILS, transport="tcp")
    assert (codes(result), result["measurements"]) == (["GID_NOT_APPLICABLE"], {"gids": []})


def test_gids_of_addresses_to_come_are_not_proven(call: Call) -> None:
    result = call("gid_info", rails=RAILS, _ansible_check_mode=True)
    assert codes(result) == ["NOT_PROVEN_IN_CHECK_MODE"]


def test_gids_are_a_measurement(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gids.Resolved(0, "enp1s0f0np0", "rocep1s0f0", 1, 3, gids.mapped("192.168.200.12"), "192.168.200.12")
    monkeypatch.setattr(gids, "wait", lambda read, rails, node: ([found], []))
    result = call("gid_info", rails=RAILS)
    assert result["measurements"]["gids"][0]["index"] == 3


LINK = {"nodes": ["spark-01", "spark-02"], "rails": RAILS, "ports": [12000, 12001]}


@pytest.mark.parametrize(("module", "said"), [("link_listen", ["NOT_PROVEN_IN_CHECK_MODE"]), ("link_measure", [])])
def test_a_link_is_not_loaded_in_check_mode(module: str, said: list[str], call: Call, machine: Machine) -> None:
    assert codes(call(module, **LINK, _ansible_check_mode=True)) == said
    assert not machine.ran("systemd-run")
    assert not machine.ran("ib_write_bw")


@pytest.mark.parametrize(("module", "said"), [("link_listen", ["LINK_NOT_LOADED"]), ("link_measure", [])])
def test_a_link_is_not_loaded_while_a_rank_serves(module: str, said: list[str], call: Call, machine: Machine) -> None:
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    assert codes(call(module, **LINK)) == said
    assert not machine.ran("systemd-run")
    assert not machine.ran("ib_write_bw")


def test_a_serving_peer_is_enough_and_the_last_verdict_is_told(call: Call, machine: Machine) -> None:
    kept = {"verdict": "LINK_OK", "sum_gbps": 185.14, "to": "spark-02", "at": "2026-12-01T00:00:00Z"}
    (machine.root / link.LAST).parent.mkdir(parents=True)
    (machine.root / link.LAST).write_text(json.dumps(kept))
    result = call("link_listen", **LINK, serving_nodes=["spark-02"])
    assert codes(result) == ["LINK_NOT_LOADED"]
    assert "a rank serves on spark-02; last: LINK_OK, 185.14 Gb/s" in result["findings"][0]["found"]


def test_a_measurement_is_judged_recorded_and_remembered(
    call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rails: list[dict[str, Any]] = [
        {"rail": n, "netdev": f"rail{n}", "address": f"127.0.0.{n + 1}", "peer_addresses": {"spark-02": "127.0.0.1"}}
        for n in (0, 1)
    ]
    found = [gids.Resolved(rail["rail"], rail["netdev"], "roce", 1, 3, "", rail["address"]) for rail in rails]
    monkeypatch.setattr(gids, "wait", lambda read, rails, node: (found, []))
    fixtures = Path(__file__).parent.parent / "fixtures/perftest"
    table = (fixtures / "bw-dual-a-client.out").read_text()

    def stream(argv: Sequence[str]) -> Completed:
        time.sleep(0.3)
        return Completed(tuple(argv), 0, table, "")

    machine.answer("ib_write_bw", to=stream)
    machine.answer("ib_write_lat", stdout=(fixtures / "lat-ok-client.out").read_text())
    given = {**LINK, "rails": rails, "ports": [19990, 19991]}
    passed = call("link_measure", **given, min_gbps=0.1, min_both_ways_gbps=0.3)
    silent = "LINK_COUNTERS_SILENT"
    assert codes(passed) == [silent, "LINK_OK", silent, "LINK_BOTH_WAYS_SLOW"], "this machine has no counters"
    measured = passed["measurements"]["link"]
    assert (measured["sum_gbps"], measured["verdict"]) == (0.2, "LINK_BOTH_WAYS_SLOW")
    assert [leg["kind"] for leg in measured["directions"]] == ["write", "both"]
    assert json.loads((machine.root / link.LAST).read_text())["sum_gbps"] == 0.2
    warned = passed["findings"][-1]
    assert (warned["severity"], passed.get("failed", False)) == ("warn", False), "what few machines do stops nothing"
    refused = call("link_measure", **given)
    assert (refused["failed"], codes(refused)) == (True, [silent, "LINK_SLOW"])
    assert machine.ran("systemctl", "stop", "spark-link.service"), "nobody comes to this node's listeners any more"
    told = call("link_measure", **given, judge=False)
    assert (codes(told), len(told["measurements"]["link"]["directions"])) == ([], 2)


def test_a_narrow_pcie_link_stops_before_anything_listens(call: Call, machine: Machine) -> None:
    slot = "0000:01:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
    machine.answer("lspci", stdout=f"{slot}\t\tLnkSta:\tSpeed 32GT/s, Width x2\n")
    rails = [{**rail, "pci": "0000:01:00.0"} for rail in RAILS[:1]]
    refused = call("link_listen", **{**LINK, "rails": rails})
    assert (refused["failed"], codes(refused)) == (True, ["LINK_PCIE_SLOW"])
    assert refused["measurements"]["link_hardware"]["rails"][0]["pcie"]["width"] == 2
    assert not machine.ran("systemd-run")


def test_takeover_is_refused_without_the_inventorys_word(call: Call, machine: Machine) -> None:
    shown = "Id=vllm.service\nLoadState=loaded\nUnitFileState=enabled\nActiveState=active\n"
    machine.answer("systemctl", "show", stdout=shown)
    refused = call("conflicting_units", units=["vllm.service"])
    assert refused["failed"]
    assert codes(refused) == ["UNIT_STILL_ENABLED"]
    predicted = call("conflicting_units", units=["vllm.service"], takeover=True, _ansible_check_mode=True)
    assert (predicted["changed"], codes(predicted)) == (True, ["UNIT_TAKEN_OVER"])
    assert not machine.ran("systemctl", "disable")


def test_under_a_serving_rank_nothing_moves(call: Call, machine: Machine) -> None:
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    busy = configure(call)
    assert busy["failed"]
    assert codes(busy) == ["FABRIC_BUSY"]
    assert list((machine.root / "etc/netplan").iterdir()) == []
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="inactive\n", rc=3)
    busy = configure(call, serving_nodes=["spark-02"])
    assert codes(busy) == ["FABRIC_BUSY"]
    assert "spark-02" in busy["findings"][0]["found"]
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    shown = "Id=vllm.service\nLoadState=loaded\nUnitFileState=enabled\nActiveState=inactive\n"
    machine.answer("systemctl", "show", stdout=shown)
    left = call("conflicting_units", units=["vllm.service"], takeover=True)
    assert (left["changed"], codes(left)) == (False, ["UNIT_LEFT_WHILE_SERVING"])
    assert not machine.ran("systemctl", "disable")


def test_a_right_network_under_a_serving_rank_is_nothing_to_do(call: Call, machine: Machine) -> None:
    for rail in RAILS:
        machine.link(rail["netdev"], f"{rail['address']}/24")
    (machine.root / "etc/netplan/40-spark-fabric.yaml").write_text(TEXT)
    (machine.root / "etc/netplan/40-spark-fabric.yaml").chmod(0o600)
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    assert configure(call)["findings"] == []


# --- reset -----------------------------------------------------------------------------------------------------------


def test_reset_is_refused_under_a_serving_rank(call: Call, machine: Machine) -> None:
    configure(call)
    machine.answer("systemctl", "is-active", "spark-rank.service", stdout="active\n")
    refused = call("node_reset", phase="network")
    assert (refused["failed"], codes(refused)) == (True, ["RESET_SERVING"])
    assert guard.pending(guard.Node(machine)), "nothing was changed, the waiting change neither"
    assert "reset_stop=true" in refused["findings"][0]["remedy"]
    predicted = call("node_reset", phase="network", stop=True, _ansible_check_mode=True)
    assert predicted["changed"]


def test_reset_predicts_in_check_mode(call: Call, machine: Machine) -> None:
    configure(call)
    guard.confirm(guard.Node(machine))
    for rail in RAILS:
        machine.link(rail["netdev"], f"{rail['address']}/24")
    network = call("node_reset", phase="network", _ansible_check_mode=True)
    assert (network["changed"], network["armed"]) == (True, False)
    assert network["diff"][0]["before"] == TEXT
    rest = call("node_reset", phase="rest", _ansible_check_mode=True)
    assert (rest["changed"], codes(rest)) == (True, ["NOT_PROVEN_IN_CHECK_MODE"])
    assert (machine.root / "etc/netplan/40-spark-fabric.yaml").exists()


def test_reset_in_two_phases_and_a_second_time(call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "SETTLE_S", 0)
    monkeypatch.setattr(reach, "GOOD_IN_A_ROW", 1)
    configure(call)
    guard.confirm(guard.Node(machine))
    for rail in RAILS:
        machine.link(rail["netdev"], f"{rail['address']}/24")
    network = call("node_reset", phase="network")
    assert (network["changed"], network["armed"]) == (True, True)
    for rail in RAILS:
        machine.link(rail["netdev"], up=False)
    rest = call("node_reset", phase="rest", armed=True)
    assert (rest["changed"], codes(rest)) == (True, ["RESET_DONE"])
    assert list((machine.root / "etc/netplan").iterdir()) == []
    assert not (machine.root / "var/lib/spark-cluster").exists()
    for phase in ("network", "rest"):
        again = call("node_reset", phase=phase)
        assert (again["changed"], again["armed"]) == (False, False)
    assert not (machine.root / "var/lib/spark-cluster").exists()


def test_a_reset_that_came_too_late_says_that_the_fabric_is_back(
    call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "SETTLE_S", 0)
    monkeypatch.setattr(reach, "GOOD_IN_A_ROW", 1)
    configure(call)
    guard.confirm(guard.Node(machine))
    call("node_reset", phase="network")
    rollback.roll_back(machine.root / "var/lib/spark-cluster/rollback")
    late = call("node_reset", phase="rest", armed=True)
    assert (late["failed"], codes(late)) == (True, ["FABRIC_ROLLED_BACK"])
    assert (machine.root / "etc/netplan/40-spark-fabric.yaml").read_text() == TEXT
