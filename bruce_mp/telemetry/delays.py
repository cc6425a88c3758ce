"""How long messages take from their receipt to their ack: a histogram in the counters of the dispatchers' rows.

A message counts with the time at which its run began.  The counters are raised in the transaction that settles a
batch, so the histogram has exactly the messages that are delivered.  Buckets are fixed, because the counters outlive
the program that made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.books import total
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["BOUNDS_MS", "BUCKETS", "bucket_name", "percentile", "raises_of", "read_delays"]

BOUNDS_MS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""The longest delay of each bucket; one more bucket has the longer ones."""
BUCKETS: Final = len(BOUNDS_MS) + 1

assert Counter.AckDelayFirst + len(BOUNDS_MS) < Counter.AckDelayMs


def raises_of(delays: Mapping[int, int], waited_ms: int) -> dict[int, int]:
    """What to raise for so many messages in each bucket, which waited so long all of them together."""
    return {Counter.AckDelayFirst + bucket: messages for bucket, messages in delays.items()} | {
        Counter.AckDelayMs: waited_ms
    }


def read_delays(slab: Slab) -> tuple[list[int], int]:
    """The messages of each bucket, and the sum of all delays in ms."""
    buckets = [total(slab, Counter.AckDelayFirst + index) for index in range(BUCKETS)]
    return buckets, total(slab, Counter.AckDelayMs)


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """The delay in ms that `share` (from 0 to 1) of the messages in the buckets did not exceed; None of no messages.

    Within a bucket the messages count as evenly spread, as Prometheus has it; what lies beyond the last bound counts as
    that bound.
    """
    wanted = share * sum(buckets)
    if not wanted:
        return None
    shorter_ms = 0
    for bound_ms, messages in zip(BOUNDS_MS, buckets, strict=False):
        if messages >= wanted:
            return shorter_ms + (bound_ms - shorter_ms) * wanted / messages
        wanted -= messages
        shorter_ms = bound_ms
    return float(BOUNDS_MS[-1])


def bucket_name(index: int) -> str:
    """The name of a bucket's counter."""
    return f"AckDelayTo{BOUNDS_MS[index]}ms" if index < len(BOUNDS_MS) else f"AckDelayBeyond{BOUNDS_MS[-1]}ms"
