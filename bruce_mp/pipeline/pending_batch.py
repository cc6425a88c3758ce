"""Batches with limits on age, number of messages and bytes. A batch that reaches one of its limits is complete.

If a segment does not fit, `add` splits it at the message that reaches the limit. `add_whole` never splits a segment,
because a split costs work for each message of the run.

The age of a batch counts from the arrival of its oldest message at the input.  The router batches the AnyPartition
messages of topics with per-topic batching, the dispatchers all other messages of batched topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from bruce_mp.kernels import split_at
from bruce_mp.slab.runs import arrived_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.config.sections import BatchLimits
    from bruce_mp.kernels import ClaimedRun
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["SIZE_OVERHEAD", "UNLIMITED", "PendingBatch"]

SIZE_OVERHEAD: Final = 26
"""The bytes that Kafka's message format 0 adds to a key and a value. The size limits of a message and of a record batch
include these bytes; the limit of a `PendingBatch` does not."""
UNLIMITED: Final = 1 << 62
"""The value of an absent limit, which no size, number or time reaches."""

_Item = TypeVar("_Item")
"""Segments in the router, claimed runs in dispatchers."""


class PendingBatch(Generic[_Item]):
    """An incomplete batch.  Times are in ms on the steady clock of arrival times."""

    def __init__(self, slab: Slab, limits: BatchLimits) -> None:
        self._slab = slab
        self._max_age_ms = UNLIMITED if limits.time_ms is None else limits.time_ms
        self._max_bytes = limits.bytes or UNLIMITED
        # `_max_bytes` limits the number of messages as well, as if an empty message had one byte. Otherwise a batch of
        # empty messages would never be full.
        self._max_records = min(limits.messages or UNLIMITED, self._max_bytes)
        self._items: list[_Item] = []
        self._record_count = 0
        self._byte_count = 0
        self._due_ms = UNLIMITED

    @property
    def due_ms(self) -> int | None:
        """The time at which the batch reaches its age limit; None if the batch is empty or has no age limit."""
        return self._due_ms if self._due_ms < UNLIMITED else None

    def add(self: PendingBatch[Segment], segment: Segment, now_ms: int) -> list[list[Segment]]:
        """Add a segment, and split it if necessary. Return the batches that it completes, in order."""
        arrival_ms = arrived_ms(self._slab, segment)
        stays_incomplete = (
            self._record_count + segment.records < self._max_records
            and self._byte_count + segment.payload < self._max_bytes
        )
        if self._items and stays_incomplete and now_ms < self._due_ms:
            self._append(segment, segment.records, segment.payload, arrival_ms, now_ms)  # the usual case
            return []
        completed_batches: list[list[Segment]] = []
        rest: Segment | None = segment
        while rest is not None:
            if self._fits(rest):
                self._append(rest, rest.records, rest.payload, arrival_ms, now_ms)
                rest = None
            else:
                rest = self._split_and_flush(rest, arrival_ms, completed_batches, now_ms)
            if self._is_complete(now_ms):
                completed_batches.append(self.flush())
        return completed_batches

    def add_whole(self: PendingBatch[ClaimedRun], runs: Sequence[ClaimedRun], now_ms: int) -> list[ClaimedRun]:
        """Add at least one run, unsplit. Return the runs of the batches that this completes, in order."""
        record_count = self._record_count + sum([run[4] for run in runs])
        byte_count = self._byte_count + sum([run[5] for run in runs])
        due_ms = min(self._due_ms, min(now_ms, *[run[6] for run in runs]) + self._max_age_ms)
        if record_count < self._max_records and byte_count < self._max_bytes and now_ms < due_ms:  # the usual case
            self._items += runs
            self._record_count, self._byte_count, self._due_ms = record_count, byte_count, due_ms
            return []
        completed_count = self._count_completed(runs, now_ms)
        completed = [*self._items, *runs[:completed_count]]
        self._items = [*runs[completed_count:]]
        return completed

    def _count_completed(self: PendingBatch[ClaimedRun], runs: Sequence[ClaimedRun], now_ms: int) -> int:
        """Add the sizes of runs, and return how many runs belong to completed batches; the rest is incomplete."""
        record_count, byte_count, due_ms = self._record_count, self._byte_count, self._due_ms
        completed_count = 0
        # No method is called, because a frame under high load has hundreds of runs.
        for index, (_, _, _, _, records, payload, arrival_ms) in enumerate(runs):
            record_count += records
            byte_count += payload
            due_ms = min(due_ms, arrival_ms + self._max_age_ms, now_ms + self._max_age_ms)
            if record_count >= self._max_records or byte_count >= self._max_bytes or now_ms >= due_ms:
                completed_count = index + 1
                record_count, byte_count, due_ms = 0, 0, UNLIMITED
        self._record_count, self._byte_count, self._due_ms = record_count, byte_count, due_ms
        return completed_count

    def _fits(self, segment: Segment) -> bool:
        return (
            self._record_count + segment.records <= self._max_records
            and self._byte_count + segment.payload <= self._max_bytes
        )

    def _split_and_flush(
        self: PendingBatch[Segment],
        segment: Segment,
        arrival_ms: int,
        completed_batches: list[list[Segment]],
        now_ms: int,
    ) -> Segment | None:
        """Add the part of a segment that fits, and flush the batch to `completed_batches`. Return the rest, if any."""
        fitting_part, rest = split_at(
            self._slab, segment, self._max_records - self._record_count, self._max_bytes - self._byte_count
        )
        if fitting_part is None and not self._items:
            # A message larger than the limit forms its own batch.
            fitting_part, rest = split_at(self._slab, segment, 1, UNLIMITED)
        if fitting_part is not None:
            self._append(fitting_part, fitting_part.records, fitting_part.payload, arrival_ms, now_ms)
        completed_batches.append(self.flush())
        return rest

    def _append(self, item: _Item, records: int, payload: int, arrival_ms: int, now_ms: int) -> None:
        age_start_ms = min(arrival_ms, now_ms)  # an arrival can be after now if an earlier daemon's clock was ahead
        self._due_ms = min(self._due_ms, age_start_ms + self._max_age_ms)
        self._items.append(item)
        self._record_count += records
        self._byte_count += payload

    def _is_complete(self, now_ms: int) -> bool:
        is_full = self._record_count >= self._max_records or self._byte_count >= self._max_bytes
        return is_full or now_ms >= self._due_ms

    def flush(self) -> list[_Item]:
        """Return the content of the batch, and begin an empty batch."""
        items, self._items = self._items, []
        self._record_count = self._byte_count = 0
        self._due_ms = UNLIMITED
        return items
