"""What ``node_info`` returns about one node: the shapes that planning and every check read.

A value that could not be read is ``None``, with the reason in the ``error`` beside it, so that a missing tool is never
taken for a missing thing.
"""

from __future__ import annotations

from typing import Any, TypedDict


class OsFacts(TypedDict):
    id: str
    version_id: str
    pretty: str


class MemoryFacts(TypedDict):
    total_bytes: int
    available_bytes: int


class DiskFacts(TypedDict):
    """The file system that holds ``path``; ``purpose`` is ``models``, ``docker`` or ``var``."""

    path: str
    free_bytes: int
    total_bytes: int
    purpose: str


class GpuFacts(TypedDict):
    driver_version: str | None
    name: str | None
    error: str | None


class DockerFacts(TypedDict):
    """``version`` is the daemon's: None when it does not answer, and then ``error`` says what happened instead."""

    version: str | None
    storage_driver: str | None
    root: str | None
    error: str | None


class NetdevFacts(TypedDict):
    """``speed_mbps`` is None without a link, and on virtual devices like ``driver`` and ``pci``; IPv4 only.

    A missing ``carrier`` says something only while ``admin_up``: the interface is switched on. ``arp_ignore`` and
    ``arp_announce`` are what the kernel goes by here, the larger of the interface's own and everybody's.
    """

    name: str
    mac: str
    operstate: str
    admin_up: bool
    carrier: bool
    mtu: int
    speed_mbps: int | None
    driver: str | None
    pci: str | None
    addresses: list[str]
    master: str | None
    rdma_device: str | None
    arp_ignore: int
    arp_announce: int


class GidFacts(TypedDict):
    """One non-empty slot of a device's GID table; ``netdev`` is empty where the kernel would not tell."""

    index: int
    gid: str
    type: str
    netdev: str


class RdmaDeviceFacts(TypedDict):
    name: str
    port: int
    netdev: str | None
    state: str
    gids: list[GidFacts]


class RouteFacts(TypedDict):
    """An IPv4 route of any table but the kernel's own; ``gateway`` is None for connected networks."""

    dst: str
    dev: str
    gateway: str | None
    metric: int


class FirewallFacts(TypedDict):
    """An active packet filter that can drop what arrives; ``evidence`` are the lines that say so."""

    active: bool
    kind: str | None
    evidence: list[str]


NetplanFile = TypedDict(
    "NetplanFile",
    {
        "path": str,
        "size_bytes": int,
        "mode": str,
        "sha256": str,
        "mtime_s": float,
        "class": str,
        "error": str | None,
        "netdevs": list[str],
    },
)
"""One file of /etc/netplan, judged by its bytes.

``class`` is ``yaml``, ``orphan_nul`` (an all-NUL 90-NM file whose profile NetworkManager does not know), ``live_nul``
(all NUL, and the profile is live or NetworkManager would not say), ``unreadable`` or ``ours``. ``error`` says why it is
not plain YAML, with the line where there is one; ``netdevs`` are the interfaces that it claims, patterns resolved.
"""


class NetplanFacts(TypedDict):
    """``renderer`` is the one that the files name globally, empty where none does."""

    files: list[NetplanFile]
    renderer: str


class ProfileFacts(TypedDict):
    """A profile of NetworkManager's; ``netdevs`` are the interfaces it is bound to, ``device`` where it is active.

    ``lasting`` is whether it is there after the next boot: saved, or made from a netplan file.
    """

    uuid: str
    name: str
    device: str
    file: str
    netdevs: list[str]
    autoconnect: bool
    lasting: bool


class NetworkManagerFacts(TypedDict):
    """``error`` is set when NetworkManager is installed and silent: then ``uuids`` says nothing about what is live."""

    running: bool
    uuids: list[str]
    profiles: list[ProfileFacts]
    error: str | None


class NetworkFile(TypedDict):
    path: str
    netdevs: list[str]


class NetworkdFacts(TypedDict):
    """``files`` are those of systemd-networkd that somebody wrote, netplan's own left out."""

    running: bool
    files: list[NetworkFile]


class UnitFacts(TypedDict):
    """A unit that is not ours and serves a model, holds the API's port or uses the GPU.

    ``enabled`` and ``active`` are systemd's words (``enabled``, ``disabled``, ``static``; ``active``, ``inactive``).
    """

    name: str
    enabled: str
    active: str
    exec: str
    ports: list[int]
    gpu: bool


class ListenerFacts(TypedDict):
    port: int
    address: str
    process: str


class ImageFacts(TypedDict):
    reference: str
    present: bool
    id: str
    repo_digests: list[str]
    layers: list[str]
    architecture: str
    env: list[str]
    size_bytes: int
    error: str | None


class WeightsFacts(TypedDict):
    """``config`` is the folder's config.json, None where there is none or it cannot be read."""

    path: str
    present: bool
    files: int
    bytes: int
    config: dict[str, Any] | None
    error: str | None


class BundleFile(TypedDict):
    """``sha256`` is that of the file as it lies there now, None when it is gone."""

    path: str
    sha256: str | None
    expected_sha256: str


class BundleFacts(TypedDict):
    """What this project installed on the node; ``manifest`` is None on a node that has nothing of it."""

    manifest: dict[str, Any] | None
    files: list[BundleFile]
    error: str | None


class RankContainer(TypedDict):
    """``memory_share`` is the engine's share of the node that its command line names, which its end gives back."""

    id: str
    running: bool
    started_at: str
    config_sha256: str
    memory_share: float | None


class RankFacts(TypedDict):
    """``unit_state`` is systemd's word for our unit, ``absent`` where it is not installed."""

    unit_state: str
    container: RankContainer | None


class NodeFacts(TypedDict):
    hostname: str
    os: OsFacts
    arch: str
    kernel: str
    python: str
    boot_id: str
    sudo_root: bool
    memory: MemoryFacts
    disks: list[DiskFacts]
    gpu: GpuFacts
    kernel_module_nvidia: str | None
    docker: DockerFacts
    netdevs: list[NetdevFacts]
    rdma_devices: list[RdmaDeviceFacts]
    routes: list[RouteFacts]
    default_routes: list[RouteFacts]
    firewall: FirewallFacts
    netplan: NetplanFacts
    networkmanager: NetworkManagerFacts
    networkd: NetworkdFacts
    units: list[UnitFacts]
    listeners: list[ListenerFacts]
    perftest: str | None
    ssh_host_keys: list[str]
    image: ImageFacts | None
    weights: WeightsFacts | None
    bundle: BundleFacts
    rank: RankFacts
    errors: dict[str, str]
    """What could not be read: tool or source, and what it said."""
