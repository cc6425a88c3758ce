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

_DATAGRAM_INPUT: Final = lay.ROW_FIRST_INPUT
_BATCH_MESSAGES: Final = 4096
"""Messages appended at once: few calls, and at most a few MB of memory at usual sizes."""
_NO_LINGER: Final = 0


def restore(slab: Slab, runs: Iterable[JournaledRun], partitioners: Partitioners | None) -> int:
    """Append the messages of journaled runs to an empty slab, in order of arrival; return their number.

    `partitioners` are those of the inputs, because record keys choose the partitions again.  Raise StartError if the
    slab is too small for the messages.
    """
    appender = _Appender(slab, partitioners)
    for record, message in merge(*map(_messages, runs), key=lambda pair: pair[0].arrival):
        appender.add(record, message)
    return appender.finish()


def _messages(run: JournaledRun) -> Iterator[tuple[Record, bytes]]:
    """Yield each record of a run with the bytes of the message as a client sends them."""
    at = 0
    for _ in range(run.records):
        record = Record._make(lay.RECORD.unpack_from(run.data, at))
        yield record, _encode(run.topic, record, run.data[at + lay.RECORD_HEADER : at + record.size])
        at += record.size


def _encode(topic: bytes, record: Record, body: bytes | memoryview) -> bytes:
    value_at, headers_at = record.key_length, record.key_length + record.value_length
    key, value = bytes(body[:value_at]), bytes(body[value_at:headers_at])
    headers = decode_headers(bytes(body[headers_at : headers_at + record.headers_length])) or ()
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return encode_message(Message(topic, value, key, record.timestamp, partition_key, headers, empty))


class _Appender:
    """Appends messages to the lanes of the datagram input, batch by batch."""

    def __init__(self, slab: Slab, partitioners: Partitioners | None) -> None:
        self._slab = slab
        pool, topics = ChunkPool(slab, _DATAGRAM_INPUT), TopicTable(slab)
        self._lanes = Lanes(slab, pool, topics, lambda _: _NO_LINGER, partitioners=partitioners)
        self._batch: list[bytes] = []
        self._keeps_timestamps = False
        """True if all messages of the batch keep their timestamps, False if none does."""
        self._any_partition_count = self._partition_key_count = 0

    def add(self, record: Record, message: bytes) -> None:
        keeps_timestamps = bool(record.options & lay.OPTION_KEEPS_TIMESTAMP)
        if len(self._batch) >= _BATCH_MESSAGES or keeps_timestamps != self._keeps_timestamps:
            self._append_batch()
        self._keeps_timestamps = keeps_timestamps
        self._batch.append(message)

    def _append_batch(self) -> None:
        # The base of the landing zone is the next arrival number of the datagram input.
        next_arrival_index = landing_zone.base_at(self._slab) >> 3
        extents, at = [], 0
        for message in self._batch:
            extents.append((at, len(message)))
            at += len(message)
        ingested = self._lanes.ingest(
            memoryview(b"".join(self._batch)),
            extents,
            self._slab.longs[next_arrival_index],
            steady_ms(),
            keeps_timestamps=self._keeps_timestamps,
        )
        if ingested.no_room:
            raise StartError(
                f"The messages of the journal do not fit into the slab {self._slab.path}: raise slab.size by a quarter "
                "above the value that it had when they were received. Restored messages may need more room than before."
            )
        self._slab.longs[next_arrival_index] += len(extents)
        self._any_partition_count += ingested.any_partition
        self._partition_key_count += ingested.partition_key
        self._batch = []

    def finish(self) -> int:
        """Hand all runs over to the router, and count their messages as received."""
        self._append_batch()
        self._lanes.close_all()
        total = self._any_partition_count + self._partition_key_count
        increments: dict[int, int] = {
            Counter.MsgReceived: total,
            Counter.InputAgentProcessAnyPartitionMsg: self._any_partition_count,
            Counter.InputAgentProcessPartitionKeyMsg: self._partition_key_count,
        }
        no_segments, no_reason = (), 0  # the transaction only raises the counters
        ProcessRow(self._slab, _DATAGRAM_INPUT).settle(no_segments, RunState.DELIVERED, no_reason, increments)
        return total
