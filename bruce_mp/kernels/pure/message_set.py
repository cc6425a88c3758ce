"""Encode segments as a Kafka message set (formats 0 and 1), for brokers without record batches.

`protocol/kafka/message_set.py` specifies the formats.  The caller can send the set as it is, or compress it into a
wrapper message.
"""

from __future__ import annotations

from struct import error
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from bruce_mp.errors import SlabError
from bruce_mp.kernels.pure.encode import RECORD_FIELDS, empty_key_length, empty_value_length
from bruce_mp.protocol.kafka.message_set import COVERED, CRC_BYTES, LENGTH, NULL, UNCOVERED
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import segment_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.protocol.kafka.message_set import MessageFormat
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["EncodedSet", "encode_message_set"]

_NO_CODEC: Final = 0


class EncodedSet(NamedTuple):
    """The encoded messages, their number, and the largest timestamp of their records."""

    data: bytes
    record_count: int
    max_timestamp: int


def encode_message_set(
    slab: Slab, segments: Iterable[Segment], message_format: MessageFormat, *, keeps_empty_values: bool = False
) -> EncodedSet:
    """Encode the records of segments in order, in MessageFormat.V0 or V1.

    For keys and values without bytes see `encode.encode`.  Raises SlabError for a segment that disagrees with the
    headers of its chunk and run.
    """
    parts: list[bytes | memoryview] = []
    timestamps: list[int] = []
    encoding = _SetEncoding(int(message_format), 0 if keeps_empty_values else NULL)
    for segment in segments:
        try:
            _encode_segment(slab, segment, encoding, parts, timestamps)
        except error as cause:
            raise SlabError(f"The records of a run of chunk {segment.chunk} go past its end.") from cause
    return EncodedSet(b"".join(parts), len(timestamps), max(timestamps, default=0))


class _SetEncoding(NamedTuple):
    """The magic byte of the format, and the length field of a value without bytes if its options do not tell."""

    magic: int
    empty_value: int


def _encode_segment(
    slab: Slab, segment: Segment, encoding: _SetEncoding, parts: list[bytes | memoryview], timestamps: list[int]
) -> None:
    magic, empty_value = encoding
    at, end = segment_bounds(slab, segment)
    source: bytes | memoryview = slab.view[at:end]
    if len(source) <= lay.CHUNK_BYTES:
        source = bytes(source)  # slices of bytes cost less than slices of a view
    at, end = 0, len(source)
    pack_covered, pack_uncovered, pack_length = COVERED[magic].pack, UNCOVERED.pack, LENGTH.pack  # "covered" by the CRC
    for offset in range(len(timestamps), len(timestamps) + segment.records):
        state, options, key_length, value_length, headers_length, timestamp = RECORD_FIELDS.unpack_from(source, at)
        key_at = at + lay.RECORD_HEADER
        value_at = key_at + key_length
        value_end = value_at + value_length
        at = (value_end + headers_length + 7) & -8  # `lay.align`, without the cost of a call
        if at > end or state >= RunState.SPLIT:  # only a run can be SPLIT
            raise SlabError(f"A record of a run of chunk {segment.chunk} is damaged or goes past the run's end.")
        timestamps.append(timestamp)
        timestamp_field = (timestamp,) if magic else ()
        key_length_field = key_length or empty_key_length(options)
        head = pack_covered(magic, _NO_CODEC, *timestamp_field, key_length_field) + source[key_at:value_at]
        head += pack_length(value_length or empty_value_length(options, empty_value))
        value = source[value_at:value_end]
        prefix = pack_uncovered(offset if magic else 0, CRC_BYTES + len(head) + value_length, crc32(value, crc32(head)))
        parts += (prefix, head, value)
