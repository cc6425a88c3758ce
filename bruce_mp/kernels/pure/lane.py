"""A lane: a chunk that an input is filling, with the open run at its end.

The lane writes records behind the open run.  Then it makes all of them part of the run with one 8-byte store of the
run's record count and size, so a crash leaves all of them or none in the run.  Before that store the lane updates the
run's sums (payload sizes and the smallest timestamp) and the chunk's last arrival number.  So after a crash the sums
and the last arrival number may include records that are not part of the run, but they never lack a record of the run.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.kernels.pure.parse import ParsedMessage
    from bruce_mp.kernels.pure.timestamps import TimestampWindow
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.handover_tickets import HandoverTickets

__all__ = ["Lane", "LaneHeader", "record_size"]

_RECORD: Final = Struct("<4xB2xBIII10sHqQ")
"""`layout.RECORD` with the fields of a new record: flags, options, key length, value length, partition key,
_UNASSIGNED, record headers length, timestamp, arrival number.
"""
_UNASSIGNED: Final = b"\xff" * 10  # -1 as the partition, the sequence number and the epoch
_PADDING: Final = tuple(bytes(-length & 7) for length in range(8))  # to 8 bytes, for each payload length modulo 8

assert _RECORD.size == lay.RECORD_HEADER


class LaneHeader(NamedTuple):
    """The fields that the headers of all runs of a lane share; `name` is empty unless `topic`, the number, is 0."""

    topic: int
    name: bytes
    flags: int
    partition_index: int
    partition_count: int

    @property
    def size(self) -> int:
        """Return the number of bytes from the start of a run to its first record."""
        return lay.RUN_HEADER + lay.align(len(self.name))


def record_size(message: ParsedMessage) -> int:
    """Return the size of the message's record in bytes."""
    *_, key_at, key_end, value_at, value_end, headers_at, end = message
    return lay.align(lay.RECORD_HEADER + key_end - key_at + value_end - value_at + end - headers_at)


class Lane:
    """A lane with its open chunk or span, and the open run at its end.

    `chunk` is the first chunk of the span; -1 = the lane has none.  `runs` is the number of runs in the span, `records`
    the number of records in the open run; 0 = no run is open.  `due_ms` is the steady time at which the open run must
    be published; 0 = at once, or no run is open.  `used_ms` is the steady time of the last append.
    """

    __slots__ = (
        "_end", "_generation", "_largest_payload", "_limit", "_min_timestamp", "_payload", "_run_at", "_slab", "_start",
        "chunk", "due_ms", "header", "keeps_timestamps", "records", "runs", "span", "used_ms", "window",
    )  # fmt: skip

    def __init__(self, slab: Slab, header: LaneHeader) -> None:
        self._slab = slab
        self.header = header
        self.chunk = -1
        self.span = 1
        self.runs = self.records = 0
        self.due_ms = self.used_ms = 0
        self.window: TimestampWindow | None = None
        """The window in which the timestamps of the lane's records must lie; None = any timestamp is admitted."""
        self.keeps_timestamps = False
        """True if the client of the next records has exempted their timestamps from clamping (`timestamps.py`)."""
        # File offsets, in this order: start of the chunk, start and end of its last run, end of the span.
        self._start = self._run_at = self._end = self._limit = 0
        self._generation = 0
        self._payload = self._largest_payload = self._min_timestamp = 0  # of the open run

    def use_chunk(self, chunk: int, span: int) -> None:
        """Let the lane fill a span of `span` empty chunks, of which `chunk` is the first."""
        self.chunk, self.span = chunk, span
        self._start = self._slab.chunk_at(chunk)
        self._generation = self._slab.words[(self._start + lay.CHUNK_GENERATION) >> 2]
        self._end, self._limit = self._start + lay.CHUNK_HEADER, self._start + span * lay.CHUNK_BYTES
        self.runs = 0

    def adopt_chunk(self, donor: Lane) -> None:
        """Move the chunk of `donor`, another lane without an open run, to this lane."""
        self.chunk, self.span, self.runs = donor.chunk, donor.span, donor.runs
        self._start, self._generation = donor._start, donor._generation
        self._end, self._limit = donor._end, donor._limit
        donor.chunk = -1

    def has_room_for_run(self, size: int) -> bool:
        """Return True if a new run of `size` bytes fits behind the chunk's last run."""
        return self.chunk >= 0 and size <= self._limit - self._end

    def has_room(self, message: ParsedMessage) -> bool:
        """Return True if the lane's chunk has room for a message in the open run, or in a new run if none is open."""
        if self.chunk < 0:
            return False
        return record_size(message) <= self._limit - self._end - (0 if self.records else self.header.size)

    def append(self, buffer: memoryview, messages: Sequence[ParsedMessage], start: int, now_ms: int) -> int:
        """Append the messages from index `start` while they fit; return the index behind the last appended message.

        The message at `start` must fit.  `buffer` has the bytes of the messages.
        """
        if not self.records:
            self._open_run(messages[start], now_ms)
        parts: list[bytes | memoryview] = []
        flags, room = self.header.flags, self._limit - self._end
        keeps_option = lay.OPTION_KEEPS_TIMESTAMP if self.keeps_timestamps else 0
        payloads: list[int] = []
        for message in messages[start:]:
            arrival, timestamp, partition_key, options, key_at, key_end, value_at, value_end, headers_at, end = message
            lengths = key_end - key_at, value_end - value_at
            headers_length = end - headers_at
            payload = sum(lengths) + headers_length
            room -= (lay.RECORD_HEADER + payload + 7) & -8  # `lay.align`, without the cost of a call
            if room < 0:
                break
            fields = (*lengths, partition_key, _UNASSIGNED, headers_length, timestamp, arrival)
            parts.append(_pack_record(flags, options | keeps_option, *fields))
            if lengths[0]:
                parts.append(buffer[key_at:key_end])
            parts += (buffer[value_at:value_end], buffer[headers_at:end], _PADDING[payload & 7])
            payloads.append(payload)
        stop = start + len(payloads)
        self._payload += sum(payloads)
        self._largest_payload = max(self._largest_payload, *payloads)
        self._min_timestamp = min(self._min_timestamp, *[message[1] for message in messages[start:stop]])
        self._commit(b"".join(parts), len(payloads), last_arrival=messages[stop - 1][0])
        return stop

    def _open_run(self, first: ParsedMessage, now_ms: int) -> None:
        """Write the header of a run without records; its first record will be `first`."""
        header, at = self.header, self._end
        arrival, timestamp, *_ = first
        count = retries = payload = reason = reserved = largest_payload = ticket = 0
        partition = sequence = epoch = -1
        fields = (
            RunState.OPEN, self._generation, count, header.size, header.topic, partition, sequence, epoch,
            header.flags, retries, now_ms, payload, header.partition_index, header.partition_count, len(header.name),
            reason, reserved, largest_payload, lay.RUN_MAGIC, arrival, timestamp, ticket,
        )  # fmt: skip
        lay.RUN.pack_into(self._slab.view, at, *fields)
        if header.name:
            padded = header.name.ljust(header.size - lay.RUN_HEADER, b"\0")
            self._slab.view[at + lay.RUN_HEADER : at + header.size] = padded
        self._run_at, self._end = at, at + header.size
        self._payload = self._largest_payload = 0
        self._min_timestamp = timestamp
        self.runs += 1
        self._slab.words[(self._start + lay.CHUNK_RUNS) >> 2] = self.runs

    def _commit(self, data: bytes, record_count: int, last_arrival: int) -> None:
        """Append `data`, the bytes of `record_count` records, to the open run."""
        view, words, longs, run_at = self._slab.view, self._slab.words, self._slab.longs, self._run_at
        view[self._end : self._end + len(data)] = data
        self._end += len(data)
        self.records += record_count
        longs[(self._start + lay.CHUNK_LAST_ARRIVAL) >> 3] = last_arrival
        words[(run_at + lay.RUN_PAYLOAD) >> 2] = self._payload
        words[(run_at + lay.RUN_LARGEST) >> 2] = self._largest_payload
        self._slab.store_signed(run_at + lay.RUN_MIN_TIMESTAMP, self._min_timestamp)
        longs[(run_at + lay.RUN_COUNT) >> 3] = self.records | (self._end - run_at) << 32  # count and size in one store

    def close_run(self, tickets: HandoverTickets) -> Segment:
        """Hand the open run over to the router, and return the segment of all its records."""
        tickets.hand_over(self._run_at)
        run = self._run_at - self._start
        segment = Segment(self.chunk, self._generation, run, run + self.header.size, self.records, self._payload)
        self.records = self.due_ms = 0
        return segment


_pack_record: Final = _RECORD.pack
