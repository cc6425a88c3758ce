"""Restoring from the journal: fill a new, empty slab with the held messages of a lost one.

No other process uses the slab at that time.  A crash leaves the journal as it was, so the next start begins again.
"""

from __future__ import annotations

from heapq import merge
from itertools import accumulate, groupby, islice
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
    from bruce_mp.kernels import Ingested, Partitioners
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
    pool, topics = ChunkPool(slab, _DATAGRAM_INPUT), TopicTable(slab)
    lanes = Lanes(slab, pool, topics, lambda _: _NO_LINGER, partitioners=partitioners)
    any_partition = partition_key = 0
    messages = merge(*map(_messages, runs), key=lambda pair: pair[0].arrival)
    for options, group in groupby(messages, lambda pair: pair[0].options & lay.OPTION_KEEPS_TIMESTAMP):
        while batch := [message for _, message in islice(group, _BATCH_MESSAGES)]:
            ingested = _append(slab, lanes, batch, keeps_timestamps=bool(options))
            any_partition += ingested.any_partition
            partition_key += ingested.partition_key
    lanes.close_all()  # hands all runs over to the router
    total = any_partition + partition_key
    increments: dict[int, int] = {
        Counter.MsgReceived: total,
        Counter.InputAgentProcessAnyPartitionMsg: any_partition,
        Counter.InputAgentProcessPartitionKeyMsg: partition_key,
    }
    no_segments, no_reason = (), 0  # the transaction only raises the counters
    ProcessRow(slab, _DATAGRAM_INPUT).settle(no_segments, RunState.DELIVERED, no_reason, increments)
    return total


def _append(slab: Slab, lanes: Lanes, batch: list[bytes], *, keeps_timestamps: bool) -> Ingested:
    # The base of the landing zone is the next arrival number of the datagram input.
    next_arrival_index = landing_zone.base_at(slab) >> 3
    ends = list(accumulate(map(len, batch)))
    ingested = lanes.ingest(
        memoryview(b"".join(batch)),
        [(end - len(message), len(message)) for end, message in zip(ends, batch, strict=True)],
        slab.longs[next_arrival_index],
        steady_ms(),
        keeps_timestamps=keeps_timestamps,
    )
    if ingested.no_room:
        raise StartError(
            f"The messages of the journal do not fit into the slab {slab.path}: raise slab.size by a quarter "
            "above the value that it had when they were received. Restored messages may need more room than before."
        )
    slab.longs[next_arrival_index] += len(batch)
    return ingested


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
