"""Finding codes: the hosts themselves, and what holds for every play."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "NOT_PROVEN_IN_CHECK_MODE",
        "note",
        "Not proven in check mode",
        "This step proves something only by changing or loading the machine, so check mode says nothing about it.",
        "Run the same command without --check.",
    ),
    Code(
        "SUDO_MISSING",
        "fatal",
        "The node was not read as root",
        "Sockets of other users, netplan files and hashes of the launcher can only be read as root, and every "
        "change needs it.",
        "Name a user that has sudo on {node} with ansible_user, and add -K to the command where sudo wants a password.",
    ),
    Code(
        "OS_UNTRIED",
        "warn",
        "An operating system on which this was never tried",
        "DGX OS 7 and Ubuntu from 24.04, and Debian from 13, are what this is tried on: netplan, systemd and Docker"
        " differ elsewhere.",
        "Install DGX OS 7 on {node}, or go on at your own risk.",
    ),
    Code(
        "PYTHON_TOO_OLD",
        "fatal",
        "The node's Python is too old",
        "The code that runs on the nodes, in modules and at boot, needs Python 3.11.",
        "Install python3 of 3.11 or newer on {node} as /usr/bin/python3; DGX OS 7 brings 3.12.",
    ),
    Code(
        "ARCH_DIFFERS",
        "fatal",
        "The nodes are of different architectures",
        "One image and one set of kernels serve all ranks.",
        "Leave only machines of one architecture in the cluster {cluster}.",
    ),
    Code(
        "KERNEL_DIFFERS",
        "fatal",
        "The nodes run different kernels",
        "RDMA registration and the GPU's driver depend on the kernel: what works on one node then fails on the other.",
        "On {node}: sudo apt-get update && sudo apt-get install -y linux-image-{kernel} && sudo reboot, once "
        "`modinfo -k {kernel} -F version nvidia` prints a version there.",
    ),
    Code(
        "GPU_DRIVER_MISSING",
        "fatal",
        "The GPU's driver does not answer",
        "Without it no container gets a GPU. nvidia-smi says what is wrong.",
        "On {node}: sudo apt-get update && sudo apt-get full-upgrade -y && sudo reboot; then nvidia-smi must list "
        "the GPU.",
    ),
    Code(
        "GPU_DRIVER_STALE",
        "fatal",
        "The loaded GPU driver is not the installed one",
        "The driver's libraries were upgraded under a running kernel module; every new container fails until the "
        "module matches.",
        "On {node}: sudo reboot.",
    ),
    Code(
        "GPU_DRIVER_DIFFERS",
        "fatal",
        "The nodes have different GPU drivers",
        "All ranks load kernels of one build, and NCCL expects one driver.",
        "On {node}: sudo apt-get update && sudo apt-get full-upgrade -y && sudo reboot, so that it has {version} as"
        " well.",
    ),
    Code(
        "GPU_MODULE_UNMATCHED",
        "warn",
        "The GPU module on disk is not the loaded one",
        "The running driver works, but the running kernel has no module, or another one, on disk: the next boot of "
        "this kernel comes up with another driver or with none.",
        "On {node}: sudo apt-get install -y linux-modules-nvidia-{branch}-open-{kernel}, then check that "
        "`modinfo -F version nvidia` prints {version}.",
    ),
    Code(
        "MEMORY_DIFFERS",
        "warn",
        "The nodes have different amounts of memory",
        "Every rank takes the same share, so the smallest node decides what fits.",
        "Plan for the smallest node, or leave only machines of one size in the cluster {cluster}.",
    ),
    Code(
        "DISK_LOW",
        "fatal",
        "A disk has less room than it should keep",
        "Logs, caches and the next update need room; a full disk looks like a hang.",
        "On {node}: sudo docker image prune -f; then find what else fills {path} with: sudo du -xh --max-depth=2 "
        "{path} | sort -h | tail.",
    ),
    Code(
        "DOCKER_MISSING",
        "fatal",
        "Docker is not installed",
        "The engine runs in a container. DGX OS brings Docker.",
        "On {node}: sudo apt-get update && sudo apt-get install -y docker.io.",
    ),
    Code(
        "DOCKER_DOWN",
        "fatal",
        "Docker does not answer",
        "The engine runs in a container, and after a reboot the ranks start only if Docker does.",
        "On {node}: sudo systemctl enable --now docker.service; if that fails: sudo journalctl -u docker.service -n"
        " 50.",
    ),
    Code(
        "DOCKER_DIFFERS",
        "fatal",
        "The nodes have different major versions of Docker",
        "Runtime options and the format of saved images differ between major versions.",
        "On {node}: sudo apt-get update && sudo apt-get full-upgrade -y, so that Docker becomes {version}.",
    ),
    Code(
        "DOCKER_STORE_DIFFERS",
        "warn",
        "The nodes keep images in different stores",
        "The same image has another ID in the other store, and an image that is handed over loses its digest on the "
        "classic one; images are then compared by their layers.",
        "On {node}: give features.containerd-snapshotter in /etc/docker/daemon.json the value it has on the other "
        "nodes, sudo systemctl restart docker.service, and load its images again: docker info must say {store}.",
    ),
    Code(
        "FIREWALL_ON_RAIL",
        "fatal",
        "A firewall filters the fabric",
        "The ranks open many random ports both ways and RDMA its own; a filter that lets in single ports is not "
        "enough. Nobody but the other node is on a rail.",
        "On {node}: {allow}.",
    ),
    Code(
        "PERFTEST_MISSING",
        "fatal",
        "perftest is not installed",
        "The bandwidth of the rails is proved with ib_write_bw on every node.",
        "On {node}: sudo apt-get update && sudo apt-get install -y perftest.",
    ),
    Code(
        "UNIT_CONFLICT",
        "fatal",
        "A service of an earlier deployment would take over",
        "An enabled unit that serves a model, holds the API's port or uses the GPU starts at the next boot and takes "
        "what the cluster needs.",
        "Set takeover: true in the inventory to have it disabled, or on {node}: sudo systemctl disable --now {unit}.",
    ),
    Code(
        "API_PORT_TAKEN",
        "fatal",
        "The API's port is taken",
        "Another process listens there, so the head could not.",
        "Stop {process} on {node}, or choose another port with -e api_port=8001.",
    ),
)
