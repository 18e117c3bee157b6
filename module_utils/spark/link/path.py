"""Where bytes were lost on their way, from what both ends counted during a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What a sender had and did not put on the wire, and what a receiver took off it and threw away.
SENDER_DROPS = ("tx_discards_phy", "tx_errors_phy")
RECEIVER_DROPS = ("rx_discards_phy", "rx_out_of_buffer", "out_of_buffer")
# Errors that forward error correction did not repair. What it did repair moves on every healthy cable.
UNCORRECTED = ("rx_pcs_symbol_err_phy", "rx_symbol_err_phy", "rx_crc_errors_phy")
# The first that a function counts: on the wire, of its RDMA traffic, or of its interface.
SENT_BYTES = ("tx_bytes_phy", "tx_vport_rdma_unicast_bytes", "tx_bytes")
# Worth telling and no verdict.
TOLD = (
    *("rx_pause_ctrl_phy", "tx_pause_ctrl_phy", "link_down_events_phy", "link_downed", "module_unplug"),
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "rnr_nak_retry_err"),
    *("duplicate_request", "out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "send_err"),
)


@dataclass(frozen=True)
class Moved:
    """One counter of one function that moved during a run."""

    node: str
    netdev: str
    counter: str
    count: int

    def __str__(self) -> str:
        return f"{self.node} {self.netdev}: {self.counter} +{self.count}"


@dataclass(frozen=True)
class Path:
    """``known`` says whether hardware counters were there: without them nothing lost is no statement."""

    known: bool
    sent: tuple[Moved, ...]
    sender_drops: tuple[Moved, ...]
    receiver_drops: tuple[Moved, ...]
    uncorrected: tuple[Moved, ...]
    told: tuple[Moved, ...]

    @property
    def drops(self) -> tuple[Moved, ...]:
        return self.sender_drops + self.receiver_drops


def path_of(
    node: str,
    peer: str,
    netdevs: Sequence[str],
    own: Sequence[Mapping[str, int]],
    far: Sequence[Mapping[str, int]] | None,
    *,
    counts_loss: bool = True,
) -> Path:
    """What a run from ``node`` to ``peer`` did to the counters of both; ``far`` is None where the peer did not say.

    The two functions of a port may count the same wire, so an equal count of both is told once.
    """
    here = list(zip(netdevs, own, strict=False))
    there = list(zip(netdevs, far, strict=False)) if far is not None else []
    sent = []
    for netdev, counts in here:
        name = next((name for name in SENT_BYTES if counts.get(name)), None)
        if name:
            sent.append(Moved(node, netdev, name, counts[name]))
    return Path(
        known=counts_loss and bool(here) and all(any(name.endswith("_phy") for name in counts) for _, counts in here),
        sent=tuple(sent),
        sender_drops=_once(_moved(node, here, SENDER_DROPS)),
        receiver_drops=_once(_moved(peer, there, RECEIVER_DROPS)),
        uncorrected=_once([*_moved(node, here, UNCORRECTED), *_moved(peer, there, UNCORRECTED)]),
        told=_once([*_moved(node, here, TOLD), *_moved(peer, there, TOLD)]),
    )


def bit_error_rate(counts: Mapping[str, int]) -> float | None:
    """Corrected bits per physical bit of the same time.

    None without both: application bytes are the wrong denominator, by an order of magnitude on a slow link.
    """
    bits, corrected = counts.get("rx_bits_phy", 0), counts.get("rx_corrected_bits_phy", 0)
    return corrected / bits if bits > 0 else None


def _moved(node: str, functions: Sequence[tuple[str, Mapping[str, int]]], names: Sequence[str]) -> list[Moved]:
    return [
        Moved(node, netdev, name, counts[name])
        for netdev, counts in functions
        for name in names
        if counts.get(name, 0) > 0
    ]


def _once(moved: Sequence[Moved]) -> tuple[Moved, ...]:
    kept: dict[tuple[str, str, int], Moved] = {}
    for item in moved:
        kept.setdefault((item.node, item.counter, item.count), item)
    return tuple(kept.values())
