"""The whole reading of a node, on a root folder and recorded commands."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import images
from ansible.module_utils.spark.bundle import MANIFEST, render_manifest
from ansible.module_utils.spark.facts import NodeFacts
from ansible.module_utils.spark.gather import Node, Request, gather
from ansible.module_utils.spark.plan.types import CONFIG_LABEL
from ansible.module_utils.spark.runner import Completed

NET = Path(__file__).parent.parent / "fixtures" / "net"
ORPHAN = "90-NM-0f7a33ac-512e-4c03-b088-4db00fe3292e.yaml"
LIVE = "90-NM-05ec54af-9f53-3227-867e-c7e879b25c37.yaml"

Answer = tuple[int, str, str]


class Machine:
    """A node made of files, recorded command output and a Docker daemon that answers from a table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, ...]] = []
        self.commands: dict[str, Answer] = {
            "ip": (0, (NET / "ip-addr-before.json").read_text(), ""),
            "nmcli": (0, "05ec54af-9f53-3227-867e-c7e879b25c37\n", ""),
            "nvidia-smi": (0, "580.95.05, NVIDIA GB10\n", ""),
            "modinfo": (0, "580.95.05\n", ""),
            "ss": (0, 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=811,fd=3))\n', ""),
            "ib_write_bw": (1, "Version: 6.24\n", ""),
            "nft": (0, "", ""),
        }
        self.states: dict[str, tuple[str, str, str]] = {"docker.service": ("loaded", "active", "enabled")}
        self.docker: dict[str, tuple[int, Any]] = {
            "/info": (200, {"ServerVersion": "28.3.3", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker"})
        }
        self.docker_asked: list[str] = []
        self.write("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
        self.write("proc/sys/kernel/hostname", "spark-01\n")
        self.write("proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")

    def write(self, path: str, content: str | bytes) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30,
        check: bool = False,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        remedy: str = "",
    ) -> Completed:
        self.calls.append(tuple(argv))
        if argv[0] == "systemctl" and "systemctl" not in self.commands:
            records = [
                "Id={}\nLoadState={}\nActiveState={}\nUnitFileState={}\n".format(
                    name, *self.states.get(name, ("not-found", "inactive", ""))
                )
                for name in argv[argv.index("--") + 1 :]
            ]
            return Completed(tuple(argv), 0, "\n".join(records), "")
        rc, out, err = self.commands.get(argv[0], (127, "", f"{argv[0]}: no such program"))
        return Completed(tuple(argv), rc, out, err)

    def docker_get(self, resource: str) -> tuple[int, Any]:
        self.docker_asked.append(resource)
        return self.docker.get(resource, (404, {"message": "not found"}))

    def read(self, **request: Any) -> NodeFacts:
        node = Node(run=self.run, root=self.root, docker_get=self.docker_get)
        return gather(node, Request(**request))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_everything_is_there_and_fits_into_json(machine: Machine) -> None:
    facts = machine.read()
    assert set(facts) == set(NodeFacts.__annotations__)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["hostname"] == "spark-01"
    assert facts["memory"]["available_bytes"] == 900 * 1024
    assert facts["gpu"] == {"driver_version": "580.95.05", "name": "NVIDIA GB10", "error": None}
    assert facts["kernel_module_nvidia"] == "580.95.05"
    assert facts["perftest"] == "6.24"
    assert facts["listeners"] == [{"port": 22, "address": "0.0.0.0", "process": "sshd[811]"}]
    assert facts["errors"] == {}


def test_each_command_is_run_once(machine: Machine) -> None:
    machine.read(image="a/b:1", models_dir="/models", weights_folder="tiny")
    programs = [call[0] for call in machine.calls if "route" not in call]
    assert len(programs) == len(set(programs))
    assert len(machine.calls) <= 9


def test_a_machine_that_has_nothing(machine: Machine) -> None:
    """No tool, no daemon, no file: nothing is invented and nothing raises."""
    machine.commands = {"systemctl": (127, "", "systemctl: no such program")}
    machine.docker = {"/info": (500, {"message": "broken"})}
    facts = machine.read(image="a/b:1", weights_folder="tiny", models_dir="/models")
    assert facts["netdevs"] == []
    assert facts["gpu"]["error"] == "nvidia-smi is not installed"
    assert facts["docker"]["error"] == "the Docker daemon answered 500: broken"
    assert facts["networkmanager"] == {"running": False, "uuids": [], "profiles": [], "error": None}
    assert facts["networkd"] == {"running": False, "files": []}
    assert facts["image"] is not None
    assert facts["image"]["error"]
    assert facts["rank"] == {"unit_state": "absent", "container": None}
    assert {"ip", "ss", "systemctl", "modinfo"} <= set(facts["errors"])


@pytest.mark.parametrize("said", ["not json", '{"ifname": "lo"}', '[{"ifname":"e0","addr_info":[{"family":"inet"}]}]'])
def test_output_that_cannot_be_read(machine: Machine, said: str) -> None:
    machine.commands["ip"] = (0, said, "")
    facts = machine.read()
    assert facts["netdevs"] == []
    assert "unreadable output" in facts["errors"]["ip"]


def test_dgx_os_is_named(machine: Machine) -> None:
    machine.write("etc/dgx-release", 'DGX_NAME="DGX Spark"\nDGX_OTA_VERSION="7.2.3"\n')
    assert machine.read()["os"]["pretty"] == "DGX OS 7.2.3 (Ubuntu 24.04.3 LTS)"
    assert machine.read()["os"]["id"] == "ubuntu"


def test_interfaces_with_their_hardware(machine: Machine) -> None:
    device = machine.root / "sys/devices/pci0000:00/0000:00:04.0/virtio2"
    (device / "net").mkdir(parents=True)
    (machine.root / "sys/bus/virtio/drivers/virtio_net").mkdir(parents=True)
    os.symlink(machine.root / "sys/bus/virtio/drivers/virtio_net", device / "driver")
    folder = machine.root / "sys/class/net/enp1s0f0np0"
    folder.mkdir(parents=True)
    os.symlink(device, folder / "device")
    (folder / "speed").write_text("200000\n")
    # Hardware without a link, and a virtual interface with its constant.
    machine.write("sys/class/net/mgmt0/speed", "-1\n")
    os.symlink(device, machine.root / "sys/class/net/mgmt0/device")
    machine.write("sys/class/net/enP2p1s0f0np0/speed", "10000\n")
    netdevs = {netdev["name"]: netdev for netdev in machine.read()["netdevs"]}
    assert list(netdevs) == ["mgmt0", "enp1s0f0np0", "enP2p1s0f0np0"]
    rail = netdevs["enp1s0f0np0"]
    assert (rail["speed_mbps"], rail["driver"], rail["pci"]) == (200000, "virtio_net", "0000:00:04.0")
    assert (netdevs["mgmt0"]["speed_mbps"], netdevs["mgmt0"]["driver"]) == (None, "virtio_net")
    virtual = netdevs["enP2p1s0f0np0"]
    assert (virtual["speed_mbps"], virtual["driver"], virtual["pci"]) == (None, None, None)
    assert netdevs["mgmt0"]["addresses"] == ["10.0.2.15/24"]


def test_rdma_devices_are_tied_to_their_interfaces(machine: Machine) -> None:
    port = "sys/class/infiniband/rocep1s0f0/ports/1"
    machine.write(f"{port}/gids/0", "fe80:0000:0000:0000:5054:00ff:feaa:0001\n")
    machine.write(f"{port}/gid_attrs/types/0", "RoCE v2\n")
    machine.write(f"{port}/gid_attrs/ndevs/0", "enp1s0f0np0\n")
    facts = machine.read()
    assert facts["rdma_devices"][0]["netdev"] == "enp1s0f0np0"
    assert [netdev["rdma_device"] for netdev in facts["netdevs"]] == [None, "rocep1s0f0", None]


def test_factory_netplan(machine: Machine) -> None:
    machine.write(f"etc/netplan/{ORPHAN}", bytes(715))
    os.utime(machine.root / "etc/netplan" / ORPHAN, (1759104000, 1759104000))
    (machine.root / "etc/netplan" / ORPHAN).chmod(0o600)
    machine.write(f"etc/netplan/{LIVE}", "network:\n  ethernets:\n    mgmt0:\n      dhcp4: true\n")
    machine.write("usr/lib/netplan/00-network-manager-all.yaml", "network:\n  version: 2\n  renderer: NetworkManager\n")
    netplan = machine.read()["netplan"]
    orphan, live, shipped = netplan["files"][0], netplan["files"][1], netplan["files"][2]
    if orphan["path"].endswith(LIVE):
        orphan, live = live, orphan
    assert orphan["class"] == "orphan_nul"
    assert (orphan["size_bytes"], orphan["mode"], orphan["mtime_s"]) == (715, "0600", 1759104000)
    assert (live["class"], live["netdevs"], live["error"]) == ("yaml", ["mgmt0"], None)
    assert shipped["path"] == "/usr/lib/netplan/00-network-manager-all.yaml"
    assert netplan["renderer"] == "NetworkManager"


def test_a_file_in_etc_shadows_one_of_the_same_name(machine: Machine) -> None:
    machine.write("etc/netplan/00-a.yaml", "network: {renderer: networkd}\n")
    machine.write("usr/lib/netplan/00-a.yaml", "network: {renderer: NetworkManager}\n")
    netplan = machine.read()["netplan"]
    assert [file["path"] for file in netplan["files"]] == ["/etc/netplan/00-a.yaml"]
    assert netplan["renderer"] == "networkd"


def test_a_silent_networkmanager_makes_no_orphan(machine: Machine) -> None:
    machine.write(f"etc/netplan/{ORPHAN}", bytes(715))
    machine.commands["nmcli"] = (8, "", "Error: NetworkManager is not running.\n")
    facts = machine.read()
    manager = facts["networkmanager"]
    assert (manager["running"], manager["error"]) == (False, "Error: NetworkManager is not running.")
    assert facts["netplan"]["files"][0]["class"] == "live_nul"
    # Without NetworkManager on the machine nobody can own the file.
    del machine.commands["nmcli"]
    assert machine.read()["netplan"]["files"][0]["class"] == "orphan_nul"


def test_profiles_and_what_they_are_bound_to(machine: Machine) -> None:
    """By name, by MAC, by nothing; saved, made by netplan, and only for this boot."""
    keyfiles = {
        "/etc/NetworkManager/system-connections/cx7.nmconnection": "[connection]\ninterface-name=enp1s0f0np0\n",
        "/etc/NetworkManager/system-connections/any.nmconnection": "[connection]\ntype=ethernet\n",
        "/run/NetworkManager/system-connections/netplan-enP2p1s0f0np0.nmconnection": (
            "[connection]\ntype=ethernet\n[ethernet]\nmac-address=52:54:00:BB:00:01\n"
        ),
        "/run/NetworkManager/system-connections/Wired connection 1.nmconnection": "[match]\ninterface-name=enP*;\n",
    }
    lines = []
    for number, (path, text) in enumerate(keyfiles.items()):
        machine.write(path, text)
        device = "mgmt0" if path.endswith("any.nmconnection") else ""
        lines.append(f"00000000-0000-4000-8000-00000000000{number}:{device}:{'no' if number else 'yes'}:{path}:a\\:b")
    machine.commands["nmcli"] = (0, "\n".join(lines) + "\n", "")
    profiles = machine.read()["networkmanager"]["profiles"]
    assert [(one["netdevs"], one["lasting"], one["device"]) for one in profiles] == [
        (["enp1s0f0np0"], True, ""),
        ([], True, "mgmt0"),
        (["enP2p1s0f0np0"], True, ""),
        (["enP2p1s0f0np0"], False, ""),
    ]
    assert [one["autoconnect"] for one in profiles] == [True, False, False, False]
    assert profiles[0]["name"] == "a:b"


def test_files_of_networkd_that_somebody_wrote(machine: Machine) -> None:
    machine.write("etc/systemd/network/05-cx7.network", "[Match]\nName=enp1s0* !mgmt0\n")
    machine.write("etc/systemd/network/60-all.network", "[Match]\nName=*\n[Network]\nDHCP=yes\n")
    machine.write("etc/systemd/network/05-cx7.link", "[Match]\nOriginalName=*\n")
    machine.write("run/systemd/network/10-netplan-enp1s0f0np0.network", "[Match]\nName=enp1s0f0np0\n")
    machine.states["systemd-networkd.service"] = ("loaded", "active", "enabled")
    facts = machine.read()["networkd"]
    assert facts["running"]
    assert [(one["path"], one["netdevs"]) for one in facts["files"]] == [
        ("/etc/systemd/network/05-cx7.network", ["enp1s0f0np0"]),
        ("/etc/systemd/network/60-all.network", ["enP2p1s0f0np0", "enp1s0f0np0", "mgmt0"]),
    ]


def test_routes_of_a_vpn_are_seen_beside_those_of_the_main_table(machine: Machine) -> None:
    machine.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "mgmt0\t00000000\t0202000A\t0003\t0\t0\t100\t00000000\n",
    )
    everything = [
        {"dst": "default", "gateway": "10.0.2.2", "dev": "mgmt0", "metric": 100},
        {"dst": "192.168.0.0/16", "dev": "tailscale0", "table": "52"},
        {"type": "throw", "dst": "10.0.0.0/8", "table": "52"},
        {"type": "local", "dst": "10.0.2.15", "dev": "mgmt0", "table": "local"},
    ]
    answer = machine.commands.pop("ip")
    run = machine.run

    def routed(argv: Sequence[str], **options: Any) -> Completed:
        if argv[0] == "ip":
            return Completed(tuple(argv), 0, json.dumps(everything) if "route" in argv else answer[1], "")
        return run(argv, **options)

    facts = gather(Node(run=routed, root=machine.root, docker_get=machine.docker_get), Request())
    assert [(route["dst"], route["dev"]) for route in facts["routes"]] == [
        ("default", "mgmt0"),
        ("192.168.0.0/16", "tailscale0"),
    ]
    assert [route["dev"] for route in facts["default_routes"]] == ["mgmt0"]


def test_arp_settings_are_those_that_the_kernel_goes_by(machine: Machine) -> None:
    machine.write("proc/sys/net/ipv4/conf/all/arp_ignore", "1\n")
    machine.write("proc/sys/net/ipv4/conf/enp1s0f0np0/arp_ignore", "0\n")
    machine.write("proc/sys/net/ipv4/conf/enp1s0f0np0/arp_announce", "2\n")
    rail = next(one for one in machine.read()["netdevs"] if one["name"] == "enp1s0f0np0")
    assert (rail["arp_ignore"], rail["arp_announce"]) == (1, 2)


def test_a_stopped_docker_is_not_woken_up(machine: Machine) -> None:
    machine.states["docker.service"] = ("loaded", "inactive", "enabled")
    machine.states["docker.socket"] = ("loaded", "active", "enabled")
    facts = machine.read(image="a/b:1")
    assert machine.docker_asked == []
    assert facts["docker"]["version"] is None
    assert facts["docker"]["error"] == "docker.service is inactive; docker.socket would start it at first use"
    machine.states["docker.service"] = ("not-found", "inactive", "")
    assert machine.read()["docker"]["error"] == "Docker is not installed"


def test_a_daemon_that_hangs_up(machine: Machine) -> None:
    def refuse(resource: str) -> tuple[int, Any]:
        raise ConnectionRefusedError(111, "Connection refused")

    facts = gather(Node(run=machine.run, root=machine.root, docker_get=refuse), Request())
    assert "Connection refused" in (facts["docker"]["error"] or "")


def test_image_and_rank(machine: Machine) -> None:
    machine.docker["/images/a/b:1/json"] = (200, {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:2"]}})
    machine.docker["/containers/spark-rank/json"] = (
        200,
        {"Id": "c1", "State": {"Running": True, "StartedAt": "t"}, "Config": {"Labels": {CONFIG_LABEL: "f00"}}},
    )
    machine.states["spark-rank.service"] = ("loaded", "active", "enabled")
    facts = machine.read(image="a/b:1")
    assert facts["image"] is not None
    assert facts["image"]["present"]
    assert facts["image"]["layers"] == ["sha256:2"]
    container = {"id": "c1", "running": True, "started_at": "t", "config_sha256": "f00", "memory_share": None}
    assert facts["rank"] == {"unit_state": "active", "container": container}
    absent = machine.read(image="a/b:2")["image"]
    assert absent is not None
    assert (absent["present"], absent["error"]) == (False, None)


def test_units_of_an_earlier_deployment(machine: Machine) -> None:
    """By its own words, by the script it runs, by the compose file; not the services of the system, nor our own."""
    units = "etc/systemd/system"
    machine.write(f"{units}/solo.service", "[Service]\nExecStart=/usr/bin/docker run --gpus all vllm/x --port 8000\n")
    machine.write(f"{units}/script.service", "[Service]\nExecStart=/opt/llm/start.sh\n")
    machine.write("opt/llm/start.sh", "#!/bin/sh\n# vllm\nexec llama-server --port 8080\n")
    machine.write(f"{units}/compose.service", "[Service]\nExecStart=/usr/bin/docker compose -f /opt/c.yaml up\n")
    machine.write("opt/c.yaml", 'services:\n  x:\n    ports:\n      - "8000:80"\n')
    machine.write(f"{units}/web.service", "[Service]\nExecStart=/usr/bin/busybox httpd\nEnvironment=PORT=9000\n")
    machine.write(f"{units}/late.service", "[Service]\nExecStart=/usr/bin/python3 /opt/x.py\n")
    machine.write(f"{units}/late.service.d/gpu.conf", "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=0\n")
    machine.write(f"{units}/spark-rank.service", "[Service]\nExecStart=/usr/local/lib/spark-cluster/launch vllm\n")
    machine.write("usr/lib/systemd/system/ssh.service", "[Service]\nExecStart=/usr/sbin/sshd -D\n")
    machine.states["solo.service"] = ("loaded", "inactive", "enabled")
    found = {unit["name"]: unit for unit in machine.read()["units"]}
    assert set(found) == {"solo.service", "script.service", "compose.service", "late.service"}
    assert found["solo.service"] == {
        "name": "solo.service",
        "enabled": "enabled",
        "active": "inactive",
        "exec": "/usr/bin/docker run --gpus all vllm/x --port 8000",
        "ports": [8000],
        "gpu": True,
    }
    assert (found["script.service"]["ports"], found["script.service"]["gpu"]) == ([8080], False)
    assert found["compose.service"]["ports"] == [8000]
    assert found["late.service"]["gpu"]


def test_secrets_of_a_unit_do_not_become_facts(machine: Machine) -> None:
    command = "/usr/bin/docker run -e HF_TOKEN=hf_abcdefghijklmnopqrst vllm/x --api-key s3cret --port 8000"
    machine.write("etc/systemd/system/solo.service", f"[Service]\nExecStart={command}\n")
    text = json.dumps(machine.read())
    assert "--api-key (hidden) --port 8000" in text
    assert "s3cret" not in text
    assert "hf_abc" not in text


def test_the_api_port_decides_for_a_unit_that_only_names_a_port(machine: Machine) -> None:
    machine.write("etc/systemd/system/web.service", "[Service]\nExecStart=/usr/bin/web --port 9000\n")
    assert machine.read()["units"] == []
    assert [unit["name"] for unit in machine.read(api_port=9000)["units"]] == ["web.service"]


def test_firewalls(machine: Machine) -> None:
    assert machine.read()["firewall"] == {"active": False, "kind": None, "evidence": []}
    machine.commands["nft"] = (
        0,
        "table inet f {\n\tchain in {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n",
        "",
    )
    assert machine.read()["firewall"]["kind"] == "nftables"
    machine.states["firewalld.service"] = ("loaded", "active", "enabled")
    machine.write("etc/firewalld/zones/trusted.xml", '<zone><interface name="enp1s0f0np0"/></zone>')
    assert machine.read()["firewall"] == {
        "active": True,
        "kind": "firewalld",
        "evidence": ["firewalld.service is active", "trusted: enp1s0f0np0"],
    }
    machine.write("etc/ufw/ufw.conf", "ENABLED=yes\n")
    machine.write("etc/ufw/user.rules", "### tuple ### allow any any 0.0.0.0/0 any 10.0.0.0/8 in\n")
    assert machine.read()["firewall"]["evidence"][1] == "allow any any 0.0.0.0/0 any 10.0.0.0/8 in"


def test_weights(machine: Machine) -> None:
    machine.write("models/tiny/config.json", '{"hidden_size": 256}')
    machine.write("models/tiny/model.safetensors", b"x" * 100)
    machine.write("models/tiny/.cache/huggingface/left.over", b"y" * 50)
    weights = machine.read(models_dir="/models", weights_folder="tiny")["weights"]
    assert weights is not None
    assert (weights["path"], weights["present"], weights["files"]) == ("/models/tiny", True, 2)
    assert weights["bytes"] == 120
    assert weights["config"] == {"hidden_size": 256}
    os.symlink(machine.root / "nowhere", machine.root / "models/tiny/gone.safetensors")
    machine.write("models/tiny/config.json", "{")
    broken = machine.read(models_dir="/models", weights_folder="tiny")["weights"]
    assert broken is not None
    assert broken["config"] is None
    assert broken["error"]
    absent = machine.read(models_dir="/models", weights_folder="other")["weights"]
    assert absent is not None
    assert not absent["present"]
    assert machine.read()["weights"] is None


def test_the_installed_bundle_is_hashed(machine: Machine) -> None:
    assert machine.read()["bundle"] == {"manifest": None, "files": [], "error": None}
    machine.write("usr/local/lib/spark-cluster/launch", "#!/bin/sh\n")
    launch = "/usr/local/lib/spark-cluster/launch"
    machine.write(MANIFEST, render_manifest({launch: "00", "/gone": "11"}))
    bundle = machine.read()["bundle"]
    assert bundle["manifest"] is not None
    assert bundle["files"][0] == {"path": "/gone", "sha256": None, "expected_sha256": "11"}
    assert bundle["files"][1]["expected_sha256"] == "00"
    assert bundle["files"][1]["sha256"] not in (None, "00")
    machine.write(MANIFEST, "cut off {")
    assert "manifest" in (machine.read()["bundle"]["error"] or "")


def test_host_keys_without_comments(machine: Machine) -> None:
    machine.write("etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAAC3 root@spark\n")
    machine.write("etc/ssh/ssh_host_ed25519_key", "secret")
    machine.write("etc/ssh/ssh_host_rsa_key.pub", "\n")
    assert machine.read()["ssh_host_keys"] == ["ssh-ed25519 AAAAC3"]


def test_a_pinned_image_that_lost_its_digest_on_the_way(machine: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    """Known by its tag; there where nothing contradicts, and with the digest that a copy proved."""
    monkeypatch.setattr(images, "PROOFS", tmp_path / "proofs")
    digest = f"sha256:{'a' * 64}"
    image = {"Id": "sha256:1", "RepoDigests": [], "RootFS": {"Layers": ["sha256:2"]}}
    machine.docker["/images/a/b:1/json"] = (200, image)
    facts = machine.read(image=f"a/b:1@{digest}")["image"]
    assert facts is not None
    assert (facts["present"], facts["repo_digests"]) == (True, [])
    images.remember(images.identity(image)["content"], digest)
    facts = machine.read(image=f"a/b:1@{digest}")["image"]
    assert facts is not None
    assert facts["repo_digests"] == [f"a/b@{digest}"]
    machine.docker["/images/a/b:1/json"] = (200, {**image, "RepoDigests": [f"a/b@sha256:{'b' * 64}"], "Os": "linux"})
    facts = machine.read(image=f"a/b:1@{digest}")["image"]
    assert facts is not None
    assert not facts["present"]
