"""Stores to segments (state words, partitions, sequence numbers), and splits of segments.

A *state word* holds the state of a run and the process that holds the run.  When the records of a run get different
partitions or batches, the run becomes SPLIT, and each of its records has its own state word.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab import runs
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.runs import (
    NO_SEQUENCE,
    Segment,
    matching_words,
    next_sequence,
    pack_segments,
    read_run,
    segment_bounds,
    segment_records,
    split_run,
)
from bruce_mp.slab.tables import store_next_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Move, ProcessRow
    from bruce_mp.slab.runs import Record

__all__ = [
    "ClaimedRun",
    "assign_sequences",
    "bind_partition",
    "claim",
    "claim_runs",
    "pack_segments",
    "split_at",
    "split_by_partition",
    "split_by_size",
    "write_sequence",
]

_Label = TypeVar("_Label")

ClaimedRun = tuple[Segment, int, int, int, int, int, int]
"""A segment with its topic number, partition, 1 if its records have partition keys (else 0), number of records, payload
in bytes, and the time at which its run was opened, in ms.  Python unpacks a plain tuple in less time than a class."""


def claim(slab: Slab, segments: Iterable[Segment], expected: int, state_word: int) -> list[Segment]:
    """Store `state_word` in each segment in which all state words are `expected`; return these segments.

    The call skips damaged segments.  The frame that names the segments may come twice, so the call also skips segments
    that are claimed already, that another process holds, or that have an older generation.
    """
    return [segment for segment in segments if _claim_segment(slab, segment, expected, state_word)]


def claim_runs(
    slab: Slab, segments: Iterable[Segment], expected: int, state_word: int
) -> tuple[list[ClaimedRun], list[SlabError]]:
    """Claim segments as `claim` does; return the claimed ones, and an error for each that has a damaged header.

    Each segment must have its partition already.
    """
    claimed: list[ClaimedRun] = []
    errors: list[SlabError] = []
    for segment in claim(slab, segments, expected, state_word):
        try:
            claimed.append(_with_header(slab, segment))
        except SlabError as error:
            errors.append(error)
    return claimed, errors


def _with_header(slab: Slab, segment: Segment) -> ClaimedRun:
    run = read_run(slab, segment.chunk, segment.run)
    partition = run.partition
    if run.state is RunState.SPLIT:  # each record has its own partition
        _, first_record = next(segment_records(slab, segment))
        partition = first_record.partition
    has_key = run.flags & lay.FLAG_PARTITION_KEY
    return segment, run.topic, partition, has_key, segment.records, segment.payload, run.arrived_ms


def _claim_segment(slab: Slab, segment: Segment, expected: int, state_word: int) -> bool:
    indexes = matching_words(slab, segment, expected)
    for index in indexes:
        slab.words[index] = state_word
    return bool(indexes)


def write_sequence(
    slab: Slab, segments: Iterable[Segment], partition: int, sequence: int, epoch: int, *, opens_batch: bool
) -> None:
    """Write the partition and consecutive sequence numbers of segments: see `slab.runs.write_placement`.

    `sequence` is the number of the first record.  If `opens_batch` is set, this record begins a record batch.
    """
    for segment in segments:
        runs.write_placement(slab, segment, partition, sequence, epoch, opens_batch=opens_batch)
        sequence, opens_batch = next_sequence(sequence, segment.records), False


def assign_sequences(
    slab: Slab, row: ProcessRow, batches: Iterable[_Batch], move: Move, *, is_numbered: bool
) -> list[BuiltBatch | None]:
    """Assign to batches the next sequence numbers of their partitions, and move their segments; return the batches.

    The epoch and the base sequence of a batch are NO_SEQUENCE if `is_numbered` is False, or if the partition's epoch is
    LAST_EPOCH, the largest signed 16-bit number.  If a segment of a batch is damaged or its state word is not
    `move.before`, the call stores nothing for the batch, and the list has None instead of the batch.

    For each batch the stores are in this order: partition and sequence numbers, the transaction of the move, the
    partition's next sequence number.  So after a crash each moved batch has its numbers.  The partition's next number
    may be outdated then; the next dispatcher corrects it.
    """
    return [_assign_one(slab, row, batch, move, is_numbered=is_numbered) for batch in batches]


_Batch = tuple[int, int, int, "Sequence[Segment]"]
"""File offset of the partition's entry in the partition table, topic number, partition, segments of the batch."""


def _assign_one(slab: Slab, row: ProcessRow, batch: _Batch, move: Move, *, is_numbered: bool) -> BuiltBatch | None:
    entry_at, topic, partition, segments = batch
    if not all(matching_words(slab, segment, move.before) for segment in segments):
        return None
    _, _, sequence, epoch = lay.PARTITION.unpack_from(slab.view, entry_at)
    if not is_numbered or epoch >= lay.LAST_EPOCH:
        epoch = sequence = NO_SEQUENCE
    write_sequence(slab, segments, partition, sequence, epoch, opens_batch=True)
    row.move(segments, move)
    if sequence >= 0:
        following = next_sequence(sequence, sum(segment.records for segment in segments))
        store_next_sequence(slab, entry_at, following, epoch)
    return BuiltBatch(topic, partition, epoch, sequence, tuple(segments))


def bind_partition(slab: Slab, segments: Iterable[Segment], partitions: Iterable[int]) -> None:
    """Write the partition of each segment.  Sequence numbers follow later, when a batch is built from the segments."""
    for segment, partition in zip(segments, partitions, strict=True):
        runs.write_placement(slab, segment, partition, NO_SEQUENCE, NO_SEQUENCE, opens_batch=False)


def split_by_partition(slab: Slab, segment: Segment, partitions: Sequence[int]) -> list[tuple[int, Segment]]:
    """Split a PartitionKey segment by the partitions of its keys; return a (partition, segment) per part, in order.

    `partitions[uint32(key) mod len(partitions)]` is the partition of a key.  In a run with a partition index, all keys
    have the same value modulo the run's `partition_count`.  So the run needs no split if this count is
    `len(partitions)`.
    """
    segment_bounds(slab, segment)  # raises SlabError for a damaged segment
    run = read_run(slab, segment.chunk, segment.run)
    if run.partition_count == len(partitions) and 0 <= run.partition_index < len(partitions):
        return [(partitions[run.partition_index], segment)]
    return _split_by_label(slab, segment, lambda record: partitions[record.partition_key % len(partitions)])


def split_by_size(slab: Slab, segment: Segment, limit: int) -> list[tuple[bool, Segment]]:
    """Split a segment where the size of its records crosses a limit; return a (is_within, segment) per part, in order.

    `is_within` is True if each record of the part has at most `limit` bytes of payload, False if each has more.
    """
    return _split_by_label(slab, segment, lambda record: record.payload <= limit)


def _split_by_label(slab: Slab, segment: Segment, label_of: Callable[[Record], _Label]) -> list[tuple[_Label, Segment]]:
    """Split a segment where the label of its records changes; return a (label, segment) per part, in order."""
    records = segment_records(slab, segment)
    parts = [(label, list(members)) for label, members in groupby(records, lambda member: label_of(member[1]))]
    if len(parts) == 1:
        return [(parts[0][0], segment)]
    split_run(slab, segment.chunk, segment.run)
    return [(label, _part(segment, members)) for label, members in parts]


def _part(segment: Segment, members: list[tuple[int, Record]]) -> Segment:
    """Return the part of a segment that has the records `members`, each with its offset in the chunk."""
    payload = sum(record.payload for _, record in members)
    return segment._replace(first=members[0][0], records=len(members), payload=payload)


def split_at(slab: Slab, segment: Segment, max_records: int, max_payload: int) -> tuple[Segment | None, Segment | None]:
    """Split a segment into a head of at most `max_records` records and `max_payload` bytes of payload, and the rest.

    Either part is None if it would have no records.  If both parts have records, the run becomes SPLIT.
    """
    head: list[tuple[int, Record]] = []
    rest: list[tuple[int, Record]] = []
    payload_left = max_payload
    for member in segment_records(slab, segment):
        payload_left -= member[1].payload
        is_in_head = payload_left >= 0 and len(head) < max_records and not rest
        (head if is_in_head else rest).append(member)
    if not rest or not head:
        return (segment, None) if head else (None, segment)
    split_run(slab, segment.chunk, segment.run)
    return _part(segment, head), _part(segment, rest)
