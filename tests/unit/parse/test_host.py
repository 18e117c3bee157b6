"""Small files of the system, the GPU's tools, Docker's objects, packet filters and units."""

from __future__ import annotations

import pytest
from ansible.module_utils.spark.parse import docker, firewall, nvidia, system, systemd
from ansible.module_utils.spark.plan.types import CONFIG_LABEL


def test_memory_is_in_bytes() -> None:
    text = "MemTotal:       127535724 kB\nMemFree:  912 kB\nMemAvailable:   120000000 kB\nHugePages_Total:   0\n"
    assert system.parse_meminfo(text) == {"total_bytes": 127535724 * 1024, "available_bytes": 120000000 * 1024}
    assert system.parse_meminfo("") == {"total_bytes": 0, "available_bytes": 0}


def test_os_release() -> None:
    text = 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\n# ID=no\nbroken "line\n'
    assert system.parse_os_release(text) == {"id": "ubuntu", "version_id": "24.04", "pretty": "Ubuntu 24.04.3 LTS"}
    assert system.parse_os_release("") == {"id": "", "version_id": "", "pretty": ""}


def test_assignments() -> None:
    assert system.parse_assignments("A='b c' # d\nE=\nnot this\nF=\"unclosed\n") == {"A": "b c", "E": ""}


def test_gpu() -> None:
    assert nvidia.parse_gpu(0, "580.95.05, NVIDIA GB10\n", "") == {
        "driver_version": "580.95.05",
        "name": "NVIDIA GB10",
        "error": None,
    }
    mismatch = nvidia.parse_gpu(18, "Failed to initialize NVML: Driver/library version mismatch\n", "")
    assert mismatch["driver_version"] is None
    assert "version mismatch" in (mismatch["error"] or "")
    assert nvidia.parse_gpu(6, "No devices were found\n", "")["error"] == "No devices were found"
    assert nvidia.parse_gpu(9, "", "")["error"] == "nvidia-smi exited 9 and said nothing"
    assert nvidia.parse_gpu(0, "", "")["driver_version"] is None


def test_kernel_module() -> None:
    assert nvidia.parse_modinfo_version(0, "580.95.05\n") == "580.95.05"
    assert nvidia.parse_modinfo_version(1, "") is None
    assert nvidia.parse_modinfo_version(0, "(builtin)\n") is None


def test_docker_info() -> None:
    assert docker.parse_info({"ServerVersion": "28.3.3", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker"}) == {
        "version": "28.3.3",
        "storage_driver": "overlay2",
        "root": "/var/lib/docker",
        "error": None,
    }
    # What the command line prints, with exit status 0 or 1 by version, when no daemon answers.
    down = docker.parse_info({"ServerErrors": ["Cannot connect to the Docker daemon"], "ServerVersion": ""})
    assert (down["version"], down["error"]) == (None, "Cannot connect to the Docker daemon")
    assert docker.parse_info({})["error"] == "the daemon told no version"


def test_images_of_both_stores() -> None:
    classic = docker.parse_image(
        "lab/vllm:1",
        {
            "Id": "sha256:11",
            "RepoDigests": [],
            "Architecture": "arm64",
            "Size": 42,
            "RootFS": {"Type": "layers", "Layers": ["sha256:aa", "sha256:bb"]},
            "Config": {"Env": ["PATH=/bin", "NCCL_DEBUG=WARN"]},
        },
    )
    assert classic["present"]
    assert classic["layers"] == ["sha256:aa", "sha256:bb"]
    assert classic["env"] == ["PATH=/bin", "NCCL_DEBUG=WARN"]
    containerd = docker.parse_image("a/b:1", {"Id": "sha256:22", "RepoDigests": ["a/b@sha256:22"], "Config": None})
    assert containerd["repo_digests"] == ["a/b@sha256:22"]
    assert containerd["env"] == []
    absent = docker.parse_image("a/b:1", None, "the daemon is away")
    assert (absent["present"], absent["error"], absent["layers"]) == (False, "the daemon is away", [])


def test_containers() -> None:
    ours = {
        "Id": "c0ffee",
        "State": {"Running": True, "StartedAt": "2026-11-30T20:00:00Z"},
        "Config": {
            "Labels": {CONFIG_LABEL: "ab12"},
            "Cmd": ["serve", "/models/m", "--gpu-memory-utilization", "0.835"],
        },
    }
    assert docker.parse_container(ours) == {
        "id": "c0ffee",
        "running": True,
        "started_at": "2026-11-30T20:00:00Z",
        "config_sha256": "ab12",
        "memory_share": 0.835,
    }
    unlike = docker.parse_container({"Id": "x", "Config": {"Labels": None, "Cmd": ["--gpu-memory-utilization", "x"]}})
    assert (unlike["config_sha256"], unlike["memory_share"]) == ("", None)


UFW_RULES = """*filter
### RULES ###

### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
-A ufw-user-input -p tcp --dport 22 -j ACCEPT

### tuple ### allow any any 0.0.0.0/0 any 0.0.0.0/0 in_enp1s0f0np0
-A ufw-user-input -i enp1s0f0np0 -j ACCEPT

### tuple ### allow any any 0.0.0.0/0 any 192.168.201.0/24 in
-A ufw-user-input -s 192.168.201.0/24 -j ACCEPT
### END RULES ###
"""


def test_ufw() -> None:
    assert firewall.ufw_enabled("# comment\nENABLED=yes\nLOGLEVEL=low\n")
    assert not firewall.ufw_enabled("ENABLED=no\n")
    assert not firewall.ufw_enabled("")
    rules = firewall.ufw_rules(UFW_RULES)
    assert len(rules) == 3
    assert firewall.lets_in("ufw", rules, netdev="enp1s0f0np0")
    assert not firewall.lets_in("ufw", rules, netdev="enP2p1s0f0np0")
    assert firewall.lets_in("ufw", rules, subnet="192.168.201.0/24")
    assert not firewall.lets_in("ufw", rules, subnet="192.168.200.0/24")
    assert not firewall.lets_in("ufw", rules[:1], netdev="enp1s0f0np0", subnet="192.168.200.0/24")


def test_firewalld() -> None:
    zone = '<zone target="ACCEPT">\n <interface name="enp1s0f0np0"/>\n <source address="192.168.200.0/23"/>\n</zone>\n'
    evidence = [f"trusted: {name}" for name in firewall.firewalld_trusted(zone)]
    assert firewall.lets_in("firewalld", evidence, netdev="enp1s0f0np0")
    assert firewall.lets_in("firewalld", evidence, subnet="192.168.201.0/24")
    assert not firewall.lets_in("firewalld", evidence, netdev="eth9")
    assert firewall.firewalld_trusted("") == []


NFT_DROP = """table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iifname "lo" accept
		tcp dport 22 counter packets 12 bytes 720 accept
		iifname { "enp1s0f0np0", "enP2p1s0f0np0" } counter packets 0 bytes 0 accept
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
	}
}
"""
NFT_REJECT = """table ip filter {
	chain INPUT {
		type filter hook input priority filter; policy accept;
		ip saddr 192.168.200.0/23 accept
		counter packets 3 bytes 180 reject
	}
}
"""
# Docker's and fail2ban's rules: a forward chain that drops, and an input chain that refuses single addresses.
NFT_HARMLESS = """table ip filter {
	chain FORWARD {
		type filter hook forward priority filter; policy drop;
		counter packets 0 bytes 0 jump DOCKER-USER
	}
	chain INPUT {
		type filter hook input priority filter; policy accept;
		ip saddr @f2b-sshd tcp dport 22 reject
		ip saddr 10.1.2.3 drop
	}
}
"""


def test_nftables() -> None:
    refuses, lines = firewall.nft_input(NFT_DROP)
    assert refuses
    assert lines[0].startswith("chain inet filter input: ")
    assert firewall.lets_in("nftables", lines, netdev="enP2p1s0f0np0")
    assert not firewall.lets_in("nftables", lines, netdev="mgmt0")
    assert not firewall.lets_in("nftables", lines, subnet="192.168.200.0/24")
    refuses, lines = firewall.nft_input(NFT_REJECT)
    assert refuses
    assert firewall.lets_in("nftables", lines, subnet="192.168.200.0/24")
    assert firewall.nft_input(NFT_HARMLESS) == (False, [])
    assert firewall.nft_input("") == (False, [])


def test_unit_states() -> None:
    text = (
        "Id=docker.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
        "\nUnitFileState=\nActiveState=inactive\nLoadState=not-found\nId=gone.service\n"
    )
    shown = systemd.parse_show(text)
    assert shown["docker.service"]["ActiveState"] == "active"
    assert shown["gone.service"]["LoadState"] == "not-found"
    assert systemd.parse_show("") == {}


UNIT = """[Unit]
Description=The model on one node
[Service]
Environment=CUDA_VISIBLE_DEVICES=0
ExecStartPre=-/usr/bin/docker rm -f one
ExecStart=
ExecStart=-/usr/bin/docker run --rm --gpus all \\
# a comment between the lines
    -p 127.0.0.1:8000:8000 \\
    vllm/vllm-openai:v1 --model /m --port 8000
[Install]
WantedBy=multi-user.target
"""


def test_a_unit_of_an_earlier_deployment() -> None:
    unit = systemd.parse_unit_file(UNIT)
    commands = systemd.commands(unit)
    assert len(commands) == 1
    assert commands[0].startswith("/usr/bin/docker run")
    assert commands[0].endswith("--port 8000")
    assert systemd.serves_model(commands)
    assert systemd.uses_gpu(unit["Service.Environment"])
    assert systemd.ports(commands) == [8000]


@pytest.mark.parametrize(
    ("text", "serves", "gpu", "ports"),
    [
        ("/usr/local/bin/ollama serve", True, False, []),
        ("/opt/llama.cpp/llama-server -m /m.gguf --port 8080", True, False, [8080]),
        ("python3 -m sglang.launch_server --port=30000", True, False, [30000]),
        ("/usr/bin/docker run --runtime=nvidia -p 8888:8000 nvcr.io/nim/x", True, True, [8888]),
        ('ports:\n  - "8000:8000"\ndeploy: {capabilities: [gpu]}', False, True, [8000]),
        ("/usr/bin/node_exporter --web.listen-address=:9100", False, False, []),
        ("/usr/sbin/sshd -D -p 22", False, False, []),
        ("/usr/bin/nvidia-persistenced --user nvidia-persistenced", False, False, []),
        ("/usr/sbin/cron -f --port-of-call 8000", False, False, []),
        ("/usr/bin/novllmhere", False, False, []),
        ("PORT=70000", False, False, []),
    ],
)
def test_what_a_command_line_takes(text: str, serves: bool, gpu: bool, ports: list[int]) -> None:
    assert (systemd.serves_model([text]), systemd.uses_gpu([text]), systemd.ports([text])) == (serves, gpu, ports)
