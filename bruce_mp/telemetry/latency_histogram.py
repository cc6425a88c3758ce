"""Latency from receipt to acknowledgment: a histogram in the counters of the dispatchers' process rows.

The latency of a message counts from the arrival of the first message of its run. The transaction that marks messages as
delivered also updates the histogram, so the histogram counts exactly the delivered messages. The bounds of the buckets
never change, because the counters in the slab outlive a release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["BOUNDS_MS", "BUCKET_COUNT", "bucket_name", "percentile", "read_latencies"]

BOUNDS_MS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""The upper bound of each bucket except the last, which counts all longer latencies."""
BUCKET_COUNT: Final = len(BOUNDS_MS) + 1

assert Counter.AckDelayFirst + BUCKET_COUNT <= Counter.AckDelayMs


def read_latencies(slab: Slab) -> tuple[list[int], int]:
    """Return the number of messages in each bucket, and the sum of all latencies in ms."""
    counts = [counter_total(slab, Counter.AckDelayFirst + index) for index in range(BUCKET_COUNT)]
    return counts, counter_total(slab, Counter.AckDelayMs)


def percentile(counts: Sequence[int], quantile: float) -> float | None:
    """Return the latency in ms at `quantile` (0 to 1), rounded; `counts` has the number of messages in each bucket.

    Interpolate within a bucket, as Prometheus' `histogram_quantile` does. If the latency is above the last bound,
    return the last bound. Return None if there are no messages.
    """
    remaining = quantile * sum(counts)
    if not remaining:
        return None
    lower_ms = 0
    for upper_ms, count in zip(BOUNDS_MS, counts, strict=False):  # the last bucket has no bound
        if count >= remaining:
            return round(lower_ms + (upper_ms - lower_ms) * remaining / count, 2)
        remaining -= count
        lower_ms = upper_ms
    return float(BOUNDS_MS[-1])


def bucket_name(index: int) -> str:
    return f"AckDelayTo{BOUNDS_MS[index]}ms" if index < len(BOUNDS_MS) else f"AckDelayBeyond{BOUNDS_MS[-1]}ms"
