"""The VM pair without a machine: what it writes, in which order it acts, what it leaves."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.connection import ssh

from lab import factory
from lab.errors import LabError
from lab.machines import Machines, Node, load
from lab.pair import Pair
from lab.shell import Progress
from lab.state import PROJECT, State
from lab.vm import build, image, pair, qemu

GUEST = build.GUEST


@pytest.fixture
def machines() -> Machines:
    return load("lab-fabric")


@pytest.fixture
def state(machines: Machines, tmp_path: Path) -> State:
    found = State(machines, tmp_path / "state")
    found.prepare()
    return found


@pytest.fixture
def vms(machines: Machines, state: State) -> pair.VmPair:
    return pair.VmPair(machines, state, Progress())


def test_it_is_a_pair(vms: pair.VmPair) -> None:
    protocol: Pair = vms
    assert protocol.root_commands == frozenset()


def test_two_nodes_make_a_pair(machines: Machines, state: State) -> None:
    with pytest.raises(LabError, match="has 1"):
        pair.VmPair(dataclasses.replace(machines, nodes=machines.nodes[:1]), state, Progress())


def test_the_inventory_names_the_same_machines(machines: Machines) -> None:
    text = (PROJECT / "inventory/lab-fabric/hosts.yml").read_text()
    group = yaml.safe_load(text)["spark"]["children"]["lab_fabric"]
    assert {name: host["ansible_port"] for name, host in group["hosts"].items()} == {
        node.name: node.ssh_port for node in machines.nodes
    }
    assert group["vars"]["ansible_user"] == machines.user
    assert "StrictHostKeyChecking=yes" in group["vars"]["ansible_ssh_common_args"]


# --- image


def test_the_key_of_the_image(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.key(machines)
    other_ports = dataclasses.replace(machines, nodes=(Node("a", 1), Node("b", 2)), name="other")
    assert image.key(other_ports) == before
    assert image.key(dataclasses.replace(machines, user="nvidia")) != before
    assert image.key(dataclasses.replace(machines, suite="forky")) != before
    subprocess.run(["cp", "-r", str(GUEST), str(tmp_path / "guest")], check=True)
    monkeypatch.setattr(build, "GUEST", tmp_path / "guest")
    assert image.key(machines) == before
    (tmp_path / "guest/etc/sudoers.d/lab").chmod(0o644)
    (tmp_path / "guest/etc/sudoers.d/lab").write_text("Defaults lecture\n")
    assert image.key(machines) != before


def test_a_failed_build_says_what_root_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(LabError, match=r"lab\.vm\.build: exit code 1"):
        image.as_root("lab.vm.build")


def test_sudo_keeps_the_lab_s_own_settings_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        seen.append(argv)
        return subprocess.CompletedProcess(argv, 1, b"", b"sudo: a password is required\n")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("SPARK_LAB_MIRROR", "http://mirror.example/debian")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with pytest.raises(LabError, match="sudo -v"):
        image.as_root("lab.vm.build", "/out")
    assert seen[0][:3] == ["sudo", "-n", "env"]
    assert "SPARK_LAB_MIRROR=http://mirror.example/debian" in seen[0]
    assert not any("secret" in word for word in seen[0])


def test_units_that_the_pair_needs_are_not_masked() -> None:
    masked = set(build.MASKED.split())
    needed = {"ssh.service", "NetworkManager.service", "docker.service", "lab-rdma.service", "systemd-udevd.service"}
    assert not masked & needed
    assert f"ConditionPathExists=!{pair.FIRST_BOOT}" in (GUEST / "etc/systemd/system/lab-rdma.service").read_text()
    assert f": >{pair.FIRST_BOOT}" in (GUEST / "etc/initramfs-tools/scripts/init-bottom/lab-seed").read_text()


def test_rdma_devices_are_those_of_a_spark() -> None:
    unit = (GUEST / "etc/systemd/system/lab-rdma.service").read_text()
    links = re.findall(r"ExecStart=rdma link add (\w+) type rxe netdev (\w+)", unit)
    assert [netdev for _, netdev in links] == list(factory.CX7)
    assert [device for device, _ in links] == ["rocep1s0f0", "roceP2p1s0f0"]


# --- machines


class Machine:
    """A monitor that writes down what it is told."""

    def __init__(self, name: str, log: list[str], refuse: str = "") -> None:
        self.name, self.log, self.refuse = name, log, refuse

    def execute(self, command: str) -> None:
        self.log.append(f"{self.name} {command}")

    def human(self, line: str) -> None:
        self.execute(line)
        if line == self.refuse:
            raise LabError("QEMU refuses")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"{self.name} closed")


def test_both_machines_stand_still_while_one_is_loaded(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(vms, "_pid", lambda node: 1)
    monkeypatch.setattr(vms, "_monitor", lambda node: Machine(node.name[-1], log))
    monkeypatch.setattr(
        vms, "_root", lambda node, script: log.append(f"{node.name[-1]} {script.split(';')[-1].strip()}")
    )
    monkeypatch.setattr(vms, "_drop_masters", lambda: log.append("masters"))
    vms.reset()
    order = [line for line in log if "closed" not in line]
    assert order[0] == "masters"
    assert order[1:7] == ["1 stop", "2 stop", "1 loadvm factory", "2 loadvm factory", "1 cont", "2 cont"]
    assert sorted(order[7:]) == ["1 systemctl start lab-rdma.service", "2 systemctl start lab-rdma.service"]


def test_no_reset_of_half_a_pair(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vms, "_pid", lambda node: 1 if node.name == "spark-01" else None)
    with pytest.raises(LabError, match="spark-02 does not run"):
        vms.reset()


def launch(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both machines' files, and a sleep in place of QEMU."""
    monkeypatch.setattr(pair, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, "", ""))
    monkeypatch.setattr(qemu, "argv", lambda *_: ["sleep", "300"])
    for index, node in enumerate(vms.machines.nodes):
        vms._launch(index, node, tmp_path, "tcg")


def test_a_seed_is_secret_and_holds_the_node(
    vms: pair.VmPair, state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launch(vms, monkeypatch, tmp_path)
    try:
        seeds = [state.root / qemu.files(index)["seed"] for index in (0, 1)]
        assert [seed.stat().st_mode & 0o777 for seed in seeds] == [0o600] * 2
        for seed, node in zip(seeds, vms.machines.nodes, strict=True):
            # The guest sees a disk: whole sectors.
            assert seed.stat().st_size % 512 == 0
            with tarfile.open(fileobj=io.BytesIO(seed.read_bytes())) as tar:
                names = tar.getnames()
                host_key = tar.extractfile("etc/ssh/ssh_host_ed25519_key")
                assert host_key is not None
                assert host_key.read() == state.host_key(node).read_bytes()
            assert "root/.ssh/authorized_keys" in names
    finally:
        vms.down()


def test_down_ends_what_up_started_and_nothing_else(
    vms: pair.VmPair, state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "300"]) as bystander:
        launch(vms, monkeypatch, tmp_path)
        pids = [vms.state.pid(node.name) for node in vms.machines.nodes]
        assert None not in pids
        assert vms.status()["nodes"]["spark-01"]["state"] == "running"
        vms.down()
        assert [vms.state.pid(node.name) for node in vms.machines.nodes] == [None, None]
        assert not list(state.root.glob("vm*"))
        assert state.known_hosts.exists()
        assert bystander.poll() is None
        bystander.terminate()
    vms.down()
    assert vms.status() == {
        "name": "lab-fabric",
        "kind": "vm",
        "up": False,
        "accel": None,
        "nodes": {
            name: {"state": "absent", "ssh": f"127.0.0.1:{port}", "ssh_answers": False, "pid": None}
            for name, port in (("spark-01", 22212), ("spark-02", 22213))
        },
    }


def attempts(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch, fail: Callable[[str], bool]) -> list[str]:
    tried: list[str] = []

    def start(folder: Path, accel: str) -> None:
        tried.append(accel)
        if fail(accel):
            raise LabError("spark-01 does not answer")

    monkeypatch.setattr(vms, "_start", start)
    monkeypatch.setattr("lab.vm.accel.remember", lambda accel, folder: accel)
    return tried


def test_emulation_is_the_second_attempt(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = attempts(vms, monkeypatch, lambda accel: accel == "kvm")
    assert vms._boot(tmp_path, "kvm") == "tcg"
    assert tried == ["kvm", "tcg"]


def test_emulation_has_no_second_attempt(vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = attempts(vms, monkeypatch, lambda accel: True)
    with pytest.raises(LabError, match="does not answer"):
        vms._boot(tmp_path, "tcg")
    assert tried == ["tcg"]


def test_a_command_of_root_reaches_the_shell_as_it_was_given(vms: pair.VmPair) -> None:
    argv = vms.exec_argv("spark-01", ["sh", "-c", "echo 'a b' $HOME"])
    assert argv[-1] == """sh -c 'echo '"'"'a b'"'"' $HOME'"""
    assert argv[argv.index("-l") + 1] == "root"
    assert vms.exec_argv("spark-01", [])[-1] == "spark-01"


def test_masters_are_found_by_ansible_s_own_name(
    vms: pair.VmPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH_DIR", str(tmp_path))
    ours = ssh.Connection._create_control_path("127.0.0.1", 22212, "spark") % {"directory": tmp_path}
    foreign = ssh.Connection._create_control_path("192.0.2.11", 22, "spark") % {"directory": tmp_path}
    for path in (ours, foreign):
        Path(path).touch()
    ended: list[str] = []
    monkeypatch.setattr(pair, "run", lambda argv, **_: ended.append(argv[argv.index("-S") + 1]))
    vms._drop_masters()
    assert ended == [ours]
    assert not Path(ours).exists()
    assert Path(foreign).exists()
