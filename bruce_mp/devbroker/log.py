"""The log of one partition, which keeps record batches in memory, and the memory limit of all logs.

Invariants of a log: Offsets never decrease and are never reused. Each stored offset is at least `start` and less than
`end`. `start` increases when retention removes the oldest batches.

`remove`, `double` and `swap` damage a log deliberately, as test data for programs that detect lost, duplicate or
reordered records. The invariants hold after the damage, so consumers continue to read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.devbroker.batch import LENGTH_OFFSET, BatchHead, decode_records, rebase
from bruce_mp.devbroker.codes import Code, RefusedError
from bruce_mp.devbroker.producers import ProducerStates

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BATCH_OVERHEAD", "AppendResult", "PartitionLog", "Retention"]

BATCH_OVERHEAD: Final = 320  # bytes of a batch's Python objects: measured 250 to 310 on CPython 3.11
TRIM_DIVISOR: Final = 16  # a trim frees 1/16 of the limit, so that at the limit not each new batch causes a trim


class StoredBatch(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    """Largest timestamp of its records, in ms."""
    raw: bytes
    appended_ns: int
    """Time of the append on the host's monotonic clock."""


class AppendResult(NamedTuple):
    base_offset: int
    """Offset of the first record. For a duplicate, the base offset of the original batch."""
    log_append_time: int
    """-1 for an appended batch. For a duplicate, as in Kafka, the largest timestamp (ms) of the original batch."""
    is_duplicate: bool


class PartitionLog:
    """The batches of one partition."""

    __slots__ = ("_batches", "_retention", "end", "producers", "start")

    def __init__(self, retention: Retention) -> None:
        self.start = 0  # the offset from which consumers can read
        self.end = 0  # the offset that the next record gets
        self.producers = ProducerStates()
        self._retention = retention
        self._batches: list[StoredBatch] = []  # in the order of their offsets

    def append(self, head: BatchHead, raw: bytes, leader_epoch: int) -> AppendResult:
        """Store the batch `raw` with the header `head`, unless it is a duplicate.

        Raise RefusedError if the idempotence check refuses it.
        """
        original = self.producers.find_original(head)
        if original is not None:
            return AppendResult(original.base_offset, original.max_timestamp, is_duplicate=True)
        self.producers.check(head)
        base = self._store(head, raw, leader_epoch)
        self.producers.remember(head, base)
        return AppendResult(base, -1, is_duplicate=False)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches, beginning with the batch that holds `offset`.

        The batches have at most `max_bytes` together, but a larger first batch is returned alone. If no batch holds the
        offset, begin with the next batch. Raise RefusedError for an offset below `start` or above `end`.
        """
        if not self.start <= offset <= self.end:
            text = f"Offset {offset} is outside of {self.start} to {self.end}."
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, text)
        found: list[bytes] = []
        for index in range(self._index_of(offset), len(self._batches)):
            raw = self._batches[index].raw
            max_bytes -= len(raw)
            if found and max_bytes < 0:
                break
            found.append(raw)
        return b"".join(found)

    def appended_since(self, moment_ns: int) -> Iterator[StoredBatch]:
        """Yield the batches that were appended at `moment_ns` of the monotonic clock, or later."""
        return (batch for batch in self._batches if batch.appended_ns >= moment_ns)

    def find_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record that has this timestamp (ms) or a later one.

        Return None if there is no such record.
        """
        candidates = (batch for batch in self._batches if batch.max_timestamp >= timestamp)
        records = chain.from_iterable(decode_records(batch.raw) for batch in candidates)
        return next(((r.offset, r.timestamp) for r in records if r.timestamp >= timestamp), None)

    def find_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the record with the greatest timestamp; None for an empty log."""
        if not self._batches:
            return None
        batch = max(self._batches, key=lambda b: b.max_timestamp)
        return max(((r.offset, r.timestamp) for r in decode_records(batch.raw)), key=lambda found: found[1])

    def drop_oldest(self, count: int) -> int:
        """Remove the first `count` batches, or all if there are fewer, and advance `start`.

        Return the number of removed batches.
        """
        count_before = len(self._batches)
        self._drop(slice(0, count))
        self.start = self._batches[0].base_offset if self._batches else self.end
        return count_before - len(self._batches)

    def clear(self) -> None:
        self._drop(slice(None))

    def remove(self, offset: int) -> None:
        """Remove the batch that holds `offset`, and leave a gap in the offsets."""
        index = self._index_of_existing(offset)
        self._drop(slice(index, index + 1))
        if not self._batches:
            self.start = self.end  # else a consumer would wait forever for a record in the gap

    def double(self, offset: int) -> None:
        """Append a second copy of the batch that holds `offset`, as a retry without idempotence does."""
        raw = self._batches[self._index_of_existing(offset)].raw
        head = BatchHead.unpack(raw)
        self._store(head, raw, head.leader_epoch)

    def swap(self, offset: int) -> None:
        """Swap the batch that holds `offset` with the next one."""
        index = self._index_of_existing(offset)
        if index + 1 == len(self._batches):
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"No batch follows the one with offset {offset}.")
        first, second = self._batches[index : index + 2]
        second_record_count = second.last_offset - second.base_offset + 1
        self._batches[index] = with_base_offset(second, first.base_offset)
        self._batches[index + 1] = with_base_offset(first, first.base_offset + second_record_count)

    def _store(self, head: BatchHead, raw: bytes, leader_epoch: int) -> int:
        base = self.end
        self.end = base + head.record_count
        rebased = rebase(raw, base, leader_epoch)
        self._batches.append(StoredBatch(base, self.end - 1, head.max_timestamp, rebased, time.monotonic_ns()))
        self._retention.charge(self, len(raw))
        return base

    def _drop(self, indexes: slice) -> None:
        """Remove these batches, and release their memory."""
        for batch in self._batches[indexes]:
            self._retention.release(len(batch.raw))
        del self._batches[indexes]
        if not self._batches:
            self._retention.forget(self)

    def _index_of(self, offset: int) -> int:
        """Return the index of the batch that holds `offset`, or of the next batch if `offset` is in a gap."""
        return bisect_left(self._batches, offset, key=lambda batch: batch.last_offset)

    def _index_of_existing(self, offset: int) -> int:
        """Return the index of the batch that holds `offset`. Raise RefusedError if there is none."""
        index = self._index_of(offset)
        if index == len(self._batches) or self._batches[index].base_offset > offset:
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"No stored batch holds offset {offset}.")
        return index


def with_base_offset(batch: StoredBatch, base_offset: int) -> StoredBatch:
    """Return a copy of the batch with another base offset."""
    last = base_offset + batch.last_offset - batch.base_offset
    raw = base_offset.to_bytes(LENGTH_OFFSET) + batch.raw[LENGTH_OFFSET:]
    return batch._replace(base_offset=base_offset, last_offset=last, raw=raw)


class Retention:
    """Memory limit of all logs. If the limit is exceeded, the oldest batches of all logs are removed.

    A batch is charged with its bytes and `BATCH_OVERHEAD`, so the limit also holds for a million tiny batches.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        """The charges of all stored batches."""
        self.dropped_batches = 0
        """Number of batches that a trim has removed."""
        self._logs: set[PartitionLog] = set()
        """The logs that have batches."""

    def charge(self, log: PartitionLog, size: int) -> None:
        """Charge a batch of `size` bytes that `log` has appended.

        If the limit is exceeded, call `drop_oldest` of the logs with the oldest batches, perhaps of `log` itself.
        """
        self.held_bytes += size + BATCH_OVERHEAD
        self._logs.add(log)
        if self.held_bytes > self.limit_bytes:
            self._trim()

    def release(self, size: int) -> None:
        """Take back the charge of a batch of `size` bytes that was removed."""
        self.held_bytes -= size + BATCH_OVERHEAD

    def forget(self, log: PartitionLog) -> None:
        """Hold no reference to a log that has no batches, because its topic may be deleted."""
        self._logs.discard(log)

    def _trim(self) -> None:
        target = self.limit_bytes - self.limit_bytes // TRIM_DIVISOR
        for log, count in self._find_oldest(self.held_bytes - target).items():
            self.dropped_batches += log.drop_oldest(count)

    def _find_oldest(self, bytes_to_free: int) -> Counter[PartitionLog]:
        """Find the oldest batches, as many as have charges of at least `bytes_to_free`.

        Return the number of these batches for each log.
        """
        counts: Counter[PartitionLog] = Counter()
        for log, batch in merge(*map(_with_batches, self._logs), key=_append_time):
            if bytes_to_free <= 0:
                break
            counts[log] += 1
            bytes_to_free -= len(batch.raw) + BATCH_OVERHEAD
        return counts


def _with_batches(log: PartitionLog) -> Iterator[tuple[PartitionLog, StoredBatch]]:
    return ((log, batch) for batch in log.appended_since(0))


def _append_time(item: tuple[PartitionLog, StoredBatch]) -> int:
    return item[1].appended_ns
