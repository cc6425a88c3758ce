"""Latency from receipt to acknowledgement: a histogram in the counters of the dispatchers' rows.

The latency of a message counts from the arrival of the first message of its run. The transaction that settles a batch
also updates the histogram, so it counts exactly the delivered messages. The bounds never change, because the counters
in the slab outlive the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["BOUNDS_MS", "BUCKETS", "bucket_name", "increments_of", "percentile", "read_latencies"]

BOUNDS_MS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""Upper bound of each bucket; one more bucket counts longer latencies."""
BUCKETS: Final = len(BOUNDS_MS) + 1

assert Counter.AckDelayFirst + BUCKETS <= Counter.AckDelayMs


def increments_of(messages_by_bucket: Mapping[int, int], total_ms: int) -> dict[int, int]:
    """Return the counter increments for messages with `total_ms` as the sum of their latencies."""
    return {Counter.AckDelayFirst + bucket: messages for bucket, messages in messages_by_bucket.items()} | {
        Counter.AckDelayMs: total_ms
    }


def read_latencies(slab: Slab) -> tuple[list[int], int]:
    """Return the messages of each bucket, and the sum of all latencies in ms."""
    buckets = [counter_total(slab, Counter.AckDelayFirst + index) for index in range(BUCKETS)]
    return buckets, counter_total(slab, Counter.AckDelayMs)


def percentile(buckets: Sequence[int], quantile: float) -> float | None:
    """Return the latency in ms at `quantile` (0 to 1), rounded, or None without messages.

    Interpolate within a bucket, as Prometheus' `histogram_quantile` does. The last bound stands for all latencies above
    it.
    """
    remaining = quantile * sum(buckets)
    if not remaining:
        return None
    lower_ms = 0
    for upper_ms, messages in zip(BOUNDS_MS, buckets, strict=False):  # the last bucket has no bound
        if messages >= remaining:
            return round(lower_ms + (upper_ms - lower_ms) * remaining / messages, 2)
        remaining -= messages
        lower_ms = upper_ms
    return float(BOUNDS_MS[-1])


def bucket_name(index: int) -> str:
    return f"AckDelayTo{BOUNDS_MS[index]}ms" if index < len(BOUNDS_MS) else f"AckDelayBeyond{BOUNDS_MS[-1]}ms"
