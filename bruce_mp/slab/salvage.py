"""Salvage of a slab file in any condition: its readable records and a list of its damage.

`bruce slab` uses this module.  The mapping is private, so stores to it never reach the file.  The only stores finish a
dead process's transaction or repair a count.

`Salvage` skips damaged parts and describes each in a sentence of `damage`.  Memory that was overwritten with zeros
looks like unused memory.  Messages that were there are missed only by the books, which compare the number of received
messages with the messages that are delivered, discarded or in the slab.
"""

from __future__ import annotations

import struct
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import read_each
from bruce_mp.slab.chunks import chunk_headers
from bruce_mp.slab.layout import ChunkState, RunState
from bruce_mp.slab.recovery import arrivals_in_chunks
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import name_of, read_run, records_of, runs_of
from bruce_mp.slab.superblock_repair import open_private
from bruce_mp.slab.tables import TopicTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.slab.runs import Record, Run

__all__ = ["ChunkCounts", "LandedDatagram", "LandingZone", "RecordBody", "Salvage", "SalvagedRecord"]


class SalvagedRecord(NamedTuple):
    """A record in the slab, with the location of its bytes.

    `topic` is empty if the topic's name is lost.  `partition_key` is None for an AnyPartition message.  The key extends
    from file offset `key_at` to `value_at`, the value from `value_at` to `headers_at`, the record headers from
    `headers_at` to `end`.
    """

    chunk: int
    generation: int
    topic: bytes
    state: RunState
    reason: int
    retries: int
    partition_key: int | None
    timestamp: int
    arrival: int
    key_at: int
    value_at: int
    headers_at: int
    end: int
    options: int

    @property
    def was_built(self) -> bool:
        """Return True for a record of a batch that was built, and perhaps sent."""
        return self.state in lay.BUILT


class RecordBody(NamedTuple):
    """The bytes of a record; `headers` has the record headers in the format of clients."""

    key: bytes
    value: bytes
    headers: bytes


class LandedDatagram(NamedTuple):
    """A datagram in the landing zone, at a file offset.

    `is_whole` is False if the datagram was longer than its slot, or if `length` is damaged: larger than a slot.
    """

    arrival: int
    offset: int
    length: int
    is_whole: bool


class LandingZone(NamedTuple):
    """The datagrams in the landing zone.

    `landed_count` is their number; `pending` has the datagrams that were not copied to a chunk, in order of arrival.
    """

    landed_count: int
    pending: list[LandedDatagram]


class ChunkCounts(NamedTuple):
    """Numbers of chunks that are free, in use or without a valid header; a span counts with all its chunks."""

    free: int
    used: int
    damaged: int


class _RunLocation(NamedTuple):
    """The location of a run; locations sort by the arrival of the first record."""

    first_arrival: int
    chunk: int
    offset: int
    generation: int


_HeapEntry = tuple[int, int, SalvagedRecord, "Iterator[SalvagedRecord]"]
"""The arrival number of a record, the number of its run (to sort equal arrival numbers), the record, and an iterator of
the later records of the run."""


class Salvage:
    """The slab at `path`, mapped privately; `damage` grows while the caller reads records.

    `is_live` is True if a running daemon uses the slab, so that results may be outdated.  If `is_live` is False, the
    constructor finishes unfinished transactions in the private copy, as the next daemon would do in the slab.  Raises
    SlabError for an unreadable file.
    """

    def __init__(self, path: Path, *, is_live: bool) -> None:
        self.slab, self.damage = open_private(path)
        if not is_live:
            self._finish_transactions()
        self._topics = TopicTable(self.slab)
        self._nameless: set[int] = set()
        """The numbers of topics with a lost name that `damage` mentions already."""

    def close(self) -> None:
        self.slab.close()

    def _finish_transactions(self) -> None:
        for index in range(self.slab.geometry.rows):
            try:
                ProcessRow.recover(self.slab, index).counters.release()  # an unreleased view would prevent `close`
            except (SlabError, ValueError, IndexError, struct.error):
                self.damage.append(f"The unfinished transaction of process row {index} is damaged.")

    # --- chunks ------------------------------------------------------------------------------------------------------

    def count_chunks(self) -> ChunkCounts:
        """Count the chunks and add the damaged ones to `damage`."""
        used = sum(span for _, state, span, _ in chunk_headers(self.slab) if state is not ChunkState.FREE)
        # `chunk_headers` yields a damaged header as free with generation 0, like a header that was never written.
        damaged = [
            chunk
            for chunk, state, _, generation in chunk_headers(self.slab)
            if state is ChunkState.FREE
            and not generation
            and self.slab.view[self.slab.chunk_at(chunk) + lay.CHUNK_STATE] != ChunkState.FREE
        ]
        self.damage += [f"Chunk {chunk} has no valid header; it was skipped." for chunk in damaged]
        return ChunkCounts(self.slab.geometry.chunks - used - len(damaged), used, len(damaged))

    # --- records -----------------------------------------------------------------------------------------------------

    def records(self, *, settled: bool = False) -> Iterator[SalvagedRecord]:
        """Yield the records in order of arrival; if `settled` is True, also delivered and discarded records.

        The function merges the runs, each of which is in order.  It reads a run only when the merge reaches the run's
        first record.
        """
        locations = sorted(self._locations(settled=settled), reverse=True)  # so that pop() returns the oldest run
        heap: list[_HeapEntry] = []
        while locations or heap:
            while locations and (not heap or locations[-1].first_arrival <= heap[0][0]):
                self._push(heap, len(locations), self._records_in(locations.pop()))  # a different number for each run
            if heap:
                _, run_number, record, later_records = heappop(heap)
                if settled or record.state not in lay.SETTLED:
                    yield record
                self._push(heap, run_number, later_records)

    @staticmethod
    def _push(heap: list[_HeapEntry], run_number: int, later_records: Iterator[SalvagedRecord]) -> None:
        """Push the next record of a run, if there is one."""
        record = next(later_records, None)
        if record is not None:
            heappush(heap, (record.arrival, run_number, record, later_records))

    def _locations(self, *, settled: bool) -> Iterator[_RunLocation]:
        """Yield the locations of runs, and add damage; leave out delivered and discarded runs unless `settled`."""
        for found in read_each(self.slab, self._runs_in):
            if isinstance(found, str):
                self.damage.append(found)
                continue
            run, location = found
            if settled or run.state not in lay.SETTLED:
                yield location

    def _runs_in(self, chunk: int) -> Iterator[tuple[Run, _RunLocation] | str]:
        """Yield each run of a chunk with its location; if the chunk is damaged, end with a sentence about it."""
        try:
            for offset, run in runs_of(self.slab, chunk):
                yield run, _RunLocation(run.first_arrival, chunk, offset, run.generation)
        except SlabError as error:
            yield f"{error} It was skipped, with the rest of the chunk."

    def _records_in(self, location: _RunLocation) -> Iterator[SalvagedRecord]:
        _, chunk, offset, generation = location
        try:
            run = read_run(self.slab, chunk, offset)
            topic = self._topic_of(chunk, offset, run)
            for record_offset, record in records_of(self.slab, chunk, offset, run):
                yield self._salvage_record(chunk, topic, run, record_offset, record)
        except SlabError as error:
            if self._generation_of(chunk) == generation:  # else a running daemon has reused the chunk
                self.damage.append(f"{error} It was skipped, with the rest of the run.")

    def _generation_of(self, chunk: int) -> int:
        return self.slab.words[(self.slab.chunk_at(chunk) + lay.CHUNK_GENERATION) >> 2]

    def _topic_of(self, chunk: int, offset: int, run: Run) -> bytes:
        if not run.topic:
            return name_of(self.slab, chunk, offset, run)
        try:
            name = self._topics.name_of(run.topic)
        except KeyError:
            name = b""
        if not name and run.topic not in self._nameless:
            self._nameless.add(run.topic)
            self.damage.append(f"The name of topic number {run.topic} is lost; its messages are listed without one.")
        return name

    def _salvage_record(self, chunk: int, topic: bytes, run: Run, offset: int, record: Record) -> SalvagedRecord:
        header = record if run.state is RunState.SPLIT else run
        key_at = self.slab.chunk_at(chunk) + offset + lay.RECORD_HEADER
        value_at = key_at + record.key_length
        headers_at = value_at + record.value_length
        return SalvagedRecord(
            chunk,
            run.generation,
            topic,
            RunState(header.word & 0xFF),
            header.reason,
            header.retries,
            record.partition_key if record.is_partition_key else None,
            record.timestamp,
            record.arrival,
            key_at,
            value_at,
            headers_at,
            headers_at + record.headers_length,
            record.options,
        )

    def read_body(self, record: SalvagedRecord) -> RecordBody | None:
        """Return the bytes of a record; None if a running daemon has reused the memory."""
        view = self.slab.view
        body = RecordBody(
            bytes(view[record.key_at : record.value_at]),
            bytes(view[record.value_at : record.headers_at]),
            bytes(view[record.headers_at : record.end]),
        )
        return body if self._generation_of(record.chunk) == record.generation else None

    # --- landing zone ------------------------------------------------------------------------------------------------

    def read_landing_zone(self) -> LandingZone:
        base = self.slab.longs[landing_zone.base_at(self.slab) >> 3]
        extents = landing_zone.landed_extents(self.slab)
        copied = arrivals_in_chunks(self.slab, base) if extents else frozenset()
        size = self.slab.geometry.landing_slot_size
        landed = (
            LandedDatagram(
                base + slot,
                at,
                length,
                is_whole=length < size or (length == size and not landing_zone.was_truncated(self.slab, slot)),
            )
            for slot, (at, length) in enumerate(extents)
        )
        return LandingZone(len(extents), [datagram for datagram in landed if datagram.arrival not in copied])
