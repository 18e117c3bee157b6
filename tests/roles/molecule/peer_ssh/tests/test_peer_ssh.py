"""peer_ssh: each node's root may ask its peer for a few things, and for nothing else."""

from __future__ import annotations

from testinfra.host import Host

FOLDER = "/etc/spark-cluster/ssh"
OPTIONS = f"-F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile={FOLDER}/known_hosts"


def peer_of(host: Host) -> str:
    own = [a for a in host.interface("enp1s0f0np0").addresses if a.startswith("192.168.200.")]
    return "192.168.200.13" if own == ["192.168.200.12"] else "192.168.200.12"


def ask(host: Host, request: str) -> str:
    said = host.run(f"timeout 20 ssh {OPTIONS} -i {FOLDER}/id_ed25519 root@{peer_of(host)} {request} 2>&1")
    return f"{said.rc} {said.stdout}"


def test_the_key_is_for_root_alone(host: Host) -> None:
    said = host.check_output(f"stat -c '%a %U %n' {FOLDER} {FOLDER}/id_ed25519 {FOLDER}/known_hosts")
    modes = [line.split()[:2] for line in said.splitlines()]
    assert modes == [["700", "root"], ["600", "root"], ["600", "root"]]


def test_the_peer_is_let_in_from_the_fabric_for_one_command(host: Host) -> None:
    [line] = host.check_output("cat /root/.ssh/authorized_keys").splitlines()
    assert line.startswith('restrict,from="192.168.200.')
    assert 'command="/usr/bin/python3 /usr/local/lib/spark-cluster/rankctl.pyz peer"' in line


def test_a_granted_request_is_answered(host: Host) -> None:
    assert ask(host, "ping").startswith("0 ")


def test_a_command_is_not_run(host: Host) -> None:
    said = ask(host, "cat /etc/shadow")
    assert not said.startswith("0 ")
    assert "root:" not in said


def test_there_is_no_shell(host: Host) -> None:
    assert not ask(host, "").startswith("0 ")
