"""Looks at the records of a segment: sizes, timestamps, a sample."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records, split

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["TimeSpan", "by_size", "sample", "time_span"]


class TimeSpan(NamedTuple):
    """The smallest and the largest client timestamp, in ms."""

    earliest: int
    latest: int


def time_span(slab: Slab, segment: Segment) -> TimeSpan:
    """The timestamps of a segment's records."""
    stamps = [record.timestamp for _, record in segment_records(slab, segment)]
    return TimeSpan(min(stamps), max(stamps))


def by_size(slab: Slab, segment: Segment, limit: int) -> list[tuple[bool, Segment]]:
    """Cut a segment into parts whose records all fit (key and value together at most `limit` bytes) or all do not."""
    sizes = [(offset, record.key_length + record.value_length) for offset, record in segment_records(slab, segment)]
    parts = [(fits, list(members)) for fits, members in groupby(sizes, lambda item: item[1] <= limit)]
    if len(parts) == 1:
        return [(parts[0][0], segment)]
    split(slab, segment.chunk, segment.run)
    return [
        (fits, segment._replace(first=members[0][0], records=len(members), payload=sum(size for _, size in members)))
        for fits, members in parts
    ]


def sample(slab: Slab, segment: Segment, size: int) -> bytes:
    """At most `size` bytes of the first record's key and value."""
    offset, record = next(segment_records(slab, segment))
    at = slab.chunk_at(segment.chunk) + offset + lay.RECORD_HEADER
    return bytes(slab.view[at : at + min(size, record.key_length + record.value_length)])
