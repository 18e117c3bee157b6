"""Factory state: what a Spark is like when it is first met. The same for containers and VMs."""

from __future__ import annotations

import io
import json
import tarfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab.engine import IMAGE, tiny_model
from lab.machines import Machines, Node
from lab.seam import state as seam_state
from lab.state import State

# The two functions of the cabled CX7 port, and their places on the PCIe bus.
CX7 = {"enp1s0f0np0": "0000:01:00.0", "enP2p1s0f0np0": "0002:01:00.0"}
MANAGEMENT = "enP7s7"

PACKAGES = (
    # init and remote control
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "libpam-systemd"),
    *("openssh-server", "openssh-client", "sudo", "python3", "python3-apt"),
    # network
    *("netplan.io", "network-manager", "iproute2", "iputils-ping", "ethtool"),
    *("ufw", "iptables", "nftables", "curl", "ca-certificates"),
    # what a DGX OS box has besides
    *("docker.io", "docker-cli", "rdma-core", "ibverbs-utils", "ibverbs-providers", "perftest"),
    *("pciutils", "rsync", "procps", "less", "zstd"),
)

USER_ID = 1000
# Not secret: it opens sudo on virtual machines that nobody reaches without their key.
LAB_PASSWORD = "spark"  # noqa: S105
ORPHAN_BYTES = 715
ORPHAN_MTIME = int(datetime(2025, 9, 29, 14, 3, 7, tzinfo=UTC).timestamp())
# Started for real only by a test that wants to see it take the port: it is enabled like any other unit.
SINGLE_NODE_MARK = "/etc/spark-lab/start-single-node"


def root_hook(user: str) -> str:
    """Shell that turns a new root ($1) into a Spark's: its user, its services. Identity comes later, with files()."""
    return f"""set -eu
R=$1
chroot "$R" useradd --create-home --shell /bin/bash --uid {USER_ID} --user-group --groups sudo,docker {user}
echo '{user}:{LAB_PASSWORD}' | chroot "$R" chpasswd
install -d -m 0755 "$R/etc/ssh/sshd_config.d" "$R/etc/NetworkManager/conf.d" "$R/etc/spark-lab"
printf 'PasswordAuthentication no\\nPermitRootLogin prohibit-password\\nUseDNS no\\n' \
> "$R/etc/ssh/sshd_config.d/10-spark.conf"
printf '[main]\\nno-auto-default=*\\n' > "$R/etc/NetworkManager/conf.d/10-spark.conf"
rm -f "$R"/etc/ssh/ssh_host_* "$R"/etc/netplan/* "$R/etc/hostname" "$R/etc/resolv.conf" \
"$R"/var/lib/apt/lists/*_* "$R/var/lib/dbus/machine-id"
: > "$R/etc/machine-id"; : > "$R/etc/resolv.conf"
chroot "$R" systemctl -q enable NetworkManager ssh docker
chroot "$R" systemctl -q disable systemd-networkd ufw nftables e2scrub_reap.service \
apt-daily.timer apt-daily-upgrade.timer 2>/dev/null || true
chroot "$R" systemctl -q mask systemd-networkd-wait-online NetworkManager-wait-online
chroot "$R" python3 -m compileall -q /usr/lib/python3 >/dev/null 2>&1 || true
"""


@dataclass(frozen=True)
class File:
    """A file of a node; `link` makes it a symbolic link, `folder` a folder."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    owner: int = 0
    mtime: int = 0
    link: str = ""
    folder: bool = False


@dataclass(frozen=True)
class Management:
    """The management NIC: a static address, or DHCP where `address` is empty."""

    netdev: str = MANAGEMENT
    address: str = ""


def connection_uuid(machines: Machines, node: Node, what: str) -> str:
    """A UUID that is the same at each build."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{what}.{node.name}.{machines.name}.lab"))


def files(machines: Machines, state: State, node: Node, management: Management) -> list[File]:
    """Everything that makes a root file system this node in factory state."""
    home = f"/home/{machines.user}"
    key = state.host_key(node)
    hosts = f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n::1 ip6-localhost ip6-loopback\n"
    found = [
        File("/etc/hostname", f"{node.name}\n".encode()),
        # As on Ubuntu, everybody finds ethtool and the like.
        File("/etc/environment", b'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'),
        File("/etc/default/locale", b"LANG=C.UTF-8\n"),
        # Ubuntu lets everybody ping.
        File("/usr/lib/sysctl.d/50-ping.conf", b"net.ipv4.ping_group_range = 0 2147483647\n"),
        # As an installer leaves it: a node knows itself and no peer.
        File("/etc/hosts", hosts.encode()),
        File("/etc/machine-id", (uuid.uuid4().hex + "\n").encode(), 0o444),
        File("/etc/ssh/ssh_host_ed25519_key", key.read_bytes(), 0o600),
        File("/etc/ssh/ssh_host_ed25519_key.pub", key.with_suffix(".pub").read_bytes()),
        File(f"{home}/.ssh", mode=0o700, owner=USER_ID, folder=True),
        File(f"{home}/.ssh/authorized_keys", f"{state.public_key()}\n".encode(), 0o600, USER_ID),
        File(f"{home}/models", mode=0o755, owner=USER_ID, folder=True),
        *netplan_files(machines, node, management),
        *seam_files(node),
    ]
    if node == machines.head:
        if machines.single_node_unit:
            found += single_node_unit(machines)
        found += weights(machines)
    return found


def netplan_files(machines: Machines, node: Node, management: Management) -> list[File]:
    """NetworkManager everywhere; one live connection, kept by netplan; one orphan of a crashed write, all NUL."""
    live = connection_uuid(machines, node, "management")
    ip = (
        f'      dhcp4: false\n      addresses: ["{management.address}"]\n'
        if management.address
        else "      dhcp4: true\n"
    )
    healthy = (
        "network:\n  version: 2\n  ethernets:\n"
        f'    NM-{live}:\n      renderer: NetworkManager\n      match:\n        name: "{management.netdev}"\n{ip}'
        f'      networkmanager:\n        uuid: "{live}"\n        name: "Management"\n'
    )
    orphan = connection_uuid(machines, node, "orphan")
    return [
        File(
            "/etc/netplan/01-network-manager-all.yaml", b"network:\n  version: 2\n  renderer: NetworkManager\n", 0o600
        ),
        File(f"/etc/netplan/90-NM-{live}.yaml", healthy.encode(), 0o600),
        File(f"/etc/netplan/90-NM-{orphan}.yaml", bytes(ORPHAN_BYTES), 0o600, mtime=ORPHAN_MTIME),
    ]


def single_node_unit(machines: Machines) -> list[File]:
    """An earlier deployment on the head alone: enabled, holds the port and the GPU when it runs."""
    unit = f"""[Unit]
Description=vLLM on this Spark alone
Requires=docker.service
After=docker.service network-online.target
ConditionPathExists={SINGLE_NODE_MARK}

[Service]
Restart=always
RestartSec=10
ExecStartPre=-/usr/bin/docker rm -f vllm-single
ExecStart=/usr/bin/docker run --rm --name vllm-single --gpus all --shm-size 1g -p 8000:8000 \\
  -v /home/{machines.user}/models:/models:ro \\
  -e HF_HUB_OFFLINE=1 -e VLLM_CPU_KVCACHE_SPACE=1 -e TORCH_COMPILE_DISABLE=1 \\
  {IMAGE} vllm serve /models/{tiny_model.NAME} --served-model-name {tiny_model.NAME} --port 8000
ExecStop=/usr/bin/docker stop vllm-single

[Install]
WantedBy=multi-user.target
"""
    name = "vllm-single.service"
    return [
        File(f"/etc/systemd/system/{name}", unit.encode()),
        File(f"/etc/systemd/system/multi-user.target.wants/{name}", link=f"/etc/systemd/system/{name}"),
    ]


def weights(machines: Machines) -> list[File]:
    """The tiny model, on the head alone."""
    folder = f"/home/{machines.user}/models/{tiny_model.NAME}"
    inside = [File(f"{folder}/{name}", data, owner=USER_ID) for name, data in tiny_model.files().items()]
    return [File(folder, mode=0o755, owner=USER_ID, folder=True), *inside]


def seam_files(node: Node) -> list[File]:
    """The commands that stand in for hardware, and the state file that drives them."""
    program = "/usr/local/lib/spark-lab/seam"
    source = Path(__file__).resolve().parent / "seam" / "seam.py"
    return [
        File("/etc/spark-lab/state.json", (json.dumps(seam_state.factory(node.name, CX7), indent=1) + "\n").encode()),
        File(program, source.read_bytes(), 0o755),
        *(File(f"/usr/local/sbin/{name}", link=program) for name in seam_state.COMMANDS),
        # sudo and systemd look in sbin first, a plain login has no sbin.
        *(File(f"/usr/local/bin/{name}", link=program) for name in ("nvidia-smi", "lspci")),
    ]


def as_tar(contents: Iterable[File]) -> bytes:
    """The files as a tar to unpack at / with owners, modes and times."""
    now = int(datetime.now(tz=UTC).timestamp())
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in contents:
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.mode, entry.mtime = file.mode, file.mtime or now
            entry.uid = entry.gid = file.owner
            if file.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
            elif file.folder:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(file.data)
            tar.addfile(entry, io.BytesIO(file.data) if entry.isfile() else None)
    return out.getvalue()
