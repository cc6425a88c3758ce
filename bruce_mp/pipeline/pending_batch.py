"""Batches with three limits: age, number of messages and bytes. The first limit that is reached completes the batch.

A batch consists of segments. A *segment* names neighboring messages of a *run*, the unit that an input hands over. If
a segment does not fit, `add` splits it at the message that reaches the limit. `add_whole` never splits a segment,
because a split costs work for each message of the run.

The age of a batch counts from the arrival of its oldest message at the input.  The router accumulates the messages of
per-topic batching that leave their partition to the daemon (AnyPartition), the dispatchers all other batched messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.kernels import split_at
from bruce_mp.slab.runs import arrived_ms

if TYPE_CHECKING:
    from bruce_mp.config.sections import BatchLimits
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["SIZE_OVERHEAD", "UNLIMITED", "PendingBatch"]

SIZE_OVERHEAD: Final = 26
"""The overhead of message format 0. The size limits of a message and of a record batch count it in addition to key and
value; the limit of a `PendingBatch` does not."""
UNLIMITED: Final = 1 << 62
"""The value of an absent limit, which no size, number or time reaches."""


class PendingBatch:
    """An incomplete batch.  Times are in ms on the steady clock of arrival times."""

    def __init__(self, slab: Slab, limits: BatchLimits) -> None:
        self._slab = slab
        self._max_age_ms = UNLIMITED if limits.time_ms is None else limits.time_ms
        self._max_bytes = limits.bytes or UNLIMITED
        # `_max_bytes` limits the number of messages as well, as if an empty message had one byte. Otherwise a batch of
        # empty messages would never be full.
        self._max_records = min(limits.messages or UNLIMITED, self._max_bytes)
        self._segments: list[Segment] = []
        self._record_count = 0
        self._byte_count = 0
        self._due_ms = UNLIMITED

    @property
    def due_ms(self) -> int | None:
        """The time at which the batch reaches its age limit; None if the batch is empty or has no age limit."""
        return self._due_ms if self._due_ms < UNLIMITED else None

    def add(self, segment: Segment, now_ms: int) -> list[list[Segment]]:
        """Add a segment, and return the batches that are complete then, in order."""
        arrival_ms = arrived_ms(self._slab, segment)
        stays_incomplete = (
            self._record_count + segment.records < self._max_records
            and self._byte_count + segment.payload < self._max_bytes
        )
        if self._segments and stays_incomplete and now_ms < self._due_ms:
            self._append(segment, arrival_ms, now_ms)  # the usual case
            return []
        completed: list[list[Segment]] = []
        rest: Segment | None = segment
        while rest is not None:
            if self._fits(rest):
                self._append(rest, arrival_ms, now_ms)
                rest = None
            else:
                rest = self._split_and_flush(rest, arrival_ms, completed, now_ms)
            if self._is_full() or now_ms >= self._due_ms:
                completed.append(self.flush())
        return completed

    def add_whole(self, segment: Segment, arrival_ms: int, now_ms: int) -> list[Segment]:
        """Add a segment unsplit. Return the segments of the batch if it is complete then, else an empty list."""
        # The code of `_append`, repeated here because dispatchers add each run, so that the call would cost time.
        if arrival_ms + self._max_age_ms < self._due_ms:  # usually true only for the first segment
            self._due_ms = min(arrival_ms, now_ms) + self._max_age_ms
        self._segments.append(segment)
        self._record_count += segment.records
        self._byte_count += segment.payload
        if self._record_count < self._max_records and self._byte_count < self._max_bytes and now_ms < self._due_ms:
            return []
        return self.flush()

    def _fits(self, segment: Segment) -> bool:
        return (
            self._record_count + segment.records <= self._max_records
            and self._byte_count + segment.payload <= self._max_bytes
        )

    def _split_and_flush(
        self, segment: Segment, arrival_ms: int, completed: list[list[Segment]], now_ms: int
    ) -> Segment | None:
        """Add the part of a segment that fits, and add the batch to `completed`. Return the rest of the segment."""
        first, rest = split_at(
            self._slab, segment, self._max_records - self._record_count, self._max_bytes - self._byte_count
        )
        if first is None and not self._segments:
            # A message larger than the limit forms its own batch.
            first, rest = split_at(self._slab, segment, 1, UNLIMITED)
        if first is not None:
            self._append(first, arrival_ms, now_ms)
        completed.append(self.flush())
        return rest

    def _append(self, segment: Segment, arrival_ms: int, now_ms: int) -> None:
        since_ms = min(arrival_ms, now_ms)  # an earlier daemon's clock may have been ahead
        self._due_ms = min(self._due_ms, since_ms + self._max_age_ms)
        self._segments.append(segment)
        self._record_count += segment.records
        self._byte_count += segment.payload

    def _is_full(self) -> bool:
        return self._record_count >= self._max_records or self._byte_count >= self._max_bytes

    def flush(self) -> list[Segment]:
        """Return the segments of the batch, and begin an empty batch."""
        segments, self._segments = self._segments, []
        self._record_count = self._byte_count = 0
        self._due_ms = UNLIMITED
        return segments
