"""What the counters say about when streams really ran. Pure.

A process that runs is not a stream that flows: a client may wait for its peer while its clock ticks. Bytes that leave a
function cannot wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# A function carries its stream while it moves at least this share of what it usually moves.
LEAST_RATE = 0.05
# A stream that pauses for less than this and goes on has not ended: what it did not carry is missing from its rate.
PAUSE_S = 1.6


@dataclass(frozen=True)
class Sample:
    """What a function had sent and received at a time, in a unit of its own."""

    at: float
    sent: int
    received: int


@dataclass(frozen=True)
class Together:
    """``seconds`` in which all functions carried, and their share of the longest stream."""

    seconds: float
    share: float
    longest_s: float


def flowing(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """The times in which a function sent, or received, at its own rate, short pauses included."""
    steps = [
        (earlier.at, later.at, max(later.sent - earlier.sent, later.received - earlier.received))
        for earlier, later in itertools.pairwise(samples)
        if later.at > earlier.at
    ]
    rates = [count / (end - start) for start, end, count in steps if count > 0]
    if not rates:
        return []
    # Half of the largest rates are those of the stream, however long the samples before and after it are.
    usual = median(sorted(rates)[len(rates) // 2 :])
    spans: list[tuple[float, float]] = []
    for start, end, count in steps:
        if count / (end - start) < LEAST_RATE * usual:
            continue
        if spans and start - spans[-1][1] < PAUSE_S:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def together(lanes: Sequence[Sequence[Sample]]) -> Together | None:
    """How long all functions carried at the same time; None where nothing could be sampled or no counter moved.

    The samples of all functions are taken in one go, so their steps are the same.
    """
    if not lanes or any(len(samples) < 2 for samples in lanes):
        return None
    flows = [flowing(samples) for samples in lanes]
    longest = max(_length(flow) for flow in flows)
    if not longest:
        return None
    common = flows[0]
    for flow in flows[1:]:
        common = _intersection(common, flow)
    seconds = _length(common)
    return Together(seconds, seconds / longest, longest)


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def _intersection(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    found = []
    for start, end in first:
        for other_start, other_end in second:
            low, high = max(start, other_start), min(end, other_end)
            if high > low:
                found.append((low, high))
    return found
