"""What the machine that runs the lab must have, and what it can do: found by looking, never assumed."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.shell import Progress, run

CAP_SYS_RESOURCE = 24
# podman lowers its own limit of processes to this, and without CAP_SYS_RESOURCE nothing below it can rise again.
PODMAN_NPROC = 32768


# --- what the host can do


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {name: value.strip().strip('"') for name, _, value in pairs}


def has_capability(number: int) -> bool:
    """Whether the bounding set has a capability: what is missing there no child can ever get."""
    match = re.search(r"^CapBnd:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.M)
    return bool(match and int(match[1], 16) >> number & 1)


@dataclass(frozen=True)
class Cgroups:
    """Where cgroup2 is mounted, empty for nowhere, and the controllers that it has."""

    mount: str
    controllers: frozenset[str]

    @property
    def unified(self) -> bool:
        """Whether cgroup2 is the host's one layout."""
        return self.mount == "/sys/fs/cgroup"


def cgroups(mounts: str | None = None, root: Path = Path("/")) -> Cgroups:
    """Read the layout from /proc/mounts."""
    where = ""
    for line in (Path("/proc/mounts").read_text() if mounts is None else mounts).splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            where = fields[1]
            if where == "/sys/fs/cgroup":
                break
    names: list[str] = []
    if where:
        try:
            names = (root / where.lstrip("/") / "cgroup.controllers").read_text().split()
        except OSError:
            names = []
    return Cgroups(where, frozenset(names))


def container_ulimits() -> list[str]:
    """--ulimit options that this host can grant; none where limits may be raised freely."""
    if has_capability(CAP_SYS_RESOURCE):
        return []

    def hard(which: int, most: int) -> int:
        limit = resource.getrlimit(which)[1]
        return most if limit == resource.RLIM_INFINITY else min(limit, most)

    files, processes = hard(resource.RLIMIT_NOFILE, 1 << 20), hard(resource.RLIMIT_NPROC, PODMAN_NPROC)
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]


def systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()


def is_mounted(path: Path) -> bool:
    """Whether something is mounted on exactly this path; bind mounts count, which os.path.ismount does not see."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(path) for line in lines)


# --- what must be there


def require_root() -> None:
    if os.geteuid():
        raise LabError("not root", "run it as root, or as a user whose sudo needs no password")


def ensure_packages(commands: dict[str, str], progress: Progress) -> None:
    """Install the Debian packages of commands that are missing: {command: package}."""
    missing = sorted({package for command, package in commands.items() if not shutil.which(command)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise LabError(
            f"missing packages, and no apt-get to install them: {' '.join(missing)}",
            "run the lab on Debian 12/13 or Ubuntu 24.04",
        )
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"apt-get install {' '.join(missing)}"):
        if run(install, check=False, env=quiet).returncode:
            # Old or absent package lists are the usual reason.
            run(["apt-get", "update", "-q"], env=quiet)
            run(install, env=quiet)


def require_space(folder: Path, gib: float, what: str) -> None:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise LabError(
            f"{what} needs {gib:.1f} GiB in {folder}, free are {free:.1f} GiB",
            "free some space, or set XDG_CACHE_HOME to a larger disk",
        )


def require_memory(gib: float) -> None:
    match = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    available = int(match[1]) / 2**20 if match else gib
    if available < gib:
        raise LabError(
            f"the pair needs {gib:.1f} GiB of memory, available are {available:.1f} GiB", "end other programs"
        )


def require_ports(ports: Iterable[int]) -> None:
    """Every port must be free on loopback."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise LabError(
                    f"port 127.0.0.1:{port} is taken: {error.strerror}",
                    f"`ss -ltnp 'sport = :{port}'` shows by whom; end that, or change the port in the machines file",
                ) from None


# --- the package mirror, from the host's own apt configuration


@dataclass(frozen=True)
class Source:
    """One entry of apt's sources."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_one_line(text: str) -> list[Source]:
    """sources.list: `deb [options] uri suite component...`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            found.append(Source(match[1], (match[2],), tuple(match[3].split())))
    return found


def parse_deb822(text: str) -> list[Source]:
    """*.sources: stanzas of fields, a field goes on in indented lines."""
    found = []
    clean = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*(?:\n|\Z)", clean + "\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in ("no", "false", "0") or "deb" not in fields.get("types", "").split():
            continue
        suites, components = tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split())
        found += [Source(uri, suites, components) for uri in fields.get("uris", "").split()]
    return found


def apt_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """All sources of the host, in apt's order."""
    found = []
    plain = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    for path in plain:
        if path.is_file():
            found += parse_one_line(path.read_text(errors="replace"))
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        found += parse_deb822(path.read_text(errors="replace"))
    return found


def debian_mirror(sources: Sequence[Source], release: Mapping[str, str]) -> str | None:
    """The Debian mirror that the host itself uses; None (mmdebstrap's own default) on any other distribution."""
    chosen = os.environ.get("SPARK_LAB_MIRROR")
    if chosen:
        return chosen
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not codename:
        return None
    network = [source for source in sources if source.uri.startswith(("http://", "https://", "ftp://"))]
    own = [source.uri for source in network if codename in source.suites and "main" in source.components]
    # A third party may call its suite and component so too, but only Debian's archive has updates beside it.
    updated = {source.uri for source in network if f"{codename}-updates" in source.suites}
    return next((uri for uri in own if uri in updated), own[0] if own else None)


def apt_proxies() -> list[str]:
    """The host's apt proxy settings, as apt options."""
    dump = run(["apt-config", "dump"], check=False).stdout
    return re.findall(r'^(Acquire::\w+::Proxy(?:::\S+)? "[^"]+");$', dump, re.M)
