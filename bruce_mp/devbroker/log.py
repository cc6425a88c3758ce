"""Log of one partition: record batches in memory, by offset; and the limit of the memory for all logs.

Invariants: offsets never decrease and are never reused; `start` <= every stored offset < `end`; `start` increases when
retention removes the head. The damage methods at the end corrupt the log deliberately, as test data for an audit. They
keep these invariants, so consumers continue to read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.devbroker.batch import LENGTH_AT, BatchHead, rebase, records_of
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.producers import ProducerStates

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OVERHEAD", "AppendResult", "PartitionLog", "Retention"]

OVERHEAD: Final = 320  # cost of the objects of a batch: measured 250 to 310 bytes on CPython 3.11
TRIM_DIVISOR: Final = 16  # a trim frees the limit divided by this number, so that not each batch trims


class StoredBatch(NamedTuple):
    """A stored batch; `max_timestamp` is in ms, `appended_ns` on the host's monotonic clock."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    raw: bytes
    appended_ns: int


class AppendResult(NamedTuple):
    """Outcome of an append. A duplicate has the base offset of the original batch.

    `log_append_time` is -1; of a duplicate, as in Kafka, the largest timestamp (ms) of the original.
    """

    base_offset: int
    log_append_time: int
    is_duplicate: bool


class PartitionLog:
    """Storage of one partition's batches, with append, read and search."""

    __slots__ = ("_batches", "_retention", "end", "producers", "start")

    def __init__(self, retention: Retention) -> None:
        self.start = 0
        self.end = 0
        self.producers = ProducerStates()
        self._retention = retention
        self._batches: list[StoredBatch] = []

    def append(self, head: BatchHead, raw: bytes, leader_epoch: int) -> AppendResult:
        """Store a checked batch unless it is a duplicate. Raise RefusedError as `ProducerStates.check` does."""
        original = self.producers.original_of(head)
        if original is not None:
            return AppendResult(original.base_offset, original.max_timestamp, is_duplicate=True)
        self.producers.check(head)
        base = self._store(head, raw, leader_epoch)
        self.producers.remember(head, base)
        return AppendResult(base, -1, is_duplicate=False)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches from that of `offset` on: the first of any size, and others up to `max_bytes` in all.

        Raise RefusedError for an offset below `start` or above `end`.
        """
        if not self.start <= offset <= self.end:
            text = f"Offset {offset} is outside of {self.start} to {self.end}."
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, text)
        found: list[bytes] = []
        for at in range(self._index_of(offset), len(self._batches)):
            raw = self._batches[at].raw
            max_bytes -= len(raw)
            if found and max_bytes < 0:
                break
            found.append(raw)
        return b"".join(found)

    def appended_since(self, moment_ns: int) -> Iterator[StoredBatch]:
        """Return the batches appended at that moment of the monotonic clock or later."""
        return (batch for batch in self._batches if batch.appended_ns >= moment_ns)

    def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record that is not older than `timestamp`, in ms, or None."""
        candidates = (batch for batch in self._batches if batch.max_timestamp >= timestamp)
        records = chain.from_iterable(records_of(batch.raw) for batch in candidates)
        return next(((r.offset, r.timestamp) for r in records if r.timestamp >= timestamp), None)

    def find_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the record with the greatest timestamp; None for an empty log."""
        if not self._batches:
            return None
        batch = max(self._batches, key=lambda b: b.max_timestamp)
        return max(((r.offset, r.timestamp) for r in records_of(batch.raw)), key=lambda found: found[1])

    def drop_oldest(self, count: int) -> int:
        """Remove the first `count` batches, or all, and advance `start`. Return the number removed."""
        before = len(self._batches)
        self._drop(slice(0, count))
        self.start = self._batches[0].base_offset if self._batches else self.end
        return before - len(self._batches)

    def clear(self) -> None:
        self._drop(slice(None))

    def remove(self, offset: int) -> None:
        """Remove the batch that holds `offset`, and leave a gap in the offsets.

        An emptied log starts at its end, because a consumer would wait at `start` forever.
        """
        at = self._index_of_existing(offset)
        self._drop(slice(at, at + 1))
        if not self._batches:
            self.start = self.end

    def double(self, offset: int) -> None:
        """Append the batch that holds `offset` again, as a producer without idempotence might."""
        raw = self._batches[self._index_of_existing(offset)].raw
        head = BatchHead.unpack(raw)
        self._store(head, raw, head.leader_epoch)

    def swap(self, offset: int) -> None:
        """Swap the batch that holds `offset` with the next one."""
        at = self._index_of_existing(offset)
        if at + 1 == len(self._batches):
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"No batch follows the one with offset {offset}.")
        first, second = self._batches[at : at + 2]
        second_base = first.base_offset + second.last_offset - second.base_offset + 1
        self._batches[at] = with_base_offset(second, first.base_offset)
        self._batches[at + 1] = with_base_offset(first, second_base)

    def _store(self, head: BatchHead, raw: bytes, leader_epoch: int) -> int:
        base = self.end
        self.end = base + head.record_count
        rebased = rebase(raw, base, leader_epoch)
        self._batches.append(StoredBatch(base, self.end - 1, head.max_timestamp, rebased, time.monotonic_ns()))
        self._retention.charge(self, len(raw))
        return base

    def _drop(self, which: slice) -> None:
        for batch in self._batches[which]:
            self._retention.release(len(batch.raw))
        del self._batches[which]

    def _index_of(self, offset: int) -> int:
        return bisect_left(self._batches, offset, key=lambda batch: batch.last_offset)

    def _index_of_existing(self, offset: int) -> int:
        at = self._index_of(offset)
        if at == len(self._batches) or self._batches[at].base_offset > offset:
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"No stored batch holds offset {offset}.")
        return at


def with_base_offset(batch: StoredBatch, base_offset: int) -> StoredBatch:
    last = base_offset + batch.last_offset - batch.base_offset
    raw = base_offset.to_bytes(LENGTH_AT) + batch.raw[LENGTH_AT:]
    return batch._replace(base_offset=base_offset, last_offset=last, raw=raw)


class Retention:
    """Memory limit over all partitions: the oldest batches are removed first.

    A batch is charged with its bytes and the cost of its Python objects, so the limit also holds for a million tiny
    batches. A log has fewer batches than the queue here lists if its topic was deleted, or the command `drop_batch`
    removed one; the trim then continues with the next entries.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0
        """The bytes of all batches, with `OVERHEAD` for each."""
        self.dropped = 0  # batches
        self._order: deque[tuple[PartitionLog, int]] = deque()
        """Log and cost of each batch, the oldest first."""

    def charge(self, log: PartitionLog, size: int) -> None:
        """Charge a batch of `size` bytes that `log` appended.

        This may call `drop_oldest` of any log, including `log`.
        """
        self.held += size + OVERHEAD
        self._order.append((log, size + OVERHEAD))
        if self.held > self.limit:
            self._trim()

    def release(self, size: int) -> None:
        """Release the charge of a removed batch of `size` bytes."""
        self.held -= size + OVERHEAD

    def _trim(self) -> None:
        target = self.limit - self.limit // TRIM_DIVISOR
        while self.held > target and self._order:
            for log, count in self._oldest(self.held - target).items():
                self.dropped += log.drop_oldest(count)

    def _oldest(self, bytes_to_free: int) -> Counter[PartitionLog]:
        """Take the oldest batches, of `bytes_to_free` bytes, from the queue. Return their number for each log."""
        counts: Counter[PartitionLog] = Counter()
        while bytes_to_free > 0 and self._order:
            log, cost = self._order.popleft()
            counts[log] += 1
            bytes_to_free -= cost
        return counts
