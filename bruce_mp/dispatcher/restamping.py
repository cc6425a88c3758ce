"""Arrival times in place of timestamps that a broker refuses.

The broker refused the batch before it wrote any record, so the dispatcher may resend it with the same sequence numbers
and other timestamps.  A timestamp that equals the arrival time is not replaced, so a record is restamped only once,
even after a crash.

Separate because no other module of the dispatcher changes the bytes of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.dispatcher.rejected_records import describe_record
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import arrived_ms, segment_records
from bruce_mp.telemetry.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["Restamped", "restamp"]

_TOLERANCE_MS: Final = 1000
"""The greatest difference of two wall-clock readings of one arrival time, by rounding and clock slew."""


class Restamped(NamedTuple):
    """The number of records with a replaced timestamp, and a description of the first with its old timestamp."""

    records: int
    first: str


def restamp(slab: Slab, segments: Iterable[Segment], indices: Collection[int]) -> Restamped:
    """Store the arrival time as timestamp of the records at `indices` of a batch.

    Timestamps that equal the arrival time, and those with OPTION_KEEPS_TIMESTAMP, stay.  Raise SlabError for a damaged
    segment.
    """
    wall_offset_ms = wall_ms() - steady_ms()
    start, count, first = 0, 0, ""
    for segment in segments:
        base, arrival_ms = slab.chunk_at(segment.chunk), arrived_ms(slab, segment) + wall_offset_ms
        for index, (offset, record) in enumerate(segment_records(slab, segment), start):
            if index in indices and _is_replaceable(record, arrival_ms):
                first = first or f"{describe_record(slab, segment.chunk, offset, record)} has {record.timestamp}"
                slab.store_signed(base + offset + lay.RECORD_TIMESTAMP, arrival_ms)
                count += 1
        start += segment.records
    return Restamped(count, first)


def _is_replaceable(record: Record, arrival_ms: int) -> bool:
    return not record.options & lay.OPTION_KEEPS_TIMESTAMP and abs(record.timestamp - arrival_ms) > _TOLERANCE_MS
