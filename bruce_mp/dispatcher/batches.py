"""Record batches of a partition: built, numbered, split, numbered anew, all of it written into the slab.

A batch that was built keeps partition, sequence numbers and boundaries, so that a retry is the batch that the broker
may have already.  The order of the stores makes a crash harmless: placement first, then the words, then the
partition's next sequence number, and only then bytes to the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import State, word
from bruce_mp.slab.recovery import SentBatch
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.slab.runs import next_sequence, place

if TYPE_CHECKING:
    from collections import deque

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import PartitionTable

__all__ = ["NO_SEQUENCE", "BatchMaker"]

OVERHEAD: Final = 26
"""What a record counts beyond key and value where the size of a batch is limited."""
NO_SEQUENCE: Final = -1
"""Epoch and sequence where the brokers do not recognise repeated batches."""


class BatchMaker:
    """Builds batches for the dispatcher of one slot."""

    def __init__(self, slab: Slab, sequences: PartitionTable, slot: int, *, max_bytes: int, idempotent: bool) -> None:
        self._slab = slab
        self._sequences = sequences
        self._word = word(State.IN_FLIGHT, slot)
        self._max_bytes = max_bytes
        self.idempotent = idempotent
        """Whether batches are numbered: the cluster was found to know producer ids."""
        self.recognised = idempotent
        """Whether the broker recognises a batch that it has already: it may be older than others of its cluster."""

    def build(self, topic: int, partition: int, ready: deque[Segment], room: int) -> SentBatch:
        """Take a batch off the front of `ready`, which is not empty.

        It has at most `room` bytes of key and value, but at least one record, and is within the broker's limit.
        """
        segments = self._cut(ready, room)
        epoch, sequence = self._numbers(topic, partition)
        batch = SentBatch(topic, partition, epoch, sequence, tuple(segments))
        self._write(batch)
        kernels.mark(self._slab, segments, self._word)
        self._store_next(batch)
        return batch

    def _numbers(self, topic: int, partition: int) -> tuple[int, int]:
        return self._sequences.current(topic, partition) if self.idempotent else (NO_SEQUENCE, NO_SEQUENCE)

    def _cut(self, ready: deque[Segment], room: int) -> list[Segment]:
        segments: list[Segment] = []
        left = self._max_bytes
        while ready and len(segments) < MAX_SETTLED_SEGMENTS:
            segment = ready[0]
            cost = segment.payload + OVERHEAD * segment.records
            if cost > left or segment.payload > room:
                break
            segments.append(ready.popleft())
            left -= cost
            room -= segment.payload
        return segments or [self._cut_first(ready, room)]

    def _cut_first(self, ready: deque[Segment], room: int) -> Segment:
        """What fits of a first segment that does not fit whole; a single record always does."""
        segment = ready.popleft()
        records = max(1, self._max_bytes * segment.records // (segment.payload + OVERHEAD * segment.records))
        head, rest = kernels.head_of(self._slab, segment, records, min(room, self._max_bytes - OVERHEAD * records))
        if head is None:
            head, rest = kernels.head_of(self._slab, segment, 1, lay.RECORD_HEADER << 32)
        assert head is not None
        if rest is not None:
            ready.appendleft(rest)
        return head

    def _write(self, batch: SentBatch) -> None:
        sequence, opens = batch.base_sequence, True
        for segment in batch.segments:
            place(self._slab, segment, batch.partition, sequence, batch.epoch, opens_batch=opens)
            opens = False
            if self.idempotent:
                sequence = next_sequence(sequence, segment.records)

    def _store_next(self, batch: SentBatch) -> None:
        if self.idempotent:
            following = next_sequence(batch.base_sequence, batch.records)
            self._sequences.store_next_sequence(batch.topic, batch.partition, following, batch.epoch)

    def take_back(self, batch: SentBatch) -> bool:
        """Give back the sequence numbers of a batch that the broker refused; False when later ones are in use."""
        if not self.idempotent:
            return True
        epoch, following = self._sequences.current(batch.topic, batch.partition)
        if epoch != batch.epoch or following != next_sequence(batch.base_sequence, batch.records):
            return False
        self._sequences.store_next_sequence(batch.topic, batch.partition, batch.base_sequence, epoch)
        return True

    def halve(self, batch: SentBatch) -> tuple[SentBatch, SentBatch]:
        """Split a batch of at least two records, none of which was written; sequence numbers stay."""
        left = batch.records // 2
        heads: list[Segment] = []
        tails: list[Segment] = []
        for segment in batch.segments:
            head, rest = (
                kernels.head_of(self._slab, segment, left, lay.RECORD_HEADER << 32) if left else (None, segment)
            )
            heads += [head] if head else []
            tails += [rest] if rest else []
            left -= head.records if head else 0
        first = batch._replace(segments=tuple(heads))
        base = next_sequence(batch.base_sequence, first.records) if self.idempotent else NO_SEQUENCE
        second = batch._replace(base_sequence=base, segments=tuple(tails))
        self._write(second)
        return first, second

    def bump_epoch(self, topic: int, partition: int) -> None:
        """From now on the partition is numbered from 0 in the next producer epoch."""
        epoch, _ = self._sequences.current(topic, partition)
        self._sequences.store_next_sequence(topic, partition, 0, epoch + 1)

    def renumber(self, batch: SentBatch) -> SentBatch:
        """Number a batch of an older epoch anew in the partition's present one."""
        epoch, sequence = self._sequences.current(batch.topic, batch.partition)
        batch = batch._replace(epoch=epoch, base_sequence=sequence)
        self._write(batch)
        self._store_next(batch)
        return batch

    def is_outdated(self, batch: SentBatch) -> bool:
        """Whether the partition's epoch was bumped after the batch was numbered."""
        return self.idempotent and batch.epoch != self._sequences.current(batch.topic, batch.partition)[0]

    def note_recovered(self, batch: SentBatch) -> None:
        """A batch found in the slab: the next sequence number is behind it, if a crash came before it was stored."""
        epoch, following = self._numbers(batch.topic, batch.partition)
        if self.idempotent and epoch == batch.epoch:
            end = next_sequence(batch.base_sequence, batch.records)
            if (end - following) & 0x7FFFFFFF < 1 << 30:
                self._sequences.store_next_sequence(batch.topic, batch.partition, end, epoch)

    def count_attempt(self, batch: SentBatch) -> int:
        """One more failed attempt of a batch; how many there are.  They stand with its first record, up to 255."""
        first = batch.segments[0]
        at = self._slab.chunk_at(first.chunk)
        is_split = self._slab.words[(at + first.run) >> 2] & 0xFF == State.SPLIT
        at += first.first + lay.RECORD_ATTEMPTS if is_split else first.run + lay.RUN_ATTEMPTS
        self._slab.view[at] = attempts = min(255, self._slab.view[at] + 1)
        return attempts
