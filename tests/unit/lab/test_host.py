"""What the host is and has, read from its own files."""

from __future__ import annotations

import ast
import resource
import socket
from pathlib import Path

import pytest

from lab import host
from lab.containers import podman
from lab.errors import LabError
from lab.vm import build

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
DEB822 = """\
Types: deb
# a remark inside the stanza
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
 contrib

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
# deb http://remark.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://other.example/apt bookworm main
deb-src http://mirror.example/debian bookworm main
deb cdrom:[Debian]/ bookworm main
deb http://mirror.example/debian/ bookworm main contrib # the mirror
deb http://mirror.example/debian/ bookworm-updates main
"""


def test_deb822() -> None:
    found = host.parse_deb822(DEB822)
    assert [source.uri for source in found] == ["http://mirror.example/debian", "http://mirror.example/debian-security"]
    assert found[0].suites == ("bookworm", "bookworm-updates")
    assert found[1].components == ("main", "contrib")


def test_one_line() -> None:
    found = host.parse_one_line(ONE_LINE)
    assert found[0].uri == "https://other.example/apt"
    assert found[0].components == ("main",)
    assert found[-1].suites == ("bookworm-updates",)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        (host.parse_deb822(DEB822), "http://mirror.example/debian"),
        # A third party comes first and calls its suite like Debian's; updates tell them apart.
        (host.parse_one_line(ONE_LINE), "http://mirror.example/debian/"),
        # A snapshot without updates is still the host's own.
        ([host.Source("http://one.example/d", ("bookworm",), ("main",))], "http://one.example/d"),
        ([host.Source("http://one.example/d", ("trixie",), ("main",))], None),
        ([host.Source("file:/srv/debian", ("bookworm",), ("main",))], None),
        ([], None),
    ],
)
def test_the_mirror_is_the_hosts_own(
    monkeypatch: pytest.MonkeyPatch, sources: list[host.Source], mirror: str | None
) -> None:
    monkeypatch.delenv("SPARK_LAB_MIRROR", raising=False)
    assert host.debian_mirror(sources, DEBIAN) == mirror


def test_another_distributions_mirror_has_no_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LAB_MIRROR", raising=False)
    noble = [host.Source("http://mirror.example/ubuntu", ("noble", "noble-updates"), ("main",))]
    assert host.debian_mirror(noble, {"ID": "ubuntu", "VERSION_CODENAME": "noble"}) is None
    monkeypatch.setenv("SPARK_LAB_MIRROR", "http://chosen.example/debian")
    assert host.debian_mirror(noble, {"ID": "ubuntu"}) == "http://chosen.example/debian"


def test_apt_sources_reads_both_forms(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    (tmp_path / "sources.list.d" / "b.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "c.list").write_text("deb http://c.example/x stable x\n")
    assert [source.uri for source in host.apt_sources(tmp_path)] == [
        "http://a.example/debian",
        "http://c.example/x",
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]


@pytest.mark.parametrize(
    ("mounts", "unified", "where"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", True, "sys/fs/cgroup"),
        (
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            False,
            "sys/fs/cgroup/unified",
        ),
    ],
)
def test_cgroup_layout(tmp_path: Path, mounts: str, unified: bool, where: str) -> None:
    (tmp_path / where).mkdir(parents=True)
    (tmp_path / where / "cgroup.controllers").write_text("cpu pids\n")
    assert host.cgroups(mounts, tmp_path) == host.Cgroups(f"/{where}", frozenset({"cpu", "pids"}))
    assert host.cgroups(mounts, tmp_path).unified is unified


def test_no_cgroup2_at_all(tmp_path: Path) -> None:
    assert host.cgroups("cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n", tmp_path) == host.Cgroups("", frozenset())


def test_limits_are_asked_for_only_where_they_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_capability", lambda number: True)
    assert host.container_ulimits() == []
    monkeypatch.setattr(host, "has_capability", lambda number: False)
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 20000))
    assert host.container_ulimits() == ["--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000"]
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert host.container_ulimits() == ["--ulimit=nofile=1048576:1048576", "--ulimit=nproc=32768:32768"]


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LabError, match=f"{port} is taken"):
            host.require_ports([port])
    host.require_ports([port])


def test_too_little_space_says_how_much(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"the image needs 1000000\.0 GiB in"):
        host.require_space(tmp_path / "not" / "made" / "yet", 1e6, "the image")
    host.require_space(tmp_path, 0, "the image")


# Of packages that Debian and Ubuntu cannot be without; apt-get and sudo have their own look before they are used.
ALWAYS_THERE = {"cp", "mount", "umount", "chroot", "unshare", "apt-config", "apt-get", "sudo", "ssh"}


def test_each_command_that_the_lab_runs_is_one_that_it_installs() -> None:
    """A machine of a developer has everything, a stranger's has not."""
    ran = set()
    for path in Path(host.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="run"), args=[ast.List(elts=[ast.Constant(value=str(name)), *_]), *_]):
                    ran.add(name)
    assert "rsync" in ran
    assert ran <= podman.COMMANDS.keys() | build.COMMANDS.keys() | ALWAYS_THERE
