"""The records section of a RecordBatch v2 from segments.

Source of the format: the Kafka protocol guide, "Record Batch".  A record: varint length, attributes 0, varlong
timestamp delta, varint offset delta, key and value each with a varint length (-1 = null), varint count of headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["Encoded", "encode"]


class Encoded(NamedTuple):
    """The records section, and what the batch header says about it."""

    data: bytes
    records: int
    first_timestamp: int
    max_timestamp: int


def encode(slab: Slab, segments: Iterable[Segment]) -> Encoded:
    """Encode the records of segments in order.  An empty key or value becomes null, as in the ancestors.

    Raises SlabError when a segment is not what it claims.
    """
    view, chunks_at = slab.view, slab.chunks_at
    parts: list[bytes | memoryview] = []
    count = first = latest = 0
    for segment in segments:
        base = chunks_at + segment.chunk * lay.CHUNK_BYTES + lay.RECORD_HEADER
        for offset, record in segment_records(slab, segment):
            if not count:
                first = latest = record.timestamp
            latest = max(latest, record.timestamp)
            at = base + offset
            key_end = at + record.key_length
            value_end = key_end + record.value_length
            prefix = b"\0" + varint(_wrap(record.timestamp - first)) + varint(count)
            prefix += varint(record.key_length or -1)
            middle = varint(record.value_length or -1)
            parts += (
                varint(len(prefix) + len(middle) + value_end - at + 1),
                prefix,
                view[at:key_end],
                middle,
                view[key_end:value_end],
                b"\0",
            )
            count += 1
    return Encoded(b"".join(parts), count, first, latest)


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = 8192
_CACHE: Final = tuple(_zigzag(value) for value in range(-1, _SMALL))


def varint(value: int) -> bytes:
    """A signed 64-bit integer as zig-zag varint."""
    return _CACHE[value + 1] if -1 <= value < _SMALL else _zigzag(value)


def _wrap(delta: int) -> int:
    """A difference of two 64-bit timestamps as a reader with 64-bit arithmetic adds it up again."""
    return (delta + (1 << 63)) % (1 << 64) - (1 << 63)
