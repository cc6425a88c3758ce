"""Records that a broker refuses: their description in the log, and arrival times in place of refused timestamps.

The broker refused the batch before it wrote any record, so the dispatcher may resend it with the same sequence numbers
and other timestamps.  A timestamp that equals the arrival time is not replaced, so a record is restamped only once,
even after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import arrived_ms, segment_records
from bruce_mp.telemetry.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["describe", "restamp"]

_KEY_PREFIX: Final = 32
"""Bytes of a key in the log: enough to find the record, and little of its contents."""
_TOLERANCE_MS: Final = 1000
"""The greatest difference of two wall-clock readings of one arrival time, by rounding and clock slew."""


def describe(slab: Slab, segment: Segment) -> str:
    """Describe a segment of refused messages by size, and by the key of the first one."""
    offset, record = next(segment_records(slab, segment))
    if segment.records == 1:
        return _describe_record(slab, segment.chunk, offset, record)
    key = _key_text(slab, segment.chunk, offset, record)
    return f"{segment.records} messages of {segment.payload} bytes together, the first with {key}"


def _describe_record(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    return f"a message of {record.payload} bytes, {_key_text(slab, chunk, offset, record)}"


def _key_text(slab: Slab, chunk: int, offset: int, record: Record) -> str:
    at = slab.chunk_at(chunk) + offset + lay.RECORD_HEADER
    key = bytes(slab.view[at : at + min(record.key_length, _KEY_PREFIX)])
    return f"key {key!r}" if record.key_length <= _KEY_PREFIX else f"key beginning with {key!r}"


def restamp(slab: Slab, segments: Iterable[Segment], indices: Collection[int]) -> tuple[int, str]:
    """Store the arrival time as timestamp of the records at `indices` of a batch.

    Return the number of changed records, and a description of the first with its old timestamp.  Timestamps that equal
    the arrival time, and those with OPTION_KEEPS_TIMESTAMP, stay.  Raise SlabError for a damaged segment.
    """
    wall_offset_ms = wall_ms() - steady_ms()
    start, count, first = 0, 0, ""
    for segment in segments:
        base, arrival_ms = slab.chunk_at(segment.chunk), arrived_ms(slab, segment) + wall_offset_ms
        for index, (offset, record) in enumerate(segment_records(slab, segment), start):
            if index in indices and _is_replaceable(record, arrival_ms):
                first = first or f"{_describe_record(slab, segment.chunk, offset, record)} has {record.timestamp}"
                slab.store_signed(base + offset + lay.RECORD_TIMESTAMP, arrival_ms)
                count += 1
        start += segment.records
    return count, first


def _is_replaceable(record: Record, arrival_ms: int) -> bool:
    return not record.options & lay.OPTION_KEEPS_TIMESTAMP and abs(record.timestamp - arrival_ms) > _TOLERANCE_MS
