"""Restoring from the journal: fill a new, empty slab with the held messages of a lost slab.

No other process uses the new slab until `restore` returns.  Restoring does not change the journal, so after a crash the
next start of the daemon restores again.
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
    from bruce_mp.kernels import Ingested, PartitionerOfTopic
    from bruce_mp.slab.file import Slab

__all__ = ["restore"]

_DATAGRAM_INPUT: Final = lay.ROW_FIRST_INPUT
_BATCH_MESSAGES: Final = 4096
"""Number of messages in one call of `ingest`: enough for few calls, and a few MB at usual message sizes."""
_NO_LINGER: Final = 0


def restore(slab: Slab, runs: Iterable[JournaledRun], partitioners: PartitionerOfTopic | None) -> int:
    """Append the messages of journaled runs to an empty slab, in order of arrival; return their number.

    For messages with record keys, `partitioners` chooses the partitions again, as in the inputs.  Raise StartError if
    the slab is too small for the messages.
    """
    pool, topics = ChunkPool(slab, _DATAGRAM_INPUT), TopicTable(slab)
    lanes = Lanes(slab, pool, topics, lambda _: _NO_LINGER, partitioners=partitioners)
    any_partition_count = partition_key_count = 0
    messages = merge(*map(_messages, runs), key=lambda pair: pair[0].arrival)
    # A call of `ingest` has one `keeps_timestamps` for all its messages.
    for keeps_timestamps, group in groupby(messages, lambda pair: pair[0].options & lay.OPTION_KEEPS_TIMESTAMP):
        while batch := [message for _, message in islice(group, _BATCH_MESSAGES)]:
            ingested = _append(slab, lanes, batch, keeps_timestamps=bool(keeps_timestamps))
            any_partition_count += ingested.any_partition_count
            partition_key_count += ingested.partition_key_count
    lanes.close_all()  # hands all runs over to the router
    total = any_partition_count + partition_key_count
    increments: dict[int, int] = {
        Counter.MsgReceived: total,
        Counter.InputAgentProcessAnyPartitionMsg: any_partition_count,
        Counter.InputAgentProcessPartitionKeyMsg: partition_key_count,
    }
    no_segments, no_reason = (), 0  # the transaction settles nothing, and only raises the counters
    ProcessRow(slab, _DATAGRAM_INPUT).settle(no_segments, RunState.DELIVERED, no_reason, increments)
    return total


def _append(slab: Slab, lanes: Lanes, batch: list[bytes], *, keeps_timestamps: bool) -> Ingested:
    """Append messages to the slab under the next arrival numbers of the datagram input."""
    # The base of the landing zone is the next arrival number.
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
    """Yield each record of a run, and its message as a client would send the message."""
    offset = 0
    for _ in range(run.record_count):
        record = Record._make(lay.RECORD.unpack_from(run.data, offset))
        yield record, _encode(run.topic, record, run.data[offset + lay.RECORD_HEADER : offset + record.size])
        offset += record.size


def _encode(topic: bytes, record: Record, body: bytes | memoryview) -> bytes:
    value_offset, headers_offset = record.key_length, record.key_length + record.value_length
    key, value = bytes(body[:value_offset]), bytes(body[value_offset:headers_offset])
    headers = decode_headers(bytes(body[headers_offset : headers_offset + record.headers_length])) or ()
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return encode_message(Message(topic, value, key, record.timestamp, partition_key, headers, empty))
