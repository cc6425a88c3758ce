"""One more try for messages whose timestamps a broker refuses: with the time of their arrival.

The broker refused the batch before it wrote anything, so that it may come again with the same sequence numbers and
other timestamps.  The slab has no mark for the second try, and needs none: a timestamp that is the arrival time already
is not replaced.  So a crash at any point leads to the same outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.dispatcher.culprits import describe_record
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import arrived_ms, segment_records
from bruce_mp.telemetry.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Record, Segment

__all__ = ["Restamped", "restamp"]

_SAME_MS: Final = 1000
"""Two readings of the arrival time may differ by the rounding of clocks, and by how they are slewed meanwhile."""


class Restamped(NamedTuple):
    """How many records got their arrival times, and the first of them in words, with its former timestamp."""

    records: int
    first: str


def restamp(slab: Slab, segments: Iterable[Segment], indices: Collection[int]) -> Restamped:
    """Replace the timestamps of the records with these places in a batch by their arrival times.

    Timestamps that are arrival times already, or on which the client insists, stay.
    Raises SlabError where a segment is not what it claims.
    """
    step_ms = wall_ms() - steady_ms()
    start, count, first = 0, 0, ""
    for segment in segments:
        base, stamp_ms = slab.chunk_at(segment.chunk), arrived_ms(slab, segment) + step_ms
        for index, (offset, record) in enumerate(segment_records(slab, segment), start):
            if index in indices and _is_replaceable(record, stamp_ms):
                first = first or f"{describe_record(slab, segment.chunk, offset, record)} has {record.timestamp}"
                slab.store_signed(base + offset + lay.RECORD_TIMESTAMP, stamp_ms)
                count += 1
        start += segment.records
    return Restamped(count, first)


def _is_replaceable(record: Record, stamp_ms: int) -> bool:
    return not record.is_explicit and abs(record.timestamp - stamp_ms) > _SAME_MS
