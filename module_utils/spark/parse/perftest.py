"""Output of perftest (``ib_write_bw`` and its relatives): the numbers, their conditions, and why there are none.

Whether a number is good enough is not decided here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .whole import document, whole

# What perftest calls MB/sec has always been 2**20 bytes; newer versions say MiB/sec.
_GBPS_PER_UNIT = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9}

_BW_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]\s+BW average\[(?P=unit)\]")
_LAT_HEADER = re.compile(r"#bytes\s+#iterations\s+t_min\[usec\]")
_SETTING = re.compile(r"([A-Za-z*_][A-Za-z0-9*_. ]*?)\s*: (\S+)")
_GID = re.compile(r"^\s*GID:\s*((?:\d{1,3}:){15}\d{1,3})\s*$")


@dataclass(frozen=True)
class BandwidthRow:
    """One line of the table in Gb/s. The peak reads 0 when the run has a duration: only the average counts."""

    message_bytes: int
    iterations: int
    peak_gbps: float
    average_gbps: float
    message_rate_mpps: float
    cpu_percent: float | None = None


@dataclass(frozen=True)
class LatencyRow:
    message_bytes: int
    iterations: int
    min_us: float
    max_us: float
    typical_us: float
    average_us: float
    p99_us: float | None = None


@dataclass(frozen=True)
class PerftestRun:
    """What a run printed. Fields that this mode does not print are None: ``gid_index`` is missing under ``-R``."""

    test: str | None = None
    device: str | None = None
    gid_index: int | None = None
    mtu_bytes: int | None = None
    link_type: str | None = None
    queue_pairs: int | None = None
    local_address: str | None = None
    remote_address: str | None = None
    rows: tuple[BandwidthRow, ...] = ()
    latency: tuple[LatencyRow, ...] = ()

    @property
    def average_gbps(self) -> float | None:
        """The mean over the rows: there are several when the run reports as it goes."""
        if not self.rows:
            return None
        return sum(row.average_gbps for row in self.rows) / len(self.rows)


@dataclass(frozen=True)
class PerftestFailure:
    """Why a run gave no number; ``kind`` is one of FAILURES, ``line`` the line that says so."""

    kind: str
    meaning: str
    line: str
    evidence: tuple[str, ...] = ()


FAILURES: dict[str, str] = {
    "no_server": "nothing listens on that address and port, or a packet filter refuses it",
    "device_not_found": "the named RDMA device does not exist on this node",
    "no_devices": "this node has no RDMA device at all: no cable was ever plugged in, or the driver is not loaded",
    "port_down": "the device's port is not active",
    "gid_unusable": "no queue pair through the chosen GID: its slot is empty, or that interface has no IPv4 address",
    "gid_family_mismatch": "one end uses an IPv4 GID and the other does not",
    "gid_out_of_range": "the GID index does not exist in the device's table",
    "wrong_peer": "what answered on the port is not this perftest: another program, or a version before 5.70",
    "completion_error": "connected, and a transfer failed: the other end runs another test, or the link loses packets",
    "port_in_use": "the port is taken: an earlier server is still there",
    "peer_lost": "the other end went away during the run",
    "memory_lock": "the device could not register memory: the locked-memory limit, or a kernel that has none left",
    "bad_option": "this version of perftest does not know an option",
    "tool_missing": "perftest is not installed",
    "timed_out": "the run did not end within its limit",
    "no_result": "the run ended without an error and without a number",
    "unknown": "the run failed in a way that is not known",
}

# In this order: after the telling line perftest prints general ones. Not compiled here: only a failure needs them.
_SAID: tuple[tuple[str, str], ...] = (
    ("device_not_found", r"IB device \S+ not found"),
    ("no_devices", r"Did not detect devices"),
    ("gid_out_of_range", r"Gid index should be between"),
    ("bad_option", r"(?i)unrecognized option|invalid option|Invalid Command line"),
    ("port_in_use", r"Couldn't listen to port"),
    ("no_server", r"Couldn't connect to "),
    ("wrong_peer", r"not compatible with versions older than|Couldn't parse line <"),
    ("gid_family_mismatch", r"Incompatibility issue with GID types"),
    ("gid_unusable", r"Failed to modify QP \w+ to RTR"),
    ("port_down", r"Port number \d+ state is (?!Active)"),
    ("memory_lock", r"(?i)Couldn't allocate MR|Failed to create MR|ibv_reg_mr\S* .*Cannot allocate memory"),
    ("memory_lock", r"Couldn't create CQ|Unable to create QP|Couldn't create QP|Failed to create QP"),
    ("completion_error", r"Completion with error|Failed status \d+|Bad wc status|Problems with warm up"),
    ("peer_lost", r"Couldn't read remote address|Unable to read to socket|Failed to exchange data between"),
    ("peer_lost", r"Couldn't send local address|Unable to write to socket|Failed to sync between server and client"),
    ("peer_lost", r"Failed to close connection between server and client"),
    ("no_server", r"Unable to init the socket connection"),
    ("device_not_found", r"Unable to find the Infiniband/RoCE device"),
)

# The first version whose JSON is valid and whose options for it are known.
_JSON_SINCE = (6, 20)

_STATUS = {9: "remote invalid request", 10: "remote access error", 12: "retries exceeded", 13: "receiver not ready"}


def parse_run(stdout: str) -> PerftestRun:
    """Read what the bandwidth tests or their latency twins print; unknown lines are skipped."""
    settings: dict[str, str] = {}
    addresses: dict[str, str] = {}
    rows: list[BandwidthRow] = []
    latency: list[LatencyRow] = []
    test: str | None = None
    side = ""
    factor: float | None = None
    in_latency = False
    for line in stdout.splitlines():
        text = line.strip()
        header = _BW_HEADER.search(text)
        if header:
            factor = _GBPS_PER_UNIT.get(header["unit"])
            in_latency = False
        elif _LAT_HEADER.search(text):
            in_latency, factor = True, None
        elif text.startswith(("local address", "remote address")):
            side = text.split()[0]
        elif gid := _GID.match(line):
            addresses[side] = _dotted(gid[1])
        elif text.endswith((" BW Test", " Latency Test")):
            test = text
        elif in_latency and (measured := _latency_row(text)):
            latency.append(measured)
        elif factor is not None and (row := _bandwidth_row(text, factor)):
            rows.append(row)
        else:
            settings.update((name.strip(), value) for name, value in _SETTING.findall(text))
    return PerftestRun(
        test=test,
        device=settings.get("Device"),
        gid_index=whole(settings.get("GID index")),
        mtu_bytes=whole(settings.get("Mtu", "").removesuffix("[B]")),
        link_type=settings.get("Link type"),
        queue_pairs=whole(settings.get("Number of qps")),
        local_address=addresses.get("local"),
        remote_address=addresses.get("remote"),
        rows=tuple(rows),
        latency=tuple(latency),
    )


def parse_json(text: str, *, gbits: bool) -> PerftestRun:
    """Read a file of ``--out_json_file``, which names no unit: ``gbits`` says whether the run had ``--report_gbits``.

    Raises ValueError for text that is not such a file; before 24.01.0-0.38 perftest wrote invalid JSON.
    """
    try:
        data = document(text)
        info, result = data["test_info"], data["results"]
        factor = _GBPS_PER_UNIT["Gb/sec" if gbits else "MiB/sec"]
        row = BandwidthRow(
            message_bytes=int(result["MsgSize"]),
            iterations=int(result["n_iterations"]),
            peak_gbps=float(result["BW_peak"]) * factor,
            average_gbps=float(result["BW_average"]) * factor,
            message_rate_mpps=float(result["MsgRate"]),
        )
        return PerftestRun(
            test=str(info["test"]).replace("_", " "),
            device=str(info["Device"]),
            gid_index=None if info.get("GID_index") is None else int(info["GID_index"]),
            mtu_bytes=int(info["Mtu"]),
            link_type=str(info["Link_type"]),
            queue_pairs=int(info["Number_of_qps"]),
            rows=(row,),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as wrong:
        raise ValueError(f"not a perftest result: {wrong}") from wrong


def failure(rc: int, stdout: str, stderr: str) -> PerftestFailure | None:
    """Why the run gave no number, or None when it ended well with one."""
    lines = tuple(line.strip() for line in f"{stderr}\n{stdout}".splitlines() if line.strip())
    errors = tuple(line.strip() for line in stderr.splitlines() if line.strip())[-8:]
    if rc == 0:
        run = parse_run(stdout)
        return None if run.rows or run.latency else PerftestFailure("no_result", FAILURES["no_result"], "", errors)
    # A limit or a missing program is known from its exit status; what was printed before it is only evidence.
    if rc < 0 or rc in (124, 137, 143):
        return PerftestFailure("timed_out", FAILURES["timed_out"], errors[-1] if errors else "", errors)
    if rc == 127:
        return PerftestFailure("tool_missing", FAILURES["tool_missing"], errors[-1] if errors else "", errors)
    for kind, pattern in _SAID:
        for line in lines:
            if re.search(pattern, line):
                status = _status(lines) if kind == "completion_error" else ""
                return PerftestFailure(kind, FAILURES[kind] + status, line, errors)
    return PerftestFailure("unknown", FAILURES["unknown"], errors[-1] if errors else "", errors)


def parse_version(text: str) -> str | None:
    """The version from ``--version``, which exits 1 although it worked."""
    found = re.search(r"^Version:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def writes_json(version: str | None) -> bool:
    """Whether this version's ``--out_json`` can be asked for: the valid form came with 24.01.0-0.38, which is 6.20."""
    parts = [whole(part) for part in (version or "").split(".")]
    return tuple(part for part in parts[:2] if part is not None) >= _JSON_SINCE if None not in parts else False


def _bandwidth_row(text: str, factor: float) -> BandwidthRow | None:
    fields = _numbers(text)
    if fields is None or len(fields) not in (5, 6):
        return None
    return BandwidthRow(
        message_bytes=int(fields[0]),
        iterations=int(fields[1]),
        peak_gbps=fields[2] * factor,
        average_gbps=fields[3] * factor,
        message_rate_mpps=fields[4],
        cpu_percent=fields[5] if len(fields) == 6 else None,
    )


def _latency_row(text: str) -> LatencyRow | None:
    fields = _numbers(text)
    if fields is None or len(fields) < 6:
        return None
    p99 = fields[7] if len(fields) > 7 else None
    return LatencyRow(int(fields[0]), int(fields[1]), fields[2], fields[3], fields[4], fields[5], p99)


def _numbers(text: str) -> list[float] | None:
    """What a row holds, None where it is no row: what is no finite number was never measured."""
    try:
        numbers = [float(field) for field in text.split()]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _dotted(gid: str) -> str:
    """perftest prints a GID as sixteen decimal bytes; an IPv4 GID reads better as its address."""
    parts = [int(part) for part in gid.split(":")]
    if parts[:12] == [0] * 10 + [255, 255]:
        return ".".join(str(part) for part in parts[12:])
    return ":".join(f"{parts[i] << 8 | parts[i + 1]:04x}" for i in range(0, 16, 2))


def _status(lines: tuple[str, ...]) -> str:
    for line in lines:
        found = re.search(r"Failed status (\d{1,9})", line)
        if found:
            number = int(found[1])
            return f" (status {number}, {_STATUS.get(number, 'see ibv_wc_status')})"
    return ""
