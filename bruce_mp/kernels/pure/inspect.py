"""Read a segment's records: their timestamps, or copies of the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.protocol.client.messages import EmptyFields, Message
from bruce_mp.protocol.client.record_headers import decode_headers
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["TimeRange", "messages", "time_range"]

# `_message` converts options to `EmptyFields` by value.
assert [*EmptyFields] == [lay.OPTION_EMPTY_KEY, lay.OPTION_NULL_VALUE, lay.OPTION_EMPTY_VALUE]


class TimeRange(NamedTuple):
    """The smallest and the largest timestamp of some records, in ms."""

    earliest: int
    latest: int


def time_range(slab: Slab, segment: Segment) -> TimeRange:
    """Return the smallest and largest timestamp of a segment's records."""
    timestamps = [record.timestamp for _, record in segment_records(slab, segment)]
    return TimeRange(min(timestamps), max(timestamps))


def messages(slab: Slab, segment: Segment, topic: bytes, max_bytes: int | None) -> list[Message]:
    """Return a segment's messages; with `max_bytes` only so many first bytes of key and of value, and no headers."""
    chunk_at = slab.chunk_at(segment.chunk)
    return [
        _message(slab, chunk_at + offset, record, topic, max_bytes) for offset, record in segment_records(slab, segment)
    ]


def _message(slab: Slab, at: int, record: Record, topic: bytes, max_bytes: int | None) -> Message:
    key_at = at + lay.RECORD_HEADER
    value_at = key_at + record.key_length
    key = bytes(slab.view[key_at : key_at + _at_most(record.key_length, max_bytes)])
    value = bytes(slab.view[value_at : value_at + _at_most(record.value_length, max_bytes)])
    headers_at = value_at + record.value_length
    headers = slab.view[headers_at : headers_at + (record.headers_length if max_bytes is None else 0)]
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return Message(topic, value, key, record.timestamp, partition_key, decode_headers(headers) or (), empty)


def _at_most(length: int, max_bytes: int | None) -> int:
    return length if max_bytes is None else min(length, max_bytes)
