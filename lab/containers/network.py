"""The wires of the pair: named network namespaces, so that links outlive a node's restart, as NICs do."""

from __future__ import annotations

from pathlib import Path

from lab import host
from lab.factory import CX7, MANAGEMENT
from lab.machines import Machines
from lab.shell import run

BRIDGE = "br-mgmt"
NAMESPACES = Path("/run/netns")


class Network:
    """One namespace per node and one for the controller's side of the management network. No node has a way out."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.control = f"{machines.name}-ctl"

    def namespace(self, node: str) -> str:
        return f"{self.machines.name}-{node}"

    def namespaces(self) -> list[str]:
        return [self.control, *(self.namespace(node.name) for node in self.machines.nodes)]

    def present(self) -> list[str]:
        return [name for name in self.namespaces() if (NAMESPACES / name).exists()]

    def share(self, mark: Path) -> None:
        """Make /run/netns a shared mount, as `ip netns add` would: namespaces named later must show in pinned mounts.

        `mark` remembers that it was not one before.
        """
        if host.is_mounted(NAMESPACES):
            return
        NAMESPACES.mkdir(exist_ok=True)
        run(["mount", "--bind", str(NAMESPACES), str(NAMESPACES)])
        run(["mount", "--make-shared", str(NAMESPACES)])
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def unshare(self, mark: Path) -> None:
        """Undo share() once nobody has a namespace there."""
        if mark.exists() and host.is_mounted(NAMESPACES) and not any(NAMESPACES.iterdir()):
            run(["umount", str(NAMESPACES)])
            mark.unlink()

    def up(self) -> None:
        """Make what is missing as a whole: half a network is taken down first."""
        if len(self.present()) == len(self.namespaces()):
            return
        self.down()
        for name in self.namespaces():
            run(["ip", "netns", "add", name])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        self._management()
        self._fabric()

    def _management(self) -> None:
        run(["ip", "-n", self.control, "link", "add", BRIDGE, "type", "bridge"])
        own = self.machines.nodes[0].management_address.rpartition(".")[0] + ".1"
        run(["ip", "-n", self.control, "addr", "add", f"{own}/{self.machines.management_prefix}", "dev", BRIDGE])
        run(["ip", "-n", self.control, "link", "set", BRIDGE, "up"])
        for number, node in enumerate(self.machines.nodes):
            port = f"node{number}"
            far = ["peer", "name", MANAGEMENT, "netns", self.namespace(node.name)]
            run(["ip", "-n", self.control, "link", "add", port, "type", "veth", *far])
            run(["ip", "-n", self.control, "link", "set", port, "master", BRIDGE, "up"])

    def _fabric(self) -> None:
        """Two nodes are joined by a cable per function, more by a switch per function."""
        first, *others = [self.namespace(node.name) for node in self.machines.nodes]
        for number, netdev in enumerate(CX7):
            if len(others) == 1:
                run(
                    [
                        "ip",
                        "-n",
                        first,
                        "link",
                        "add",
                        netdev,
                        "type",
                        "veth",
                        "peer",
                        "name",
                        netdev,
                        "netns",
                        others[0],
                    ]
                )
                continue
            switch = f"sw{number}"
            run(["ip", "-n", self.control, "link", "add", switch, "type", "bridge"])
            run(["ip", "-n", self.control, "link", "set", switch, "up"])
            for port, namespace in enumerate([first, *others]):
                name = f"{switch}p{port}"
                run(
                    [
                        "ip",
                        "-n",
                        self.control,
                        "link",
                        "add",
                        name,
                        "type",
                        "veth",
                        "peer",
                        "name",
                        netdev,
                        "netns",
                        namespace,
                    ]
                )
                run(["ip", "-n", self.control, "link", "set", name, "master", switch, "up"])

    def down(self) -> None:
        for name in self.present():
            run(["ip", "netns", "del", name])
