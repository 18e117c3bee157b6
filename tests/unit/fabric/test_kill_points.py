"""The power goes at every single step of a change; what the node does by itself brings back every byte.

A step is whatever leaves a trace: a command, a file that is written or moved, a line in the journal. Each run of the
change stops at the next step, then the node does what its boot unit does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import guard, netplan, rollback, undo

from tests.unit.fabric.machine import Machine, said

UUID = "2edf06d6-63e5-4ef5-8f3d-2a6e4d2c9a01"
ORPHAN = f"/etc/netplan/90-NM-{UUID}.yaml"
OURS = "/etc/netplan/40-spark-fabric.yaml"
SETTINGS = "/etc/sysctl.d/40-spark-fabric.conf"
NAMES = ("enp1s0f0np0", "enP2p1s0f0np0")
RAILS = [netplan.Rail(index, name, f"192.168.{200 + index}.12", 24) for index, name in enumerate(NAMES)]
TEXT = "network:\n  ethernets:\n" + "".join(
    f"    {rail.netdev}: {{renderer: NetworkManager, addresses: [{rail.cidr}]}}\n" for rail in RAILS
)
KEYS = [f"net.ipv4.conf.{name}.arp_ignore" for name in NAMES]
FACTORY_NS = 1_759_104_000_000_000_000


class PowerCut(BaseException):
    """Nothing of ours catches it, as nothing catches the real one."""


def wanted() -> netplan.Wanted:
    settings = netplan.Settings(SETTINGS, "".join(f"{key} = 1\n" for key in KEYS), dict.fromkeys(KEYS, "1"))
    return netplan.Wanted("spark-01", OURS, TEXT, RAILS, 1500, [ORPHAN], 120, settings)


def factory(root: Path, *, before: bytes | None) -> tuple[Machine, guard.Node]:
    machine = Machine(root)
    machine.link("enP7s7", "10.77.0.12/24")
    for name in NAMES:
        machine.link(name, up=False)
    for folder in ("etc/sysctl.d", "etc/systemd/system/multi-user.target.wants"):
        (root / folder).mkdir(parents=True)
    files = {ORPHAN: bytes(715), "/etc/netplan/90-NM-live.yaml": b"network: {version: 2}\n"}
    if before is not None:
        files[OURS] = before
    for name, data in files.items():
        path = root / name.lstrip("/")
        path.write_bytes(data)
        path.chmod(0o600)
        os.utime(path, ns=(FACTORY_NS, FACTORY_NS))
    for key in KEYS:
        path = root / "proc/sys" / key.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0\n")
    return machine, guard.Node(machine, root)


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that is not ours: bytes and mode, and time where it is a file of /etc."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() or name.startswith("var/lib/spark-cluster/"):
            continue
        time_ns = None if name.startswith("proc/") else path.lstat().st_mtime_ns
        data = os.readlink(path) if path.is_symlink() else path.read_bytes()
        found[name] = (data, path.lstat().st_mode, time_ns)
    return found


@contextmanager
def power_cut_at(step: int) -> Iterator[Callable[[], int]]:
    """Stop before the step of this number, counted from 1."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:  # nothing happens after it, in a finally clause neither
                raise PowerCut
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo, "record", counted(undo.record))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(Path, "symlink_to", counted(Path.symlink_to))
        patch.setattr(Path, "write_text", counted(Path.write_text))
        patch.setattr(os, "replace", counted(os.replace))
        patch.setattr(Machine, "__call__", counted(Machine.__call__))
        yield lambda: count


def change(node: guard.Node) -> None:
    decision = netplan.decide(node, wanted())
    if netplan.settle(node, decision):
        decision = netplan.decide(node, wanted())
    assert not decision.findings
    assert netplan.validate(node, wanted(), decision) is None
    netplan.carry_out(node, wanted(), decision)


def boot(node: guard.Node) -> None:
    """What the node does by itself after the cut: its boot unit, if there is one."""
    if guard.boot_files(node)[1].exists() and (node.rollback / rollback.STATE).exists():
        rollback.roll_back(node.rollback, "the node restarted before the change was confirmed")


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "call", lambda argv, timeout_s=60: {"argv": argv, "rc": 0, "said": ""})


@pytest.mark.parametrize("before", [None, b"network: {version: 2}\n"], ids=["no file before", "a file before"])
def test_a_power_cut_at_any_step_of_the_change_comes_back(before: bytes | None, tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        _machine, node = factory(root, before=before)
        first = tree(root)
        with power_cut_at(step) as steps:
            try:
                change(node)
                break
            except PowerCut:
                assert steps() >= step
        boot(node)
        # What may be left is only what a later run, or the reset, clears away.
        guard.sweep(guard.remnants(node))
        assert tree(root) == first, f"step {step}"
        change(node)
        assert (root / OURS.lstrip("/")).read_text() == TEXT, f"step {step}: a later run goes through"
    assert step > 25, "the steps were counted"


def test_a_power_cut_at_any_step_of_the_confirmation_keeps_or_takes_back_the_whole(tmp_path: Path) -> None:
    outcomes = set()
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        _machine, node = factory(root, before=None)
        first = tree(root)
        change(node)
        whole = tree(root)
        with power_cut_at(step):
            try:
                guard.confirm(node)
                break
            except PowerCut:
                pass
        boot(node)
        guard.sweep(guard.remnants(node))
        last = tree(root)
        kept = {name: entry for name, entry in whole.items() if guard.BOOT_UNIT not in name}
        assert last in (first, kept), f"step {step}"
        outcomes.add(last == first)
    assert outcomes == {True, False}


def test_a_power_cut_at_any_step_of_the_rollback_is_finished_at_the_next_boot(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        _machine, node = factory(root, before=b"network: {version: 2}\n")
        first = tree(root)
        change(node)
        with power_cut_at(step):
            try:
                rollback.roll_back(node.rollback)
                break
            except PowerCut:
                pass
        boot(node)
        guard.sweep(guard.remnants(node))
        assert tree(root) == first, f"step {step}"
    assert step > 5


def test_a_file_that_cannot_be_written_takes_all_of_it_back(tmp_path: Path) -> None:
    _, node = factory(tmp_path, before=None)
    first = tree(tmp_path)
    real = rollback.write_file

    def full(path: Path, data: bytes, **options: Any) -> None:
        if path.name == Path(SETTINGS).name:
            raise OSError(28, "No space left on device")
        real(path, data, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollback, "write_file", full)
        decision = netplan.decide(node, wanted())
        done, wrong = netplan.carry_out(node, wanted(), decision)
    assert [item.code for item in wrong] == ["NETPLAN_APPLY_FAILED"]
    assert "No space left" in wrong[0].evidence[0]
    assert not done["armed"]
    assert tree(tmp_path) == first


# --- kernel settings -------------------------------------------------------------------------------------------------


def test_settings_are_written_set_and_taken_back(tmp_path: Path) -> None:
    _machine, node = factory(tmp_path, before=None)
    first = tree(tmp_path)
    decision = netplan.decide(node, wanted())
    shown = {item["after_header"]: item for item in netplan.diffs(node, wanted(), decision)}
    assert shown[SETTINGS]["after"] == wanted().settings.text  # type: ignore[union-attr]
    assert f"{KEYS[0]} = 0\n" in shown["kernel settings"]["before"]
    change(node)
    assert [node.setting(key).read_text() for key in KEYS] == ["1\n", "1\n"]
    assert (tmp_path / SETTINGS.lstrip("/")).stat().st_mode & 0o7777 == 0o644
    rollback.roll_back(node.rollback)
    assert tree(tmp_path) == first


def test_settings_alone_are_a_guarded_change_too(tmp_path: Path) -> None:
    machine, node = factory(tmp_path, before=TEXT.encode())
    for rail in RAILS:
        machine.link(rail.netdev, rail.cidr)
    (tmp_path / ORPHAN.lstrip("/")).unlink()
    decision = netplan.decide(node, wanted())
    assert (decision.write, decision.apply, decision.settings_write, decision.touches) == (False, False, True, True)
    done, wrong = netplan.carry_out(node, wanted(), decision)
    assert (done["armed"], wrong) == (True, [])
    assert not machine.ran("nmcli", "--wait"), "no function is brought up anew for it"


def test_no_settings_are_no_file(tmp_path: Path) -> None:
    _, node = factory(tmp_path, before=None)
    assert netplan.settings_of({}) is None
    plain = netplan.Wanted("spark-01", OURS, TEXT, RAILS, 1500, [ORPHAN], 120)
    netplan.carry_out(node, plain, netplan.decide(node, plain))
    assert not (tmp_path / SETTINGS.lstrip("/")).exists()


def test_a_key_with_a_dotted_name_in_it(tmp_path: Path) -> None:
    node = guard.Node(Machine(tmp_path), tmp_path)
    assert node.setting("net/ipv4/conf/eth0.7/arp_ignore") == tmp_path / "proc/sys/net/ipv4/conf/eth0.7/arp_ignore"
    assert node.setting(KEYS[0]) == tmp_path / f"proc/sys/net/ipv4/conf/{NAMES[0]}/arp_ignore"


# --- remnants --------------------------------------------------------------------------------------------------------


def test_what_a_power_cut_left_is_cleared_by_the_next_run(tmp_path: Path) -> None:
    machine, node = factory(tmp_path, before=TEXT.encode())
    for rail in RAILS:
        machine.link(rail.netdev, rail.cidr)
    (tmp_path / ORPHAN.lstrip("/")).unlink()
    torn = tmp_path / f"etc/netplan/.40-spark-fabric.yaml.77{rollback.UNFINISHED}"
    torn.write_text("network:\n  eth")
    guard.boot_files(node)[1].write_text("[Unit]\n")
    plain = netplan.Wanted("spark-01", OURS, TEXT, RAILS, 1500, [], 120)
    decision = netplan.decide(node, plain)
    assert decision.changed
    assert not decision.touches
    netplan.carry_out(node, plain, decision)
    assert not torn.exists()
    assert not netplan.decide(node, plain).changed


def test_a_function_that_networkmanager_ignored_is_ignored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, node = factory(tmp_path, before=None)
    called: list[list[str]] = []

    def call(argv: list[str], timeout_s: float = 60) -> dict[str, Any]:
        called.append(argv)
        return {"argv": argv, "rc": 0}

    monkeypatch.setattr(rollback, "call", call)
    machine.answer("nmcli", "-t", "-f", "DEVICE,STATE", to=said(f"{NAMES[0]}:unmanaged\n{NAMES[1]}:disconnected\n"))
    change(node)
    rollback.roll_back(node.rollback)
    assert [argv for argv in called if argv[:3] == ["nmcli", "device", "set"]] == [
        ["nmcli", "device", "set", NAMES[0], "managed", "no"]
    ]
