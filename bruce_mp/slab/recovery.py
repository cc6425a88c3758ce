"""Recovery from the slab: the records that a starting process takes over from its predecessor.

Runs of records stay in the slab when a process dies.  The state word of a run or record contains its state and its
*holder*, which identifies the process that owns the records.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs, read_each, until_damage
from bruce_mp.slab.chunks import last_arrival
from bruce_mp.slab.handover_tickets import HandoverTickets, last_tickets
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import (
    NO_SEQUENCE,
    Segment,
    next_sequence,
    read_run,
    records_of,
    runs_of,
    segment_of,
    segment_records,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Run

__all__ = [
    "BuiltBatch",
    "FoundSegment",
    "arrivals_in_chunks",
    "close_open_runs",
    "inspect_segment",
    "partition_counts_from",
    "rebuild_batches",
    "sweep",
    "sweep_filled",
    "uncounted_records",
]


class FoundSegment(NamedTuple):
    """A segment of records with the same state word, `word`.

    `topic` is the topic number in the run's header.  The other fields come from the run's header as well, unless the
    run is split: then they come from the header of the segment's first record.
    """

    segment: Segment
    word: int
    topic: int
    flags: int
    partition: int
    sequence: int
    epoch: int
    arrival: int

    @property
    def state(self) -> RunState:
        return RunState(self.word & 0xFF)

    @property
    def holder(self) -> int:
        return self.word >> 8


class BuiltBatch(NamedTuple):
    """A record batch that was built and perhaps sent, so its partition, sequence numbers and boundaries are final."""

    topic: int
    partition: int
    epoch: int
    base_sequence: int
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        """The number of records."""
        segments = self.segments
        # Most batches have one segment, for which this takes less time than the sum.
        return segments[0].records if len(segments) == 1 else sum([segment.records for segment in segments])

    @property
    def payload(self) -> int:
        """The number of payload bytes of all records."""
        return sum([segment.payload for segment in self.segments])


def inspect_segment(slab: Slab, segment: Segment) -> FoundSegment:
    """Return a segment with the fields of its headers.  All its records must have the same state word."""
    run = read_run(slab, segment.chunk, segment.run)
    if run.state is not RunState.SPLIT:
        return _with_run_fields(segment, run)
    _, first = next(segment_records(slab, segment))
    return _with_record_fields(segment, run, first)


def _with_run_fields(segment: Segment, run: Run) -> FoundSegment:
    placement = (run.partition, run.sequence, run.epoch)
    return FoundSegment(segment, run.word, run.topic, run.flags, *placement, run.first_arrival)


def _with_record_fields(segment: Segment, run: Run, first: Record) -> FoundSegment:
    placement = (first.partition, first.sequence, first.epoch)
    return FoundSegment(segment, first.word, run.topic, first.flags, *placement, first.arrival)


def sweep(slab: Slab, states: Collection[RunState], holder: int | None = None) -> list[FoundSegment]:
    """Return the segments in one of `states`, in order of arrival; if `holder` is not None, only of this holder."""
    segments = [
        found
        for found in read_each(slab, lambda chunk: _segments_in(slab, chunk, states))
        if found.state in states and (holder is None or found.holder == holder)
    ]
    segments.sort(key=lambda found: found.arrival)
    return segments


def sweep_filled(slab: Slab) -> list[FoundSegment]:
    """Return the runs that inputs have handed over and that no router has claimed, in order of arrival.

    The result is a snapshot: if it includes a run, it also includes all older FILLED runs of the same input.  A sweep
    alone could miss an older run, because inputs hand over runs while it reads the chunks.
    """
    tickets = last_tickets(slab)
    return [found for found in sweep(slab, {RunState.FILLED}) if _is_in_snapshot(slab, found.segment, tickets)]


def _is_in_snapshot(slab: Slab, segment: Segment, tickets: dict[int, int]) -> bool:
    """Return True if the run was handed over before its input's last ticket was read into `tickets`.

    Each run has a larger ticket than the earlier runs of its input.
    """
    at = slab.chunk_at(segment.chunk)
    ticket = slab.longs[(at + segment.run + lay.RUN_TICKET) >> 3]
    return ticket <= tickets.get(slab.owner_of(segment.chunk), 0)


def _segments_in(slab: Slab, chunk: int, states: Collection[RunState]) -> Iterator[FoundSegment]:
    """Yield the segments of a chunk, but skip unsplit runs in other states than `states`.

    The segments of a split run are yielded in any state, so the caller compares their states with `states`.
    """
    at = slab.chunk_at(chunk)
    offset = lay.CHUNK_HEADER
    for _ in range(slab.words[(at + lay.CHUNK_RUNS) >> 2]):
        size = _size_if_skipped(slab, at + offset, states)
        if not size:
            run = read_run(slab, chunk, offset)
            yield from _segments_of_run(slab, chunk, offset, run)
            size = run.size
        offset += size


def _size_if_skipped(slab: Slab, at: int, states: Collection[RunState]) -> int:
    """Return the size of the run at file offset `at` if it is unsplit and in another state than `states`, else 0.

    The sweep skips most runs in this way, so the function reads only three words of a run.
    """
    words = slab.words
    if at + lay.RUN_HEADER > slab.geometry.file_size or words[(at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
        return 0
    state, size = words[at >> 2] & 0xFF, words[(at + lay.RUN_SIZE) >> 2]
    is_skipped = state in _UNSPLIT_STATES and state not in states
    is_size_valid = size >= lay.RUN_HEADER and not size & 7
    return size if is_skipped and is_size_valid else 0


_UNSPLIT_STATES: Final = frozenset(RunState) - {RunState.SPLIT}


def _segments_of_run(slab: Slab, chunk: int, offset: int, run: Run) -> Iterator[FoundSegment]:
    """Yield an unsplit run as one segment, and a split run as segments of records that belong together."""
    if run.state is not RunState.SPLIT:
        yield _with_run_fields(segment_of(chunk, offset, run), run)
        return
    members: list[tuple[int, Record]] = []
    for record_offset, record in until_damage(records_of(slab, chunk, offset, run)):
        if members and not _continues_segment(members[-1][1], record):
            yield _found_segment(chunk, offset, run, members)
            members = []
        members.append((record_offset, record))
    if members:
        yield _found_segment(chunk, offset, run, members)


def _continues_segment(previous: Record, record: Record) -> bool:
    """Return True if a record of a split run belongs to the same segment as the previous record."""
    is_alike = (record.word, record.partition, record.epoch) == (previous.word, previous.partition, previous.epoch)
    is_in_sequence = record.sequence == NO_SEQUENCE or record.sequence == next_sequence(previous.sequence, 1)
    return is_alike and is_in_sequence and not record.flags & lay.FLAG_BATCH_START


def _found_segment(chunk: int, offset: int, run: Run, members: list[tuple[int, Record]]) -> FoundSegment:
    """Return the segment of these records of a split run, given as (offset in the chunk, header)."""
    first_offset, first = members[0]
    payload = sum(record.payload for _, record in members)
    return _with_record_fields(Segment(chunk, run.generation, offset, first_offset, len(members), payload), run, first)


def rebuild_batches(found: Iterable[FoundSegment]) -> list[BuiltBatch]:
    """Return the record batches that were built from these segments; a partition's batches are in order of sequence."""
    batches: list[BuiltBatch] = []
    key = attrgetter("topic", "partition", "epoch")
    for (topic, partition, epoch), members in groupby(sorted(found, key=key), key=key):
        for batch in _split_at_batch_starts(_sort_by_sequence(list(members))):
            segments = tuple(member.segment for member in batch)
            batches.append(BuiltBatch(topic, partition, epoch, batch[0].sequence, segments))
    return batches


def _sort_by_sequence(members: list[FoundSegment]) -> list[FoundSegment]:
    """Sort by sequence number, also where the numbers wrap around to 0."""
    members.sort(key=lambda member: member.sequence)
    half_range = 1 << 30  # half of the numbers; a partition's batches in flight have far fewer records
    has_wrapped = members[-1].sequence - members[0].sequence > half_range
    if has_wrapped:
        # Shift each number by half of the range: numbers before the wrap become small, numbers after it large.
        members.sort(key=lambda member: next_sequence(member.sequence, half_range))
    return members


def _split_at_batch_starts(members: list[FoundSegment]) -> Iterator[list[FoundSegment]]:
    batch: list[FoundSegment] = []
    for member in members:
        if batch and member.flags & lay.FLAG_BATCH_START:
            yield batch
            batch = []
        batch.append(member)
    yield batch


def close_open_runs(slab: Slab, owner: int) -> None:
    """Hand over the runs that the dead input of row `owner` left open, except the runs of fenced attempts.

    An input appends a record in two steps: it updates the totals in the run's header, then the record count.  It may
    have died in between, so the call computes the totals again.
    """
    own_runs = [(chunk, offset, run) for chunk, offset, run in all_runs(slab) if slab.owner_of(chunk) == owner]
    tickets = HandoverTickets(slab, owner)
    tickets.catch_up(max((run.ticket for _, _, run in own_runs if run.state is not RunState.OPEN), default=0))
    for chunk, offset, run in own_runs:
        is_fenced = slab.words[(slab.chunk_at(chunk) + lay.CHUNK_ATTEMPT) >> 2] != 0
        if run.state is RunState.OPEN and not is_fenced:
            with suppress(SlabError):  # a damaged run stays open, because it cannot be delivered
                _close_run(slab, tickets, chunk, offset, run)


def _close_run(slab: Slab, tickets: HandoverTickets, chunk: int, offset: int, run: Run) -> None:
    """Store the totals of a run in its header, and hand the run over; settle an empty run."""
    records = [record for _, record in records_of(slab, chunk, offset, run)]
    payloads = [record.payload for record in records]
    at = slab.chunk_at(chunk) + offset
    if not records:
        slab.words[at >> 2] = RunState.DELIVERED  # an empty run has nothing to deliver, and its chunk can be reclaimed
        return
    slab.words[(at + lay.RUN_PAYLOAD) >> 2] = sum(payloads)
    slab.words[(at + lay.RUN_LARGEST) >> 2] = max(payloads)
    slab.store_signed(at + lay.RUN_MIN_TIMESTAMP, min(record.timestamp for record in records))
    tickets.hand_over(at)


def arrivals_in_chunks(slab: Slab, first_arrival: int) -> frozenset[int]:
    """Return the arrival numbers of the datagrams that were copied from the landing zone to a chunk.

    Smaller numbers than `first_arrival` are left out.  Settled records are included.
    """
    found = read_each(slab, lambda chunk: _records_from(slab, chunk, first_arrival))
    # Messages from stream connections have larger arrival numbers.
    return frozenset(record.arrival for record in found if record.arrival < lay.ARRIVAL_STREAM)


def partition_counts_from(slab: Slab, first_arrival: int) -> dict[int, int]:
    """Return the partition count that the dead datagram input used for each topic (by number).

    Only runs with a datagram of arrival number `first_arrival` or later are read.  The input chose a message's lane by
    the partition key modulo this count.  Its successor uses the same counts, so that messages of one key stay in one
    lane, in order.
    """
    return dict(read_each(slab, lambda chunk: _partition_counts_in(slab, chunk, first_arrival)))


def _partition_counts_in(slab: Slab, chunk: int, first_arrival: int) -> Iterator[tuple[int, int]]:
    if not first_arrival <= last_arrival(slab, chunk) < lay.ARRIVAL_STREAM:
        return
    for offset, run in runs_of(slab, chunk):
        if run.partition_count:
            records = records_of(slab, chunk, offset, run)
            if any(record.arrival >= first_arrival for _, record in records):
                yield run.topic, run.partition_count


def uncounted_records(slab: Slab, owner: int, counted: int) -> list[Record]:
    """Return the records that the dead stream input of row `owner` appended but did not count, settled ones included.

    `counted` is the number of messages that it had counted as received.  Messages are numbered from 0, so message
    `counted` is the first uncounted one.
    """
    first = lay.stream_arrival(counted, source=0)  # the smallest number that message `counted` can have
    found = read_each(slab, lambda chunk: _records_from(slab, chunk, first) if slab.owner_of(chunk) == owner else ())
    return list(found)


def _records_from(slab: Slab, chunk: int, first_arrival: int) -> Iterator[Record]:
    """Yield the records of a chunk with arrival numbers of at least `first_arrival`."""
    if last_arrival(slab, chunk) < first_arrival:
        return
    for offset, run in runs_of(slab, chunk):
        yield from (record for _, record in records_of(slab, chunk, offset, run) if record.arrival >= first_arrival)
