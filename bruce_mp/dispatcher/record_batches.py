"""Building, numbering, splitting and renumbering of a partition's record batches; the slab stores all results.

A built batch keeps its partition, its sequence numbers and its boundaries, so that a retry equals the batch that the
broker may have.  To make a crash harmless, the dispatcher first stores the sequence numbers in the headers of the
records, then the state words of the records, then the partition's next sequence number; only then it sends the request.
The dispatcher splits a batch, or renumbers it within a producer epoch, only if the broker has certainly not written it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD, UNLIMITED
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS, Move
from bruce_mp.slab.runs import NO_SEQUENCE, next_sequence, raise_damage

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Sequence

    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import PartitionTable

__all__ = ["BatchBuilder"]

LAST_EPOCH: Final = lay.LAST_EPOCH
"""The largest producer epoch.  Batches of a partition with this epoch get no sequence numbers.

A partition gets this epoch if it has used all smaller epochs or its broker accepts no sequence numbers.  After a start
of the daemon with a new producer id, its batches get sequence numbers again.
"""


class BatchBuilder:
    """Builds and changes the record batches of a dispatcher; `slot` is the dispatcher slot."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        partition_table: PartitionTable,
        slot: int,
        *,
        max_bytes: int,
        idempotent: bool,
    ) -> None:
        self._slab = slab
        self._row = row
        self._partition_table = partition_table
        queued, in_flight = state_word(RunState.QUEUED, slot), state_word(RunState.IN_FLIGHT, slot)
        returned, returned_sent = state_word(RunState.RETURNED, slot), state_word(RunState.RETURNED_SENT, slot)
        self._build_move = Move(queued, in_flight, lay.FLOW_SENT)
        self._return_move = Move(queued, returned, lay.FLOW_RETURNED)
        self._return_built_move = Move(in_flight, returned_sent, lay.FLOW_RETURNED_SENT)
        self.max_bytes = max_bytes
        """The maximum size of a new batch in bytes: its payload and `SIZE_OVERHEAD` for each record."""
        self.idempotent = idempotent
        """True if new batches get sequence numbers, because the cluster gave a producer id."""
        self.broker_deduplicates = idempotent
        """True if the broker detects repeated batches; a broker that is older than others of its cluster may not."""

    def build(
        self, queues: Iterable[PartitionQueue], contents: Iterable[tuple[Segment, ...]]
    ) -> list[BuiltBatch | None]:
        """Build a batch for each queue and its content: assign sequence numbers and store IN_FLIGHT.

        For a content with a damaged segment, the list has None.
        """
        batches = (
            (queue.entry_offset or self._find_entry(queue), queue.topic, queue.partition, segments)
            for queue, segments in zip(queues, contents, strict=True)
        )
        return kernels.assign_sequences(self._slab, self._row, batches, self._build_move, is_numbered=self.idempotent)

    def _find_entry(self, queue: PartitionQueue) -> int:
        """Set `queue.entry_offset` and return it; the offset stays valid while the topic exists."""
        queue.entry_offset = self._partition_table.entry_at(queue.topic, queue.partition)
        return queue.entry_offset

    def put_in_flight(self, built: Iterable[tuple[PartitionQueue, BuiltBatch]]) -> None:
        """Append batches that are about to be sent to the batches in flight of their queues."""
        for queue, batch in built:
            queue.backoff_end = 0.0  # the queue's back-off is over
            if queue.gap_end is not None:
                self.set_flag(batch, lay.FLAG_AFTER_GAP)
            queue.in_flight.append(batch)

    def return_to_router(self, segments: Sequence[Segment], *, is_built: bool) -> None:
        """Store in the slab that segments go back to the router; `is_built` is True for segments of built batches."""
        if len(self._row.move(segments, self._return_built_move if is_built else self._return_move)) != len(segments):
            raise_damage(self._slab, segments)

    def _next_numbers(self, topic: int, partition: int) -> tuple[int, int]:
        """Return (epoch, sequence number) for the next batch of a partition; (-1, -1) if the batch gets no numbers."""
        epoch, sequence = self._partition_table.epoch_and_sequence(topic, partition)
        return (epoch, sequence) if self.idempotent and epoch < LAST_EPOCH else (NO_SEQUENCE, NO_SEQUENCE)

    def pop_content(self, ready: deque[Segment], room: int) -> tuple[tuple[Segment, ...], int]:
        """Remove the content of one batch from the front of `ready`; return its segments and their payload in bytes.

        `ready` must not be empty.  The payload is at most `room`, and with its overhead at most `max_bytes`.  But at
        least one record is removed, even if it is larger or `room` is 0.
        """
        segments: list[Segment] = []
        bytes_left, total_payload = self.max_bytes, 0
        while ready and room and len(segments) < MAX_SETTLED_SEGMENTS:  # one transaction must settle the batch
            segment = ready[0]
            payload = segment.payload
            bytes_left -= payload + SIZE_OVERHEAD * segment.records
            if bytes_left < 0 or total_payload + payload > room:
                break
            segments.append(ready.popleft())
            total_payload += payload
        if not segments:
            segments.append(self._split_first(ready, room))
            total_payload = segments[0].payload
        return tuple(segments), total_payload

    def _split_first(self, ready: deque[Segment], room: int) -> Segment:
        """Remove the part of the first segment that fits, or one record if no record fits."""
        segment = ready.popleft()
        # `split_at` limits only the payload.  So estimate the number of records that fit, and subtract their overhead.
        size = segment.payload + SIZE_OVERHEAD * segment.records
        record_count = max(1, segment.records * self.max_bytes // size) if room else 1
        max_payload = min(room, self.max_bytes - SIZE_OVERHEAD * record_count)
        head, rest = kernels.split_at(self._slab, segment, record_count, max_payload)
        if head is None:  # the first record is larger than `max_payload`
            head, rest = kernels.split_at(self._slab, segment, 1, UNLIMITED)
        assert head is not None
        if rest is not None:
            ready.appendleft(rest)
        return head

    def write_sequences(self, batch: BuiltBatch) -> None:
        """Store the sequence numbers of a batch in the headers of its records; mark the start of the batch."""
        numbers = (batch.partition, batch.base_sequence, batch.epoch)
        kernels.write_sequence(self._slab, batch.segments, *numbers, opens_batch=True)

    # --- batches that the broker has not written ----------------------------------------------------------------------

    def halve(self, batch: BuiltBatch) -> tuple[BuiltBatch, BuiltBatch]:
        """Split a batch of at least two records in half; each record keeps its sequence number."""
        heads, tails = self._split_after(batch.segments, batch.records // 2)
        first = batch._replace(segments=tuple(heads))
        base = next_sequence(batch.base_sequence, first.records)
        second = batch._replace(base_sequence=base, segments=tuple(tails))
        self.write_sequences(second)
        if self.has_flag(first, lay.FLAG_IN_DOUBT):
            self.set_flag(second, lay.FLAG_IN_DOUBT)
        return first, second

    def remove_records(self, batch: BuiltBatch, indices: Iterable[int]) -> tuple[BuiltBatch | None, list[Segment]]:
        """Remove records from a batch by index; return (rest of the batch, segments of the removed records).

        The rest is None if no record is left.  The caller must number the rest with `write_sequences` before it settles
        the removed records, because a recovery must not find a batch with a gap in its numbers.
        """
        kept: list[Segment] = []
        removed: list[Segment] = []
        rest, rest_start = list(batch.segments), 0
        for start, stop in _ranges(indices, batch.records):
            before_range, rest = self._split_after(rest, start - rest_start)
            in_range, rest = self._split_after(rest, stop - start)
            kept += before_range
            removed += in_range
            rest_start = stop
        kept += rest
        return (batch._replace(segments=tuple(kept)) if kept else None), removed

    def clear_sequences(self, segment: Segment, partition: int) -> None:
        """Clear the sequence numbers of a damaged or refused segment; a recovery must not count them as used."""
        with suppress(SlabError):  # damaged headers of records in a split run keep their numbers
            kernels.write_sequence(self._slab, [segment], partition, NO_SEQUENCE, NO_SEQUENCE, opens_batch=True)

    def _split_after(self, segments: Iterable[Segment], record_count: int) -> tuple[list[Segment], list[Segment]]:
        """Return (segments of the first `record_count` records, segments of the other records)."""
        heads: list[Segment] = []
        tails: list[Segment] = []
        records_left = record_count
        for segment in segments:
            if records_left:
                head, tail = kernels.split_at(self._slab, segment, records_left, UNLIMITED)
            else:
                head, tail = None, segment
            if head is not None:
                heads.append(head)
                records_left -= head.records
            if tail is not None:
                tails.append(tail)
        return heads, tails

    # --- a partition's sequence numbers -------------------------------------------------------------------------------

    def set_next_sequence(self, topic: int, partition: int, sequence: int) -> None:
        """Set the partition's next sequence number in its present producer epoch."""
        epoch, _ = self._partition_table.epoch_and_sequence(topic, partition)
        self._partition_table.store_next_sequence(topic, partition, sequence, epoch)

    def bump_epoch(self, topic: int, partition: int) -> None:
        """Continue the partition at sequence number 0 of the next producer epoch."""
        epoch, _ = self._partition_table.epoch_and_sequence(topic, partition)
        self._partition_table.store_next_sequence(topic, partition, 0, min(epoch + 1, LAST_EPOCH))

    def stop_numbering(self, topic: int, partition: int) -> None:
        """Send the partition's further batches without sequence numbers."""
        self._partition_table.store_next_sequence(topic, partition, 0, LAST_EPOCH)

    def is_numbered(self, topic: int, partition: int) -> bool:
        return self._next_numbers(topic, partition)[1] >= 0

    def renumber(self, batch: BuiltBatch) -> BuiltBatch:
        """Give a batch the next sequence numbers of its partition."""
        epoch, sequence = self._next_numbers(batch.topic, batch.partition)
        batch = batch._replace(epoch=epoch, base_sequence=sequence)
        self.write_sequences(batch)
        if sequence >= 0:
            following = next_sequence(sequence, batch.records)
            self._partition_table.store_next_sequence(batch.topic, batch.partition, following, epoch)
        return batch

    def is_outdated(self, batch: BuiltBatch) -> bool:
        """Return True if the next batch of the partition would get another producer epoch than `batch` has."""
        return batch.epoch != self._next_numbers(batch.topic, batch.partition)[0]

    def advance_sequence(self, batch: BuiltBatch) -> None:
        """Advance the partition's next sequence number past a recovered batch, if a crash prevented this before."""
        epoch, stored_sequence = self._next_numbers(batch.topic, batch.partition)
        if batch.base_sequence >= 0 and epoch == batch.epoch:
            following = next_sequence(batch.base_sequence, batch.records)
            distance = (following - stored_sequence) & 0x7FFFFFFF  # sequence numbers wrap at 2**31
            if distance < 1 << 30:  # less than half of all numbers: `following` is not before `stored_sequence`
                self._partition_table.store_next_sequence(batch.topic, batch.partition, following, epoch)

    # --- the first header of a batch ---------------------------------------------------------------------------------

    def count_retry(self, batch: BuiltBatch) -> int:
        """Count a retry in the batch's first header, and return the number of retries, at most 255 (one byte)."""
        offset = self._first_header_offset(batch, lay.RUN_RETRIES, lay.RECORD_RETRIES)
        self._slab.view[offset] = retry_count = min(255, self._slab.view[offset] + 1)
        return retry_count

    def set_flag(self, batch: BuiltBatch, flag: int) -> None:
        """Set a flag in the batch's first header, where it survives a reroute and the death of the dispatcher."""
        self._slab.view[self._first_header_offset(batch, lay.RUN_FLAGS, lay.RECORD_FLAGS)] |= flag

    def has_flag(self, batch: BuiltBatch, flag: int) -> bool:
        return bool(self._slab.view[self._first_header_offset(batch, lay.RUN_FLAGS, lay.RECORD_FLAGS)] & flag)

    def _first_header_offset(self, batch: BuiltBatch, run_field: int, record_field: int) -> int:
        """Return the slab offset of a field in the first header of a batch.

        This is the header of a run, where the field is at offset `run_field`, or if the run is split, the header of a
        record, where the field is at offset `record_field`.
        """
        segment = batch.segments[0]
        chunk_offset = self._slab.chunk_at(segment.chunk)
        is_split = self._slab.words[(chunk_offset + segment.run) >> 2] & 0xFF == RunState.SPLIT
        return chunk_offset + (segment.first + record_field if is_split else segment.run + run_field)


def _ranges(indices: Iterable[int], end: int) -> list[tuple[int, int]]:
    """Return ranges (start, stop) with the same indices, ascending; ignore negative indices and indices >= `end`."""
    ranges: list[tuple[int, int]] = []
    for index in sorted({index for index in indices if 0 <= index < end}):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges
