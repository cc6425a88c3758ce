"""A message set (formats 0 and 1) from segments: for brokers that know no record batches.

Source of the format: `protocol.message_set`.  The result can be sent as it is, or be compressed into a wrapper.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from bruce_mp.errors import SlabError
from bruce_mp.protocol.message_set import (
    COVERED,
    CRC_BYTES,
    LENGTH,
    NO_TIMESTAMP,
    NULL,
    UNCOVERED,
    MessageFormat,
)
from bruce_mp.slab import layout as lay
from bruce_mp.slab.runs import segment_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["EncodedSet", "encode_message_set"]

_LOOK: Final = Struct("<8xII14xHq8x")
"""Of `layout.RECORD`: key length, value length, record headers length, timestamp."""
assert _LOOK.size == lay.RECORD_HEADER

_HEADS: Final = tuple(struct.pack for struct in COVERED)
_NO_CODEC: Final = 0


class EncodedSet(NamedTuple):
    """The messages, how many there are, and the latest of their timestamps (NO_TIMESTAMP: none has one)."""

    data: bytes
    records: int
    max_timestamp: int


def encode_message_set(slab: Slab, segments: Iterable[Segment], message_format: MessageFormat) -> EncodedSet:
    """Encode the records of segments in order, in MessageFormat.V0 or V1.

    An empty key or value becomes null, as in the ancestors; so does, in V1, a timestamp below 0: brokers refuse it.
    Raises SlabError when a segment is not what it claims.
    """
    encoder = _Encoder(message_format)
    for segment in segments:
        try:
            encoder.add(slab, segment)
        except error as cause:
            raise SlabError(f"The records of a run of chunk {segment.chunk} go past its end.") from cause
    return EncodedSet(b"".join(encoder.parts), encoder.records, encoder.max_timestamp)


class _Encoder:
    """The messages so far."""

    def __init__(self, message_format: MessageFormat) -> None:
        self._magic = int(message_format)
        self.parts: list[bytes | memoryview] = []
        self.records = 0
        self.max_timestamp = NO_TIMESTAMP

    def add(self, slab: Slab, segment: Segment) -> None:
        at, end = segment_bounds(slab, segment)
        source: bytes | memoryview = slab.view[at:end]
        if len(source) <= lay.CHUNK_BYTES:
            source = bytes(source)  # many small slices of bytes cost less than of a view
        at, end, magic, latest = 0, len(source), self._magic, self.max_timestamp
        pack, uncovered, length, crc, parts = _HEADS[magic], UNCOVERED.pack, LENGTH.pack, crc32, self.parts
        for number in range(self.records, self.records + segment.records):
            key_length, value_length, headers_length, timestamp = _LOOK.unpack_from(source, at)
            key_at = at + lay.RECORD_HEADER
            value_at = key_at + key_length
            value_end = value_at + value_length
            at = (value_end + headers_length + 7) & -8
            if at > end:
                raise SlabError(f"A record of a run of chunk {segment.chunk} goes past the run's end.")
            if magic:
                latest = max(latest, timestamp)
                stamp = max(timestamp, NO_TIMESTAMP)
                head = pack(magic, _NO_CODEC, stamp, key_length or NULL)
            else:
                head = pack(magic, _NO_CODEC, key_length or NULL)
            head = head + source[key_at:value_at] + length(value_length or NULL)
            value = source[value_at:value_end]
            prefix = uncovered(number if magic else 0, CRC_BYTES + len(head) + value_length, crc(value, crc(head)))
            parts += (prefix, head, value)
        self.records += segment.records
        self.max_timestamp = latest
