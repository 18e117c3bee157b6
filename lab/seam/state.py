"""The state file of a healthy node. A test edits the file on the node to set a fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Names under which the seam program answers.
COMMANDS = ("nvidia-smi", "modinfo", "lspci", "ethtool", "nvidia-container-runtime-hook", "runc")
# What an mlx5 port counts: zero on a fresh link, except those that move on every healthy cable.
COUNTERS = Path(__file__).resolve().parent / "counters.json"


def factory(node: str, cx7: Mapping[str, str]) -> dict[str, Any]:
    """State of a healthy node with these CX7 functions: {netdev: PCI address}."""
    counters: dict[str, int] = json.loads(COUNTERS.read_text())
    return {
        "schema": 1,
        "node": node,
        "gpu": {
            "name": "NVIDIA GB10",
            "uuid": "GPU-5f1c3a70-1b7e-4d24-9a55-0c6b1e7d2a41",
            "driver_version": "580.95.05",
            "cuda_version": "13.0",
            "temperature_c": 41,
            "power_w": 4.6,
            "utilization_pct": 0,
            "processes": [],
            # null, or the name of a known failure: "mismatch", "not_loaded", "no_devices".
            "failure": None,
        },
        # modinfo: the version that the module of each installed kernel has; "*" is any kernel, null is no module.
        "modules": {"nvidia": {"*": "580.95.05"}},
        "cx7": {
            netdev: {
                "pci": pci,
                "speed_mbps": 200000,
                "firmware": "28.45.4028 (NVD0000000087)",
                "link_capability": {"speed": "32GT/s", "width": 4},
                "link_status": {"speed": "32GT/s", "width": 4},
                "counters": dict(counters),
                # Counters that also move with the traffic of the netdev underneath: {counter: kernel statistic}.
                "follows": {
                    "rx_bytes_phy": "rx_bytes",
                    "tx_bytes_phy": "tx_bytes",
                    "rx_packets_phy": "rx_packets",
                    "tx_packets_phy": "tx_packets",
                },
            }
            for netdev, pci in cx7.items()
        },
        # A command replaced as a whole: {"nvidia-smi": {"rc": 9, "stdout": "", "stderr": "...", "sleep_s": 0}}.
        "replace": {},
    }
