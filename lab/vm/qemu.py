"""The command line of a virtual Spark, the files of one machine, and its monitor."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.errors import LabError
from lab.machines import Machines

# Where the guest's .link files look for its three NICs.
MANAGEMENT_SLOT = 0x10
RAIL_SLOTS = (0x11, 0x12)
BOOT = "console=ttyS0 root=/dev/vda rootfstype=ext4 rw quiet mitigations=off nokaslr audit=0 apparmor=0 selinux=0"

ACCELERATORS = {
    # Intel's capability register of the host is refused by some hypervisors below us, and no guest needs it.
    "kvm": ("-accel", "kvm", "-cpu", "host,-arch-capabilities"),
    # Newer models offer vector instructions that cost more to emulate than they save.
    # cx16 is hidden: after cmpxchg16b QEMU 7.2 can leave another register's value as flags. An interrupt then returns
    # with them, and the kernel, which allocates every packet with that instruction, ends in a double fault.
    "tcg": ("-accel", "tcg,thread=multi,tb-size=256", "-cpu", "qemu64,-svm,-cx16,+rdrand"),
}


def files(index: int) -> dict[str, str]:
    """Names of a machine's files in the folder of its pair, which is QEMU's working folder.

    Relative, because the path of a socket has room for 107 bytes.
    """
    kinds = ("disk", "seed", "console", "log", "monitor", "rail0", "rail1", "cable")
    return {kind: f"vm{index}.{kind}" for kind in kinds}


def network(machines: Machines, index: int) -> list[str]:
    """The management NIC and the two CX7 functions; datagram sockets are the cables between the machines."""
    own, peer = files(index), files(1 - index)

    def cable(name: str) -> str:
        ends = f"local.type=unix,local.path={own[name]},remote.type=unix,remote.path={peer[name]}"
        return f"dgram,id={name},{ends}"

    # Without `restrict` the node would find a way out through the host.
    management = (
        f"user,id=management,restrict=on,net=10.77.1.0/24,host=10.77.1.2,dhcpstart=10.77.1.{12 + index}"
        f",hostfwd=tcp:127.0.0.1:{machines.nodes[index].ssh_port}-:22"
    )
    nic = f"virtio-net-pci,netdev=management,addr={MANAGEMENT_SLOT:#x},mac=52:54:00:77:00:{index:02x}"
    argv = ["-netdev", management, "-device", nic]
    shared = machines.vm.shared_port
    if shared:
        argv += ["-netdev", cable("cable"), "-netdev", "hubport,id=port,hubid=0,netdev=cable"]
    for rail, slot in enumerate(RAIL_SLOTS):
        name = f"rail{rail}"
        nic = f"virtio-net-pci,netdev={name},addr={slot:#x},mac=52:54:00:c7:{rail:02x}:{index:02x}"
        argv += ["-netdev", f"hubport,id={name},hubid=0" if shared else cable(name)]
        argv += ["-device", f"{nic},speed=200000,duplex=full"]
    return argv


def argv(machines: Machines, index: int, image: Path, accel: str) -> list[str]:
    """QEMU's command line for one machine."""
    own, node = files(index), machines.nodes[index]
    return [
        "qemu-system-x86_64",
        *("-name", node.name, "-machine", "q35,usb=off,smbus=off,sata=off,vmport=off"),
        *ACCELERATORS[accel],
        *("-smp", str(machines.vm.cpus), "-m", str(machines.vm.memory_mib)),
        *("-nodefaults", "-display", "none", "-serial", f"file:{own['console']}"),
        *("-qmp", f"unix:{own['monitor']},server=on,wait=off"),
        *("-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd.img")),
        *("-append", BOOT),
        *("-drive", f"file={own['disk']},if=virtio,cache=unsafe,discard=unmap"),
        *("-drive", f"file={own['seed']},if=virtio,format=raw,readonly=on"),
        *("-device", "virtio-rng-pci"),
        *network(machines, index),
    ]


class Monitor:
    """QMP, one command at a time."""

    def __init__(self, folder: Path, index: int, timeout_s: float = 60) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By way of the descriptor the path is short, however deep the clone lies.
            self._socket.connect(f"/proc/self/fd/{descriptor}/{files(index)['monitor']}")
        except OSError as error:
            self._socket.close()
            raise LabError(f"no answer from QEMU's monitor: {error}", "`lab down`, then `lab up`") from None
        finally:
            os.close(descriptor)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while line := self._lines.readline():
            answer = json.loads(line)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise LabError(f"QEMU refuses {command}: {answer['error'].get('desc', answer['error'])}")
        raise LabError(f"QEMU ended during {command}", "`lab down`, then `lab up`")

    def human(self, line: str) -> None:
        """A command of the human monitor that is silent when it works."""
        said = str(self.execute("human-monitor-command", **{"command-line": line})).strip()
        if said:
            raise LabError(f"QEMU, {line}: {said}")
