#!/usr/bin/python3
"""Stand-in for hardware and runtimes that no virtual Spark has, under the name it is called by.

Answers come from /etc/spark-lab/state.json in the form of the real tools; what is not about a GPU or a CX7 goes on to
the real program.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STATE = Path(os.environ.get("SPARK_LAB_STATE", "/etc/spark-lab/state.json"))
# Where the real programs are; the seam itself lies in front of them on the PATH.
REAL_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")

State = dict[str, Any]
Answer = tuple[int, str, str]


def real(name: str, argv: Sequence[str]) -> int:
    """Become the real program."""
    for folder in REAL_FOLDERS:
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK):
            sys.stdout.flush()
            os.execv(path, [name, *argv])  # noqa: S606 - a wrapper must become what it wraps
    print(f"{name}: command not found", file=sys.stderr)
    return 127


# --- nvidia-smi

GPU_FAILURES = {
    "mismatch": (18, "Failed to initialize NVML: Driver/library version mismatch\n"),
    "not_loaded": (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n\n",
    ),
    "no_devices": (6, "No devices were found\n"),
}
SMI_FIELDS: dict[str, tuple[str, Callable[[State], str], str]] = {
    # name: (title, value, unit)
    "name": ("name", lambda gpu: str(gpu["name"]), ""),
    "gpu_name": ("name", lambda gpu: str(gpu["name"]), ""),
    "uuid": ("uuid", lambda gpu: str(gpu["uuid"]), ""),
    "index": ("index", lambda gpu: "0", ""),
    "count": ("count", lambda gpu: "1", ""),
    "driver_version": ("driver_version", lambda gpu: str(gpu["driver_version"]), ""),
    "pci.bus_id": ("pci.bus_id", lambda gpu: "0000000F:01:00.0", ""),
    "compute_cap": ("compute_cap", lambda gpu: "12.1", ""),
    "temperature.gpu": ("temperature.gpu", lambda gpu: str(gpu["temperature_c"]), ""),
    "utilization.gpu": ("utilization.gpu [%]", lambda gpu: str(gpu["utilization_pct"]), " %"),
    "power.draw": ("power.draw [W]", lambda gpu: f"{gpu['power_w']:.2f}", " W"),
    # GPU and CPU share the memory: the tool has no number for it.
    "memory.total": ("memory.total [MiB]", lambda gpu: "[N/A]", ""),
    "memory.used": ("memory.used [MiB]", lambda gpu: "[N/A]", ""),
    "memory.free": ("memory.free [MiB]", lambda gpu: "[N/A]", ""),
    "power.limit": ("power.limit [W]", lambda gpu: "[N/A]", ""),
}
APP_FIELDS = {
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_memory": "used_gpu_memory [MiB]",
    "used_gpu_memory": "used_gpu_memory [MiB]",
}


def nvidia_smi(state: State, argv: Sequence[str]) -> Answer:
    gpu = state["gpu"]
    if gpu.get("failure"):
        rc, text = GPU_FAILURES[gpu["failure"]]
        return rc, text, ""
    options = dict(arg.partition("=")[::2] for arg in argv if arg.startswith("--"))
    form = options.get("--format", "").split(",")
    header, units = "noheader" not in form, "nounits" not in form
    if "--query-gpu" in options:
        names = options["--query-gpu"].split(",")
        for name in names:
            if name not in SMI_FIELDS:
                return 2, f'Field "{name}" is not a valid field to query.\n\n', ""
        fields = [SMI_FIELDS[name] for name in names]
        row = ", ".join(value(gpu) + (unit if units else "") for _, value, unit in fields)
        return 0, (", ".join(title for title, _, _ in fields) + "\n" if header else "") + row + "\n", ""
    if "--query-compute-apps" in options:
        names = options["--query-compute-apps"].split(",")
        lines = [", ".join(APP_FIELDS.get(name, name) for name in names)] if header else []
        for process in gpu.get("processes", []):
            values = {"pid": process["pid"], "process_name": process["name"], "name": process["name"]}
            lines.append(", ".join(str(values.get(name, "[N/A]")) for name in names))
        return 0, "".join(f"{line}\n" for line in lines), ""
    if "-L" in argv or "--list-gpus" in options:
        return 0, f"GPU 0: {gpu['name']} (UUID: {gpu['uuid']})\n", ""
    return 0, smi_table(gpu), ""


def smi_table(gpu: State) -> str:
    version = f"NVIDIA-SMI {gpu['driver_version']}"
    driver, cuda = f"Driver Version: {gpu['driver_version']}", f"CUDA Version: {gpu['cuda_version']}"
    power = f"{gpu['power_w']:.0f}W"
    wide, thin = "+" + "-" * 89 + "+", "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    rows = [
        time.strftime("%a %b %e %H:%M:%S %Y"),
        wide,
        f"| {version:<25}  {driver:<28}  {cuda:<30} |",
        thin,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|",
        f"|   0  {gpu['name']:<29}  On  |   0000000F:01:00.0 Off |                  N/A |",
        f"| N/A  {gpu['temperature_c']:>3}C    P8    {power:>12} /  N/A |"
        f" {'Not Supported':>22} | {gpu['utilization_pct']:>7}%      Default |",
        thin,
        "",
        wide,
        f"| {'Processes:':<88}|",
        f"| {' GPU   GI   CI        PID   Type   Process name                        GPU Memory':<88}|",
        "|" + "=" * 89 + "|",
    ]
    processes = gpu.get("processes", [])
    rows += [
        f"|    0   N/A  N/A {process['pid']:>11}      C   {process['name'][:38]:<38}      [N/A] |"
        for process in processes
    ]
    if not processes:
        rows.append(f"| {' No running processes found':<88}|")
    return "\n".join([*rows, wide]) + "\n"


# --- modinfo


def modinfo(state: State, argv: Sequence[str]) -> Answer | None:
    kernel, field, names = os.uname().release, "", []
    arguments = iter(argv)
    for argument in arguments:
        if argument in ("-k", "--set-version"):
            kernel = next(arguments, kernel)
        elif argument in ("-F", "--field"):
            field = next(arguments, field)
        elif not argument.startswith("-"):
            names.append(argument)
    if names != ["nvidia"]:
        return None
    versions = state["modules"].get("nvidia", {})
    version = versions.get(kernel, versions.get("*"))
    if not version:
        return 1, "", "modinfo: ERROR: Module nvidia not found.\n"
    fields = {
        "filename": f"/lib/modules/{kernel}/kernel/nvidia-580-open/nvidia.ko",
        "version": version,
        "license": "Dual MIT/GPL",
        "vermagic": f"{kernel} SMP preempt mod_unload modversions aarch64",
    }
    if field:
        return 0, f"{fields[field]}\n" if field in fields else "", ""
    return 0, "".join(f"{name + ':':<16}{value}\n" for name, value in fields.items()), ""


# --- lspci

CLASS_LINE = "{pci} Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]"


def lspci(state: State, argv: Sequence[str]) -> Answer | None:
    """The CX7 functions, or one of them with -s; other vendors (-d) and other places are left to the real program."""
    by_pci = {function["pci"]: function for function in state["cx7"].values()}
    chosen = sorted(by_pci)
    verbose = 0
    arguments = iter(argv)
    for argument in arguments:
        option, value = argument[:2], argument[2:]
        if option in ("-s", "-d"):
            value = value or next(arguments, "")
            if option == "-s":
                chosen = [pci for pci in chosen if value in (pci, pci.removeprefix("0000:"))]
            elif value.split(":")[0] not in ("", "15b3"):
                return None
        elif option.startswith("-") and set(argument[1:]) <= set("vnDk"):
            verbose += argument.count("v")
        else:
            return None
    if not chosen:
        return None
    return 0, "".join(_function(by_pci[pci], verbose) for pci in chosen), ""


def _function(function: State, verbose: int) -> str:
    lines = [CLASS_LINE.format(pci=function["pci"])]
    if verbose:
        lines += ["\tSubsystem: Mellanox Technologies Device 0033", "\tFlags: bus master, fast devsel, latency 0"]
    if verbose > 1:
        able, now = function["link_capability"], function["link_status"]
        speed = " (downgraded)" if now["speed"] != able["speed"] else ""
        width = " (downgraded)" if now["width"] != able["width"] else ""
        lines += [
            "\tCapabilities: [60] Express (v2) Endpoint, IntMsgNum 0",
            f"\t\tLnkCap:\tPort #0, Speed {able['speed']}, Width x{able['width']}, ASPM not supported",
            "\t\t\tClockPM- Surprise- LLActRep- BwNot- ASPMOptComp+",
            f"\t\tLnkSta:\tSpeed {now['speed']}{speed}, Width x{now['width']}{width}",
            "\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-",
        ]
    if verbose:
        lines += ["\tKernel driver in use: mlx5_core", "\tKernel modules: mlx5_core", ""]
    return "".join(f"{line}\n" for line in lines)


# --- ethtool


def ethtool(state: State, argv: Sequence[str], sysfs: Path = Path("/sys/class/net")) -> Answer | None:
    plain = [argument for argument in argv if not argument.startswith("-")]
    options = [argument for argument in argv if argument.startswith("-")]
    if len(plain) != 1 or plain[0] not in state["cx7"] or len(options) > 1:
        return None
    netdev = plain[0]
    if not (sysfs / netdev).exists():
        return None
    function = state["cx7"][netdev]
    option = options[0] if options else ""
    if option == "":
        return 0, _link(netdev, function, _carrier(sysfs / netdev)), ""
    if option in ("-S", "--statistics"):
        return 0, _statistics(function, sysfs / netdev / "statistics"), ""
    if option in ("-i", "--driver"):
        fields = {
            "driver": "mlx5_core",
            "version": os.uname().release,
            "firmware-version": function["firmware"],
            "expansion-rom-version": "",
            "bus-info": function["pci"],
            "supports-statistics": "yes",
            "supports-test": "yes",
            "supports-eeprom-access": "no",
            "supports-register-dump": "no",
            "supports-priv-flags": "yes",
        }
        return 0, "".join(f"{name}: {value}\n" for name, value in fields.items()), ""
    if option in ("-m", "--module-info"):
        pairs = (
            ("Identifier", "0x11 (QSFP28)"),
            ("Connector", "0x23 (No separable connector)"),
            ("Transceiver type", "200GBASE-CR4"),
            ("Vendor name", "Amphenol"),
        )
        return 0, "".join(f"\t{name:<41} : {value}\n" for name, value in pairs), ""
    return None


def _carrier(folder: Path) -> bool:
    try:
        return (folder / "carrier").read_text().strip() == "1"
    except OSError:
        # The kernel refuses to say while the interface is down.
        return False


def _link(netdev: str, function: State, carrier: bool) -> str:
    speed = f"{function['speed_mbps']}Mb/s" if carrier and function["speed_mbps"] else "Unknown!"
    lines = [
        "Supported ports: [ Backplane ]",
        "Supported pause frame use: Symmetric",
        "Supports auto-negotiation: Yes",
        f"Speed: {speed}",
        *(["Lanes: 4"] if carrier else []),
        f"Duplex: {'Full' if carrier else 'Unknown! (255)'}",
        "Auto-negotiation: on",
        "Port: Direct Attach Copper",
        "PHYAD: 0",
        "Transceiver: internal",
        f"Link detected: {'yes' if carrier else 'no'}",
    ]
    return f"Settings for {netdev}:\n" + "".join(f"\t{line}\n" for line in lines)


def _statistics(function: State, folder: Path) -> str:
    counters = dict(function["counters"])
    for counter, statistic in function.get("follows", {}).items():
        try:
            counters[counter] = counters.get(counter, 0) + int((folder / statistic).read_text())
        except (OSError, ValueError):
            continue
    return "NIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in counters.items())


# --- runc: nested containers cannot get limits that their node itself could not get


def runc(argv: Sequence[str]) -> int:
    bundle = _option(argv, "--bundle", "-b") or "."
    process = _option(argv, "--process", "-p")
    if "create" in argv or "run" in argv:
        clamp(Path(bundle) / "config.json", "process")
    elif "exec" in argv and process:
        clamp(Path(process), None)
    return real("runc", argv)


def _option(argv: Sequence[str], *names: str) -> str:
    for argument, following in itertools.pairwise(argv):
        if argument in names:
            return following
    return ""


def clamp(path: Path, key: str | None) -> None:
    """Lower each rlimit of an OCI bundle or process file to what can be had here."""
    if may_raise():
        return
    spec = json.loads(path.read_text())
    for limit in (spec[key] if key else spec).get("rlimits") or []:
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], hard)
            limit["soft"] = min(limit["soft"], limit["hard"])
    path.write_text(json.dumps(spec))


def may_raise() -> bool:
    """CAP_SYS_RESOURCE in the effective set."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    return False


ANSWERS: dict[str, Callable[[State, Sequence[str]], Answer | None]] = {
    "nvidia-smi": nvidia_smi,
    "modinfo": modinfo,
    "lspci": lspci,
    "ethtool": ethtool,
}


def main(name: str, argv: Sequence[str]) -> int:
    if name == "runc":
        return runc(argv)
    if name == "nvidia-container-runtime-hook":
        # Docker looks for this name before it accepts --gpus; there is nothing to hook in.
        return 0
    state = json.loads(STATE.read_text())
    replaced = state.get("replace", {}).get(name)
    answer: Answer | None
    if replaced:
        time.sleep(replaced.get("sleep_s", 0))
        answer = replaced.get("rc", 0), replaced.get("stdout", ""), replaced.get("stderr", "")
    else:
        answer = ANSWERS[name](state, argv)
    if answer is None:
        return real(name, argv)
    rc, out, err = answer
    sys.stdout.write(out)
    sys.stderr.write(err)
    return rc


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
