"""Reads everything that ``facts.NodeFacts`` names from one node, changing nothing.

Files of /proc, /sys and /etc are read directly and the Docker daemon is asked on its socket: on an emulated machine a
process costs more than all of the files together. What cannot be read becomes None or empty, the reason in ``errors``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import images
from .bundle import MANIFEST, read_manifest
from .parse import docker, firewall, ip, netplan, nmcli, nvidia, perftest, rdma, sockets, system, systemd
from .parse.secrets import hide
from .parse.whole import document, whole
from .plan.types import CONTAINER_NAME, UNIT_NAME
from .runner import NOT_FOUND_RC, Completed, Run

if TYPE_CHECKING:
    from .facts import (
        BundleFacts,
        DiskFacts,
        DockerFacts,
        FirewallFacts,
        GpuFacts,
        ImageFacts,
        ListenerFacts,
        NetdevFacts,
        NetplanFacts,
        NetworkdFacts,
        NetworkFile,
        NetworkManagerFacts,
        NodeFacts,
        OsFacts,
        ProfileFacts,
        RankFacts,
        RdmaDeviceFacts,
        RouteFacts,
        UnitFacts,
        WeightsFacts,
    )

NETPLAN_FOLDERS = ("etc/netplan", "run/netplan", "usr/lib/netplan", "lib/netplan")
UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
NETWORKD_FOLDERS = ("etc/systemd/network", "run/systemd/network")
WATCHED_UNITS = (
    "docker.service",
    "docker.socket",
    "NetworkManager.service",
    "systemd-networkd.service",
    "firewalld.service",
    UNIT_NAME,
)
DOCKER_SOCKET = "/run/docker.sock"

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# A script or compose file that a unit runs; weights and programs are larger.
_MAX_SCRIPT_BYTES = 64 * 1024

_NOT_SCRIPTS = ("/dev/", "/proc/", "/sys/", "/bin/", "/sbin/", "/lib/", "/usr/bin/", "/usr/sbin/", "/usr/lib/")

DockerGet = Callable[[str], tuple[int, Any]]


@dataclass(frozen=True)
class Request:
    """What to look for beyond the machine itself; None leaves it out."""

    models_dir: str = ""
    weights_folder: str | None = None
    image: str | None = None
    api_port: int = 8000


@dataclass
class Node:
    """Access to a node: a command runner, the root of its files and its Docker daemon, all replaceable in tests."""

    run: Run
    root: Path = Path("/")
    docker_get: DockerGet | None = None
    errors: dict[str, str] = field(default_factory=dict)

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def bytes_of(self, absolute: str) -> bytes | None:
        try:
            return self.path(absolute).read_bytes()
        except OSError:
            return None

    def text(self, absolute: str) -> str:
        return (self.bytes_of(absolute) or b"").decode("utf-8", "replace").strip()

    def names(self, absolute: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(absolute)))
        except OSError:
            return []

    def ask(self, *argv: str, timeout_s: float = 30) -> Completed:
        """Run a command that only reads; a missing program or a failure is noted under its name."""
        done = self.run(argv, timeout_s=timeout_s)
        if not done.ok:
            said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
            self.errors[argv[0]] = said[:300] or f"exited {done.rc}"
        return done


def gather(node: Node, request: Request) -> NodeFacts:
    """Everything in one pass. Never raises for what the machine lacks."""
    files = _unit_files(node)
    shown = _show_units(node, files)
    links = _links(node)
    devices = rdma.read_devices(node.root)
    netdevs = _netdevs(node, links, devices)
    manager = _networkmanager(node, netdevs)
    main = ip.parse_proc_route(node.text("/proc/net/route"))
    daemon = _docker(node, shown)
    get = _docker_get(node) if daemon["version"] else None
    return {
        "hostname": node.text("/proc/sys/kernel/hostname") or socket.gethostname(),
        "os": _os(node),
        "arch": platform.machine(),
        "kernel": node.text("/proc/sys/kernel/osrelease"),
        "python": platform.python_version(),
        "boot_id": node.text("/proc/sys/kernel/random/boot_id"),
        "sudo_root": os.geteuid() == 0,
        "memory": system.parse_meminfo(node.text("/proc/meminfo")),
        "disks": _disks(node, request, daemon),
        "gpu": _gpu(node),
        "kernel_module_nvidia": _kernel_module(node),
        "docker": daemon,
        "netdevs": netdevs,
        "rdma_devices": devices,
        "routes": [*main, *_other_tables(node, main)],
        "default_routes": [route for route in main if route["dst"] == "default"],
        "firewall": _firewall(node, shown),
        "netplan": _netplan(node, manager, netdevs),
        "networkmanager": manager,
        "networkd": _networkd(node, shown, netdevs),
        "units": _units(files, shown, request),
        "listeners": _listeners(node),
        "perftest": _perftest(node),
        "ssh_host_keys": _host_keys(node),
        "image": _image(get, request.image, daemon),
        "weights": _weights(node, request),
        "bundle": _bundle(node),
        "rank": _rank(get, shown),
        "errors": dict(sorted(node.errors.items())),
    }


def docker_socket_get(path: str = DOCKER_SOCKET, timeout_s: float = 20) -> DockerGet:
    """GET from the daemon's API: its objects are those that ``docker info`` and ``docker inspect`` print.

    Spoken by hand, as the standard library's client takes longer to import than the daemon takes to answer. HTTP/1.0
    ends the answer with the connection and is never chunked.
    """

    def get(resource: str) -> tuple[int, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(f"GET {resource} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.split(maxsplit=2)[1:2]
        if not status or not status[0].isdigit():
            raise ValueError(f"no HTTP answer: {head[:80]!r}")
        return int(status[0]), document(body or b"null")

    return get


def _os(node: Node) -> OsFacts:
    facts = system.parse_os_release(node.text("/etc/os-release") or node.text("/usr/lib/os-release"))
    # DGX OS is an Ubuntu by its os-release; its own release file is what tells them apart.
    release = system.parse_assignments(node.text("/etc/dgx-release"))
    if release:
        version = release.get("DGX_OTA_VERSION") or release.get("DGX_SWBUILD_VERSION") or ""
        facts["pretty"] = f"DGX OS {version} ({facts['pretty']})".replace("  ", " ")
    return facts


def _disks(node: Node, request: Request, daemon: DockerFacts) -> list[DiskFacts]:
    wanted = [("models", request.models_dir), ("docker", daemon["root"] or "/var/lib/docker"), ("var", "/var")]
    disks: list[DiskFacts] = []
    for purpose, path in wanted:
        if not path:
            continue
        existing = node.path(path)
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        try:
            usage = os.statvfs(existing)
        except OSError as wrong:
            node.errors[f"disk {path}"] = str(wrong)
            continue
        disks.append(
            {
                "path": path,
                "free_bytes": usage.f_bavail * usage.f_frsize,
                "total_bytes": usage.f_blocks * usage.f_frsize,
                "purpose": purpose,
            }
        )
    return disks


def _gpu(node: Node) -> GpuFacts:
    done = node.run(nvidia.QUERY, timeout_s=30)
    if done.rc == NOT_FOUND_RC:
        return {"driver_version": None, "name": None, "error": "nvidia-smi is not installed"}
    return nvidia.parse_gpu(done.rc, done.stdout, done.stderr)


def _kernel_module(node: Node) -> str | None:
    done = node.run(("modinfo", "-F", "version", "nvidia"))
    if done.rc == NOT_FOUND_RC:
        node.errors["modinfo"] = done.stderr
    return nvidia.parse_modinfo_version(done.rc, done.stdout)


def _docker(node: Node, shown: Mapping[str, Mapping[str, str]]) -> DockerFacts:
    """What the daemon says of itself. A stopped one is not asked: socket activation would start it."""
    nothing: DockerFacts = {"version": None, "storage_driver": None, "root": None, "error": None}
    service = shown.get("docker.service", {})
    if service and service.get("LoadState") == "not-found":
        return {**nothing, "error": "Docker is not installed"}
    if service and service.get("ActiveState") not in ("active", "reloading"):
        waiting = shown.get("docker.socket", {}).get("ActiveState") == "active"
        state = f"docker.service is {service.get('ActiveState') or 'unknown'}"
        return {**nothing, "error": f"{state}; docker.socket would start it at first use" if waiting else state}
    try:
        status, info = _docker_get(node)("/info")
    except (OSError, ValueError) as wrong:
        return {**nothing, "error": f"the Docker daemon does not answer: {wrong}"}
    if status != 200 or not isinstance(info, dict):
        return {**nothing, "error": f"the Docker daemon answered {status}: {_message(info)}"}
    return docker.parse_info(info)


def _docker_get(node: Node) -> DockerGet:
    return node.docker_get or docker_socket_get()


def _message(answer: Any) -> str:
    return str(answer.get("message", "")) if isinstance(answer, dict) else str(answer)[:200]


def _image(get: DockerGet | None, reference: str | None, daemon: DockerFacts) -> ImageFacts | None:
    if not reference:
        return None
    if get is None:
        return docker.parse_image(reference, None, daemon["error"])
    seen: dict[str, dict[str, Any]] = {}

    def image_of(name: str) -> dict[str, Any] | None:
        status, answer = get(f"/images/{name}/json")
        if status == 404:
            return None
        if status != 200 or not isinstance(answer, dict):
            raise ValueError(f"the Docker daemon answered {status}: {_message(answer)}")
        seen[name] = answer
        return answer

    try:
        found = images.find(reference, image_of)
    except (OSError, ValueError) as wrong:
        return docker.parse_image(reference, None, str(wrong))
    except (AttributeError, TypeError) as wrong:
        return docker.parse_image(reference, None, f"the Docker daemon's answer cannot be read: {wrong}")
    if found is None:
        return docker.parse_image(reference, None)
    facts = docker.parse_image(reference, seen[found["name"]])
    # What a copy proved counts like what the store itself keeps.
    repository = images.split(reference)[0]
    kept = {item.rpartition("@")[2] for item in facts["repo_digests"]}
    facts["repo_digests"] += [f"{repository}@{digest}" for digest in found["digests"] if digest not in kept]
    return facts


def _rank(get: DockerGet | None, shown: Mapping[str, Mapping[str, str]]) -> RankFacts:
    unit = shown.get(UNIT_NAME, {})
    state = "absent" if unit.get("LoadState", "not-found") == "not-found" else unit.get("ActiveState", "unknown")
    facts: RankFacts = {"unit_state": state, "container": None}
    if get is not None:
        try:
            status, answer = get(f"/containers/{CONTAINER_NAME}/json")
        except (OSError, ValueError):
            return facts
        if status == 200 and isinstance(answer, dict):
            facts["container"] = docker.parse_container(answer)
    return facts


def _links(node: Node) -> list[ip.Link]:
    done = node.ask("ip", "-j", "addr")
    try:
        return ip.parse_addr(done.stdout) if done.ok else []
    except ValueError as wrong:
        node.errors["ip"] = f"unreadable output: {wrong}"
        return []


def _other_tables(node: Node, main: list[RouteFacts]) -> list[RouteFacts]:
    """Routes beside the main table: a VPN's are asked first, and /proc does not show them."""
    done = node.ask("ip", "-j", "-4", "route", "show", "table", "all")
    try:
        every = ip.parse_routes(done.stdout) if done.ok else []
    except ValueError as wrong:
        node.errors["ip"] = f"unreadable output: {wrong}"
        return []
    known = {(route["dst"], route["dev"]) for route in main}
    return [route for route in every if route["dev"] and (route["dst"], route["dev"]) not in known]


def _netdevs(node: Node, links: Iterable[ip.Link], devices: Iterable[RdmaDeviceFacts]) -> list[NetdevFacts]:
    rdma_names = {device["netdev"]: device["name"] for device in devices if device["netdev"]}
    netdevs: list[NetdevFacts] = []
    for link in links:
        if link.name == "lo":
            continue
        base = f"/sys/class/net/{link.name}"
        device = node.path(f"{base}/device")
        # Without a link the kernel answers EINVAL or -1. A virtual interface names a constant that nobody negotiated.
        speed = whole(node.text(f"{base}/speed")) if device.exists() else None
        netdevs.append(
            {
                "name": link.name,
                "mac": link.mac,
                "operstate": link.operstate,
                "admin_up": link.admin_up,
                "carrier": link.carrier,
                "mtu": link.mtu,
                "speed_mbps": speed if speed is not None and speed < 2**31 else None,
                "driver": _link_name(device / "driver"),
                "pci": _pci(device),
                "addresses": list(link.addresses),
                "master": link.master,
                "rdma_device": rdma_names.get(link.name),
                "arp_ignore": _arp(node, link.name, "arp_ignore"),
                "arp_announce": _arp(node, link.name, "arp_announce"),
            }
        )
    return netdevs


def _arp(node: Node, netdev: str, name: str) -> int:
    values = (node.text(f"/proc/sys/net/ipv4/conf/{whose}/{name}") for whose in ("all", netdev))
    return max((whole(value) or 0 for value in values), default=0)


def _link_name(path: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def _pci(device: Path) -> str | None:
    """The PCI function behind an interface; a virtio device lies one level below its own."""
    try:
        parts = os.path.realpath(device, strict=True).split("/")
    except OSError:
        return None
    return next((part for part in reversed(parts) if _PCI.fullmatch(part)), None)


def _networkmanager(node: Node, netdevs: Iterable[NetdevFacts]) -> NetworkManagerFacts:
    facts: NetworkManagerFacts = {"running": False, "uuids": [], "profiles": [], "error": None}
    done = node.run(("nmcli", "-t", "-f", ",".join(nmcli.CONNECTION_FIELDS), "connection", "show"), timeout_s=20)
    if done.rc == NOT_FOUND_RC:
        return facts
    if not done.ok:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        return {**facts, "error": said or f"nmcli exited {done.rc}"}
    macs = {netdev["name"]: netdev["mac"] for netdev in netdevs}
    connections = nmcli.parse_connections(done.stdout)
    profiles: list[ProfileFacts] = [
        {
            "uuid": connection.uuid,
            "name": connection.name,
            "device": connection.device,
            "file": connection.file,
            "netdevs": nmcli.keyfile_netdevs(node.text(connection.file), macs) if connection.file else [],
            "autoconnect": connection.autoconnect,
            "lasting": bool(connection.file)
            and (not connection.file.startswith("/run/") or made_by_netplan(connection.file)),
        }
        for connection in connections
    ]
    return {**facts, "running": True, "uuids": [one.uuid for one in connections], "profiles": profiles}


def made_by_netplan(path: str) -> bool:
    """Whether netplan's generator wrote a renderer's file: what it says is said by a netplan file as well."""
    return path.startswith("/run/") and re.match(r"(?:10-)?netplan-", path.rpartition("/")[2]) is not None


def _networkd(node: Node, shown: Mapping[str, Mapping[str, str]], netdevs: Iterable[NetdevFacts]) -> NetworkdFacts:
    macs = {netdev["name"]: netdev["mac"] for netdev in netdevs}
    files: list[NetworkFile] = []
    for folder in NETWORKD_FOLDERS:
        for name in node.names(folder):
            path = f"/{folder}/{name}"
            if name.endswith(".network") and not made_by_netplan(path):
                files.append({"path": path, "netdevs": nmcli.network_file_netdevs(node.text(path), macs)})
    running = shown.get("systemd-networkd.service", {}).get("ActiveState") == "active"
    return {"running": running, "files": files}


def _netplan(node: Node, manager: NetworkManagerFacts, netdevs: Iterable[NetdevFacts]) -> NetplanFacts:
    live = None if manager["error"] else manager["uuids"]
    macs = {netdev["name"]: netdev["mac"] for netdev in netdevs}
    facts: NetplanFacts = {"files": [], "renderer": ""}
    seen: set[str] = set()
    renderers: list[tuple[str, str]] = []
    for folder in NETPLAN_FOLDERS:
        for name in node.names(folder):
            # A file shadows those of the same name in later folders.
            if not name.endswith(".yaml") or name in seen:
                continue
            seen.add(name)
            path = f"/{folder}/{name}"
            content = node.bytes_of(path)
            try:
                status = node.path(path).stat()
            except OSError:
                continue
            if content is None:
                node.errors[path] = "cannot be read"
                continue
            verdict = netplan.classify(path, content, live)
            claimed: list[str] = []
            if verdict.error is None:
                document = netplan.parse(content.decode("utf-8"))
                claimed = sorted({name for claim in document.claims for name in claim.netdevs(macs)})
                if document.renderer:
                    renderers.append((name, document.renderer))
            facts["files"].append(
                {
                    "path": path,
                    "size_bytes": len(content),
                    "mode": f"{status.st_mode & 0o7777:04o}",
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "mtime_s": status.st_mtime,
                    "class": verdict.kind,
                    "error": verdict.error,
                    "netdevs": claimed,
                }
            )
    # Files are merged in the order of their names, whatever folder they lie in: the last one decides.
    facts["renderer"] = max(renderers)[1] if renderers else ""
    return facts


def _firewall(node: Node, shown: Mapping[str, Mapping[str, str]]) -> FirewallFacts:
    if firewall.ufw_enabled(node.text("/etc/ufw/ufw.conf")):
        rules = firewall.ufw_rules(node.text("/etc/ufw/user.rules"))
        return {"active": True, "kind": "ufw", "evidence": ["/etc/ufw/ufw.conf: ENABLED=yes", *rules]}
    if shown.get("firewalld.service", {}).get("ActiveState") == "active":
        trusted = firewall.firewalld_trusted(node.text("/etc/firewalld/zones/trusted.xml"))
        return {
            "active": True,
            "kind": "firewalld",
            "evidence": ["firewalld.service is active", *(f"trusted: {name}" for name in trusted)],
        }
    done = node.run(("nft", "list", "ruleset"))
    if done.ok:
        refuses, lines = firewall.nft_input(done.stdout)
        if refuses:
            return {"active": True, "kind": "nftables", "evidence": lines}
    elif done.rc != NOT_FOUND_RC:
        node.errors["nft"] = " ".join(done.stderr.split())[:300]
    return {"active": False, "kind": None, "evidence": []}


@dataclass(frozen=True)
class _UnitFile:
    """A unit that might matter: what it runs, and the texts that its command names."""

    name: str
    commands: tuple[str, ...]
    texts: tuple[str, ...]


def _unit_files(node: Node) -> list[_UnitFile]:
    """Services on disk that serve a model or use a GPU or name a port, by what their files say."""
    seen = {UNIT_NAME, *WATCHED_UNITS}
    found: list[_UnitFile] = []
    for folder in UNIT_FOLDERS:
        for name in node.names(folder):
            if not name.endswith(".service") or name in seen:
                continue
            seen.add(name)
            content = node.text(f"/{folder}/{name}")
            if not content:
                continue
            drop_ins = [
                node.text(f"/etc/systemd/system/{name}.d/{extra}")
                for extra in node.names(f"etc/systemd/system/{name}.d")
                if extra.endswith(".conf")
            ]
            unit = systemd.parse_unit_file("\n".join([content, *drop_ins]))
            commands = systemd.commands(unit)
            texts = (*commands, *unit.get("Service.Environment", ()), *_scripts(node, commands))
            if systemd.serves_model(texts) or systemd.uses_gpu(texts) or systemd.ports(texts):
                found.append(_UnitFile(name, tuple(commands), texts))
    return found


def _scripts(node: Node, commands: Iterable[str]) -> list[str]:
    """The small text files that commands name: a start script or a compose file says more than the unit does.

    Not those of the distribution, which say nothing about models and are many.
    """
    texts: list[str] = []
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError:
            words = command.split()
        for word in words:
            if not word.startswith("/") or word.startswith(_NOT_SCRIPTS):
                continue
            path = node.path(word)
            try:
                if not path.is_file() or path.stat().st_size > _MAX_SCRIPT_BYTES:
                    continue
                content = path.read_bytes()
            except OSError:
                continue
            if b"\0" not in content:
                lines = content.decode("utf-8", "replace").splitlines()
                texts.append("\n".join(line for line in lines if not line.lstrip().startswith("#")))
    return texts


def _show_units(node: Node, files: Iterable[_UnitFile]) -> dict[str, dict[str, str]]:
    """The state of every unit that matters, in one call."""
    names = [*WATCHED_UNITS, *(unit.name for unit in files if "@." not in unit.name)]
    done = node.ask("systemctl", "show", "-p", "Id,LoadState,ActiveState,UnitFileState", "--", *names)
    return systemd.parse_show(done.stdout) if done.ok else {}


def _units(files: Iterable[_UnitFile], shown: Mapping[str, Mapping[str, str]], request: Request) -> list[UnitFacts]:
    """Those that would take the GPU or the port, or serve a model: a port alone counts only if it is the API's."""
    units: list[UnitFacts] = []
    for unit in files:
        ports = systemd.ports(unit.texts)
        serves, gpu = systemd.serves_model(unit.texts), systemd.uses_gpu(unit.texts)
        if not (serves or gpu or request.api_port in ports):
            continue
        state = shown.get(unit.name, {})
        units.append(
            {
                "name": unit.name,
                "enabled": state.get("UnitFileState") or "unknown",
                "active": state.get("ActiveState") or "unknown",
                "exec": hide("; ".join(unit.commands))[:500],
                "ports": ports,
                "gpu": gpu,
            }
        )
    return units


def _listeners(node: Node) -> list[ListenerFacts]:
    done = node.ask("ss", "-ltnpH")
    return sockets.parse_listeners(done.stdout) if done.ok else []


def _perftest(node: Node) -> str | None:
    done = node.run(("ib_write_bw", "--version"))
    return perftest.parse_version(done.stdout + done.stderr)


def _host_keys(node: Node) -> list[str]:
    """Public host keys without their comments, as known_hosts spells them."""
    names = [name for name in node.names("/etc/ssh") if re.fullmatch(r"ssh_host_\w+_key\.pub", name)]
    keys = (" ".join(node.text(f"/etc/ssh/{name}").split()[:2]) for name in names)
    return [key for key in keys if " " in key]


def _weights(node: Node, request: Request) -> WeightsFacts | None:
    if not request.weights_folder:
        return None
    path = os.path.join(request.models_dir, request.weights_folder)
    facts: WeightsFacts = {"path": path, "present": False, "files": 0, "bytes": 0, "config": None, "error": None}
    top = node.path(path)
    if not top.is_dir():
        return facts
    facts["present"] = True
    for folder, folders, files in os.walk(top):
        # What a downloader keeps for itself is no part of a model.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            try:
                # Followed on purpose: a Hugging Face cache holds links, and a dangling one is a file that is missing.
                facts["bytes"] += os.stat(os.path.join(folder, name)).st_size
                facts["files"] += 1
            except OSError as wrong:
                facts["error"] = f"{name}: {wrong.strerror}"
    try:
        config = document((top / "config.json").read_bytes())
        facts["config"] = config if isinstance(config, dict) else None
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as wrong:
        facts["error"] = f"config.json: {wrong}"
    return facts


def _bundle(node: Node) -> BundleFacts:
    raw = node.bytes_of(MANIFEST)
    if raw is None:
        return {"manifest": None, "files": [], "error": None}
    try:
        expected = read_manifest(raw)
        manifest = document(raw)
    except ValueError as wrong:
        return {"manifest": None, "files": [], "error": f"{MANIFEST}: {wrong}"}
    return {
        "manifest": manifest,
        "files": [
            {"path": path, "sha256": _sha256(node, path), "expected_sha256": sha256}
            for path, sha256 in sorted(expected.items())
        ],
        "error": None,
    }


def _sha256(node: Node, path: str) -> str | None:
    content = node.bytes_of(path)
    return None if content is None else hashlib.sha256(content).hexdigest()
