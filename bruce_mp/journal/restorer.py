"""Restoring from the journal: fill a new, empty slab with the held messages of a lost one.

No other process uses the slab at that time.  A crash leaves the journal as it was, so the next start begins again.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import StartError
from bruce_mp.kernels import ChunkPool, Lanes, ProcessRow
from bruce_mp.protocol.client.messages import EmptyFields, Message, encode_message
from bruce_mp.protocol.client.record_headers import decode_headers
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import Record
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bruce_mp.journal.journal_file import JournaledRun
    from bruce_mp.kernels import Partitioners
    from bruce_mp.slab.file import Slab

__all__ = ["restore"]

_ROW: Final = lay.ROW_FIRST_INPUT
_SLICE: Final = 4096
"""Number of messages that are appended at once."""
_NO_LINGER: Final = 0


def restore(slab: Slab, runs: Iterable[JournaledRun], partitioners: Partitioners | None) -> int:
    """Append the messages of journaled runs to an empty slab, in order of arrival; return their number.

    `partitioners` are those of the inputs: record keys choose the partitions again.
    Raises StartError if the slab is too small for them.
    """
    appender = _Appender(slab, partitioners)
    for record, frame in merge(*map(_frames, runs), key=lambda pair: pair[0].arrival):
        appender.add(record, frame)
    return appender.finish()


def _frames(run: JournaledRun) -> Iterator[tuple[Record, bytes]]:
    """Yield each record with the frame in which a client would send it."""
    at = 0
    for _ in range(run.records):
        record = Record._make(lay.RECORD.unpack_from(run.data, at))
        yield record, _frame(run.topic, record, run.data[at + lay.RECORD_HEADER : at + record.size])
        at += record.size


def _frame(topic: bytes, record: Record, body: bytes | memoryview) -> bytes:
    value_at, headers_at = record.key_length, record.key_length + record.value_length
    key, value = bytes(body[:value_at]), bytes(body[value_at:headers_at])
    headers = decode_headers(bytes(body[headers_at : headers_at + record.headers_length])) or ()
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return encode_message(Message(topic, value, key, record.timestamp, partition_key, headers, empty))


class _Appender:
    """Appends messages to the lanes of the datagram input, slice by slice."""

    def __init__(self, slab: Slab, partitioners: Partitioners | None) -> None:
        self._slab = slab
        pool, topics = ChunkPool(slab, _ROW), TopicTable(slab)
        self._lanes = Lanes(slab, pool, topics, lambda _: _NO_LINGER, partitioners=partitioners)
        self._slice: list[bytes] = []
        self._keeps_timestamps = False
        self._any_partition = self._partition_key = 0

    def add(self, record: Record, frame: bytes) -> None:
        keeps_timestamps = bool(record.options & lay.OPTION_KEEPS_TIMESTAMP)
        if len(self._slice) >= _SLICE or keeps_timestamps != self._keeps_timestamps:
            self._append()
        self._keeps_timestamps = keeps_timestamps
        self._slice.append(frame)

    def _append(self) -> None:
        base_at = landing_zone.base_at(self._slab) >> 3
        extents, at = [], 0
        for frame in self._slice:
            extents.append((at, len(frame)))
            at += len(frame)
        ingested = self._lanes.ingest(
            memoryview(b"".join(self._slice)),
            extents,
            self._slab.longs[base_at],
            steady_ms(),
            keeps_timestamps=self._keeps_timestamps,
        )
        if ingested.no_room:
            raise StartError(
                f"The messages of the journal do not fit into the slab {self._slab.path}: raise slab.size by a quarter "
                "above the value that it had when they were received. A full slab had its messages closer together."
            )
        self._slab.longs[base_at] += len(extents)
        self._any_partition += ingested.any_partition
        self._partition_key += ingested.partition_key
        self._slice = []

    def finish(self) -> int:
        """Hand all runs over to the router, and count their messages as received."""
        self._append()
        self._lanes.close_all()
        total = self._any_partition + self._partition_key
        increments: dict[int, int] = {
            Counter.MsgReceived: total,
            Counter.InputAgentProcessAnyPartitionMsg: self._any_partition,
            Counter.InputAgentProcessPartitionKeyMsg: self._partition_key,
        }
        ProcessRow(self._slab, _ROW).settle((), RunState.DELIVERED, 0, increments)
        return total
