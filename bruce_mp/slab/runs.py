"""Runs, records and segments in the slab.

A *run* is a sequence of records that an input hands over as one unit; `layout.py` has its format.  A `Segment` names
neighboring records of one run by their location and by the chunk's *generation*, which changes with each reuse of the
chunk.  Frames and queues contain segments; only a state word tells which process owns the records.  Before a function
reads a segment's records, it compares the segment with the headers of the chunk and the run.  It raises SlabError if
they disagree: the segment or the slab is damaged, or the chunk has been reused.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from bruce_mp.errors import SlabError
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.slab.file import Slab

__all__ = [
    "NO_SEQUENCE",
    "SEGMENT",
    "Record",
    "Run",
    "Segment",
    "arrived_ms",
    "is_current",
    "matching_words",
    "name_of",
    "next_sequence",
    "pack_segments",
    "raise_damage",
    "read_record",
    "read_run",
    "records_of",
    "runs_of",
    "segment_bounds",
    "segment_of",
    "segment_records",
    "segment_words",
    "split_run",
    "unpack_segments",
    "write_placement",
]

SEGMENT: Final = Struct("<IIIIII")
"""The fields of `Segment`."""


class Segment(NamedTuple):
    """A number of neighboring records of one run.

    `run` and `first` are offsets in the chunk, of the run and of the first record.  `records` is the number of records,
    `payload` the number of bytes in their keys, values and record headers.
    """

    chunk: int
    generation: int
    run: int
    first: int
    records: int
    payload: int


class Run(NamedTuple):
    """A run's header, with the fields of `layout.RUN`; `records` is RUN_COUNT, the number of records."""

    word: int
    generation: int
    records: int
    size: int
    topic: int
    partition: int
    sequence: int
    epoch: int
    flags: int
    retries: int
    arrived_ms: int
    payload: int
    partition_index: int
    partition_count: int
    name_length: int
    reason: int
    reserved: int
    largest_payload: int
    magic: int
    first_arrival: int
    min_timestamp: int
    ticket: int

    @property
    def state(self) -> RunState:
        return RunState(self.word & 0xFF)

    @property
    def body_offset(self) -> int:
        """Return the number of bytes from the start of the run to its first record."""
        return lay.RUN_HEADER + lay.align(self.name_length)


class Record(NamedTuple):
    """A record's header, with the fields of `layout.RECORD`."""

    word: int
    flags: int
    retries: int
    reason: int
    options: int
    key_length: int
    value_length: int
    partition_key: int
    partition: int
    sequence: int
    epoch: int
    headers_length: int
    timestamp: int
    arrival: int

    @property
    def is_partition_key(self) -> bool:
        """Return True for a PartitionKey message, False for an AnyPartition message.

        FLAG_PARTITION_KEY is also set for an AnyPartition message with a record key that was hashed to a partition key.
        """
        return bool(self.flags & lay.FLAG_PARTITION_KEY) and not self.options & lay.OPTION_HASHED

    @property
    def payload(self) -> int:
        """Return the number of bytes in key, value and record headers."""
        return self.key_length + self.value_length + self.headers_length

    @property
    def size(self) -> int:
        """Return the size of the record in its run, in bytes."""
        return lay.align(lay.RECORD_HEADER + self.payload)


def pack_segments(segments: Iterable[Segment]) -> bytes:
    """Encode segments for a frame, 24 bytes each."""
    pack = SEGMENT.pack
    return b"".join([pack(*segment) for segment in segments])


def unpack_segments(data: bytes | memoryview) -> list[Segment]:
    """Decode the result of `pack_segments`.  Raises SlabError when the length is not a multiple of 24."""
    if len(data) % SEGMENT.size:
        raise SlabError(f"A frame of segments has {len(data)} bytes, which is not a multiple of {SEGMENT.size}.")
    new = tuple.__new__  # takes a third less time than `Segment._make`
    return [new(Segment, fields) for fields in SEGMENT.iter_unpack(data)]


def is_current(slab: Slab, segment: Segment) -> bool:
    """Return True if the segment's chunk still has the segment's generation."""
    return slab.words[(slab.chunk_at(segment.chunk) + lay.CHUNK_GENERATION) >> 2] == segment.generation


def arrived_ms(slab: Slab, segment: Segment) -> int:
    """Return the steady time at which the segment's run was opened.

    If an earlier daemon opened the run, the time may differ from this daemon's steady clock by a constant.
    """
    return slab.longs[(slab.chunks_at + segment.chunk * lay.CHUNK_BYTES + segment.run + lay.RUN_ARRIVED_MS) >> 3]


def read_run(slab: Slab, chunk: int, offset: int) -> Run:
    """Return the header of the run at byte `offset` of `chunk`.  Raises SlabError for an invalid run."""
    at, limit = _locate_run(slab, chunk, offset)
    run = Run._make(lay.RUN.unpack_from(slab.view, at))
    body_size = run.size - run.body_offset
    is_size_valid = not run.size & 7 and run.size <= limit - at and run.records * lay.RECORD_HEADER <= body_size
    if run.word & 0xFF not in _KNOWN_STATES or not is_size_valid:
        raise SlabError(f"The run at byte {offset} of chunk {chunk} is damaged.")
    return run


_KNOWN_STATES: Final = frozenset(RunState)


def _locate_run(slab: Slab, chunk: int, offset: int) -> tuple[int, int]:
    """Return two file offsets: the start of a run, and the end of its chunk or span.

    Raises SlabError if the chunk has no run at `offset`.  The run's size and state are not checked: see `read_run`.
    """
    at = slab.chunk_at(chunk)
    words = slab.words
    span = words[(at + lay.CHUNK_SPAN) >> 2]
    if words[at >> 2] != lay.CHUNK_MAGIC or not 1 <= span <= slab.geometry.chunks - chunk:
        raise SlabError(f"Chunk {chunk} has no valid header.")
    limit = at + span * lay.CHUNK_BYTES
    run_at = at + offset
    if offset & 7 or offset < lay.CHUNK_HEADER or run_at > limit - lay.RUN_HEADER:
        raise SlabError(f"There is no run at byte {offset} of chunk {chunk}.")
    is_of_present_use = words[(run_at + lay.RUN_GENERATION) >> 2] == words[(at + lay.CHUNK_GENERATION) >> 2]
    if words[(run_at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC or not is_of_present_use:
        raise SlabError(f"The run at byte {offset} of chunk {chunk} is damaged.")
    return run_at, limit


def read_record(slab: Slab, chunk: int, offset: int) -> Record:
    """Return the header of the record at byte `offset` of `chunk`; the caller checks that there is one."""
    return Record._make(lay.RECORD.unpack_from(slab.view, slab.chunks_at + chunk * lay.CHUNK_BYTES + offset))


def runs_of(slab: Slab, chunk: int) -> Iterator[tuple[int, Run]]:
    """Yield (offset in the chunk, header) of the runs of a chunk, in order.  Raises SlabError at a damaged run."""
    at = slab.chunk_at(chunk)
    offset = lay.CHUNK_HEADER
    for _ in range(slab.words[(at + lay.CHUNK_RUNS) >> 2]):
        run = read_run(slab, chunk, offset)
        yield offset, run
        offset += run.size


def name_of(slab: Slab, chunk: int, offset: int, run: Run) -> bytes:
    """Return the topic name behind a run's header; empty if the topic had a number when the run was opened."""
    at = slab.chunk_at(chunk) + offset + lay.RUN_HEADER
    return bytes(slab.view[at : at + run.name_length])


def records_of(slab: Slab, chunk: int, offset: int, run: Run) -> Iterator[tuple[int, Record]]:
    """Yield (offset in the chunk, header) of a run's records, in order.  Raises SlabError at a damaged record."""
    return _walk_records(slab, chunk, offset + run.body_offset, run.records, offset + run.size)


def segment_records(slab: Slab, segment: Segment) -> Iterator[tuple[int, Record]]:
    """Yield (offset in the chunk, header) of a segment's records.

    Raises SlabError if the segment disagrees with its headers, and at a damaged record.
    """
    at, end = segment_bounds(slab, segment)
    base = slab.chunk_at(segment.chunk)
    return _walk_records(slab, segment.chunk, at - base, segment.records, end - base)


def raise_damage(slab: Slab, segments: Iterable[Segment]) -> NoReturn:
    """Raise the SlabError that explains why one of these segments could not be processed.

    The error describes the first segment that disagrees with its headers.  If there is none, the error says that
    records go past the end of a run.
    """
    for segment in segments:
        segment_bounds(slab, segment)
    raise SlabError("The records of a run go past its end.")


def segment_bounds(slab: Slab, segment: Segment) -> tuple[int, int]:
    """Return two file offsets: the first record of a segment, and the end of the segment's run.

    Raises SlabError if the segment disagrees with its headers.  The records after the first are not checked: a caller
    that reads them checks that each one ends before the end of the run.
    """
    at, limit = _locate_run(slab, segment.chunk, segment.run)
    words = slab.words
    if words[(at + lay.RUN_GENERATION) >> 2] != segment.generation:
        raise SlabError(f"Chunk {segment.chunk} has been reused since generation {segment.generation}.")
    end = at + words[(at + lay.RUN_SIZE) >> 2]
    body = at + lay.RUN_HEADER + lay.align(words[(at + lay.RUN_NAME_LENGTH) >> 2] & 0xFFFF)
    first = at - segment.run + segment.first
    if not body <= first < end <= limit or segment.first & 7 or not segment.records:
        raise SlabError(f"There are no {segment.records} records at byte {segment.first} of chunk {segment.chunk}.")
    return first, end


def _walk_records(slab: Slab, chunk: int, offset: int, count: int, end: int) -> Iterator[tuple[int, Record]]:
    """Yield (offset, header) of `count` records, the first at `offset`; offsets and `end` are in the chunk."""
    for _ in range(count):
        if offset + lay.RECORD_HEADER > end:
            raise SlabError(f"The records of a run of chunk {chunk} go past its end.")
        record = read_record(slab, chunk, offset)
        if offset + record.size > end or record.word & 0xFF not in _RECORD_STATES:
            raise SlabError(f"The record at byte {offset} of chunk {chunk} is damaged.")
        yield offset, record
        offset += record.size


_RECORD_STATES: Final = _KNOWN_STATES - {RunState.SPLIT}


def segment_of(chunk: int, offset: int, run: Run) -> Segment:
    """Return the segment that covers a whole run."""
    return Segment(chunk, run.generation, offset, offset + run.body_offset, run.records, run.payload)


def segment_words(slab: Slab, segment: Segment) -> list[int]:
    """Return the indexes in `slab.words` of a segment's state words.

    A segment of a split run has one for each record; a segment of another run has one, in the header of the run.
    Raises SlabError for a part of an unsplit run, and for a segment that disagrees with its headers.
    """
    first, _ = segment_bounds(slab, segment)
    base = slab.chunks_at + segment.chunk * lay.CHUNK_BYTES
    at = base + segment.run
    if slab.words[at >> 2] & 0xFF == RunState.SPLIT:
        return [(base + offset) >> 2 for offset, _ in segment_records(slab, segment)]
    name_length = slab.words[(at + lay.RUN_NAME_LENGTH) >> 2] & 0xFFFF
    begins_with_run = first == at + lay.RUN_HEADER + lay.align(name_length)
    if not begins_with_run or slab.words[(at + lay.RUN_COUNT) >> 2] != segment.records:
        raise SlabError(f"A segment names a part of a run of chunk {segment.chunk}, which must be split first.")
    return [at >> 2]


def matching_words(slab: Slab, segment: Segment, expected: int) -> list[int]:
    """Return the indexes of a segment's state words if all of them are `expected`, else an empty list.

    The list is also empty for a damaged segment, and for a segment in a chunk that has been reused.
    """
    try:
        indexes = segment_words(slab, segment)
    except SlabError:
        return []
    # Check the generation after the words: if the words match, this process owns the records, so their chunk cannot be
    # reused any more.
    is_match = all(slab.words[index] == expected for index in indexes) and is_current(slab, segment)
    return indexes if is_match else []


def split_run(slab: Slab, chunk: int, offset: int) -> None:
    """Make a run SPLIT: copy the state word, retries, partition and sequence numbers of its header to each record.

    Only the run's owner may call this; a second call changes nothing.  The last store makes the run SPLIT, so after an
    earlier crash the state word in the run's header is still the valid one.
    """
    run = read_run(slab, chunk, offset)
    if run.state is RunState.SPLIT:
        return
    base = slab.chunks_at + chunk * lay.CHUNK_BYTES
    sequence = run.sequence
    # These flags of a run are about the batch that begins with it, so only the first record gets them.
    flags = run.flags & (lay.FLAG_BATCH_START | lay.FLAG_IN_DOUBT | lay.FLAG_AFTER_GAP)
    for record_offset, record in records_of(slab, chunk, offset, run):
        at = base + record_offset
        slab.words[at >> 2] = run.word
        slab.view[at + lay.RECORD_FLAGS] = record.flags & lay.FLAG_PARTITION_KEY | flags
        slab.view[at + lay.RECORD_RETRIES] = run.retries
        _PLACEMENT.pack_into(slab.view, at + lay.RECORD_PARTITION, run.partition, sequence, run.epoch)
        sequence = next_sequence(sequence, 1)
        flags = 0
    slab.words[(base + offset) >> 2] = RunState.SPLIT


_PLACEMENT: Final = Struct("<iih")
"""Partition, sequence number, epoch: neighboring fields in the header of a run and of a record."""

NO_SEQUENCE: Final = -1
"""Epoch and sequence number of batches without sequence numbers."""


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence number `count` records after `sequence`; numbers wrap from 2^31 - 1 to 0.

    NO_SEQUENCE stays NO_SEQUENCE.
    """
    return (sequence + count) & 0x7FFFFFFF if sequence >= 0 else sequence


def write_placement(
    slab: Slab, segment: Segment, partition: int, sequence: int, epoch: int, *, opens_batch: bool
) -> None:
    """Write the partition and sequence numbers of a segment, into the header of its run or, if split, of each record.

    If `opens_batch` is True, the segment's first record begins a batch.  The call clears FLAG_AFTER_GAP and
    FLAG_ADMITTED in these headers.
    """
    view, flag = slab.view, lay.FLAG_BATCH_START if opens_batch else 0
    run_at = slab.chunk_at(segment.chunk) + segment.run
    for index in segment_words(slab, segment):
        at = index << 2
        placement_at, flags_at = (
            (at + lay.RUN_PARTITION, at + lay.RUN_FLAGS)
            if at == run_at
            else (at + lay.RECORD_PARTITION, at + lay.RECORD_FLAGS)
        )
        _PLACEMENT.pack_into(view, placement_at, partition, sequence, epoch)
        view[flags_at] = view[flags_at] & (lay.FLAG_PARTITION_KEY | lay.FLAG_IN_DOUBT) | flag
        sequence, flag = next_sequence(sequence, 1), 0
