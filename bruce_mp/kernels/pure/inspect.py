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

assert [*EmptyFields] == [lay.OPTION_EMPTY_KEY, lay.OPTION_NULL_VALUE, lay.OPTION_EMPTY_VALUE]


class TimeRange(NamedTuple):
    """The smallest and the largest timestamp of some records, in ms."""

    earliest: int
    latest: int


def time_range(slab: Slab, segment: Segment) -> TimeRange:
    """Return the smallest and largest timestamp of a segment's records."""
    stamps = [record.timestamp for _, record in segment_records(slab, segment)]
    return TimeRange(min(stamps), max(stamps))


def messages(slab: Slab, segment: Segment, topic: bytes, longest: int | None) -> list[Message]:
    """Return a segment's messages; with `longest` only so many first bytes of key and of value, and no headers."""
    chunk_at = slab.chunk_at(segment.chunk)
    return [
        _message(slab, chunk_at + offset, record, topic, longest) for offset, record in segment_records(slab, segment)
    ]


def _message(slab: Slab, at: int, record: Record, topic: bytes, longest: int | None) -> Message:
    key_at = at + lay.RECORD_HEADER
    value_at = key_at + record.key_length
    key = bytes(slab.view[key_at : key_at + _at_most(record.key_length, longest)])
    value = bytes(slab.view[value_at : value_at + _at_most(record.value_length, longest)])
    headers_at = value_at + record.value_length
    headers = slab.view[headers_at : headers_at + (record.headers_length if longest is None else 0)]
    partition_key = record.partition_key if record.is_partition_key else None
    empty = EmptyFields(record.options & lay.OPTIONS_OF_EMPTY)
    return Message(topic, value, key, record.timestamp, partition_key, decode_headers(headers) or (), empty)


def _at_most(length: int, longest: int | None) -> int:
    return length if longest is None else min(length, longest)
