"""Encode segments as a Kafka RecordBatch v2: its records, the whole batch, or the topics of a produce request.

Source of the format: the Kafka protocol guide, "Record Batch".  A record has: length, attributes (0), timestamp delta,
offset delta, key and value, number of headers, and for each header its key and value.  The length of each key and value
stands before it (-1 = null).  All numbers except the attributes are varints.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import SlabError
from bruce_mp.protocol.client.record_headers import decode_headers
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.produce_request import encode_topics
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer, batch_header, encode_varint, wrap_int64
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import segment_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.runs import Segment

__all__ = [
    "RECORD_FIELDS",
    "Encoded",
    "empty_key_length",
    "empty_value_length",
    "encode",
    "produce_topics",
    "record_batch",
]

RECORD_FIELDS: Final = Struct("<B6xBII14xHq8x")
"""Some fields of `layout.RECORD`: state, options, key length, value length, record headers length, timestamp."""
assert RECORD_FIELDS.size == lay.RECORD_HEADER

NULL: Final = -1
"""The content of the length field of a null key or value."""


class Encoded(NamedTuple):
    """The encoded records of a batch, and the fields of the batch header that depend on them."""

    data: bytes
    record_count: int
    first_timestamp: int
    max_timestamp: int


def encode(slab: Slab, segments: Iterable[Segment], *, keeps_empty_values: bool = False) -> Encoded:
    """Encode the records of segments in order.

    The options of a record tell if a key or value without bytes is null or empty.  If they do not tell it, a key is
    null, and a value is empty if `keeps_empty_values` is True, otherwise null.  Raises SlabError for a segment that
    disagrees with the headers of its chunk and run.
    """
    parts: list[bytes | memoryview] = []
    timestamps: list[int] = []
    empty_value = 0 if keeps_empty_values else NULL
    for segment in segments:
        try:
            _encode_segment(slab, segment, empty_value, parts, timestamps)
        except error as cause:
            raise SlabError(f"The records of a run of chunk {segment.chunk} go past its end.") from cause
    if not timestamps:
        return Encoded(b"", 0, 0, 0)
    return Encoded(b"".join(parts), len(timestamps), timestamps[0], max(timestamps))


def record_batch(
    slab: Slab, segments: Iterable[Segment], producer: Producer, *, keeps_empty_values: bool = False
) -> tuple[bytes, bytes]:
    """Return (header, records) of an uncompressed batch.  Raises the errors of `encode` and `batch_header`."""
    encoded = encode(slab, segments, keeps_empty_values=keeps_empty_values)
    return batch_header(*encoded, producer=producer), encoded.data


def produce_topics(
    slab: Slab,
    version: int,
    names: Sequence[bytes],
    batches: Sequence[BuiltBatch],
    producer_id: int,
    *,
    keeps_empty_values: bool,
) -> list[bytes]:
    """Return the topics of a produce request of `version` (3 or later) as consecutive buffers: see `encode_topics`.

    Each batch is for a different partition; `names` has the topic name of each batch.  The header of a batch without
    sequence numbers names no producer.  For `keeps_empty_values` see `encode`, for the errors see `record_batch`.
    """
    data: list[PartitionData] = []
    for name, batch in zip(names, batches, strict=True):
        is_numbered = batch.base_sequence >= 0
        producer = Producer(producer_id, batch.epoch, batch.base_sequence) if is_numbered else NO_PRODUCER
        header, records = record_batch(slab, batch.segments, producer, keeps_empty_values=keeps_empty_values)
        data.append(PartitionData(name, batch.partition, records, header))
    return encode_topics(version, data)


def _encode_segment(
    slab: Slab, segment: Segment, empty_value: int, parts: list[bytes | memoryview], timestamps: list[int]
) -> None:
    at, end = segment_bounds(slab, segment)
    source: bytes | memoryview = slab.view[at:end]
    if len(source) <= lay.CHUNK_BYTES:
        source = bytes(source)  # slices of bytes cost less than slices of a view
    at, end, varint = 0, len(source), _VARINTS
    for offset_delta in range(len(timestamps), len(timestamps) + segment.records):
        state, options, key_length, value_length, headers_length, timestamp = RECORD_FIELDS.unpack_from(source, at)
        key_at = at + lay.RECORD_HEADER
        value_at = key_at + key_length
        value_end = value_at + value_length
        at = (value_end + headers_length + 7) & -8  # `lay.align`, without the cost of a call
        if at > end or state >= RunState.SPLIT:  # only a run can be SPLIT
            raise SlabError(f"A record of a run of chunk {segment.chunk} is damaged or goes past the run's end.")
        timestamps.append(timestamp)
        head = b"\0" + varint[timestamp - timestamps[0]] + varint[offset_delta]
        head += varint[key_length or empty_key_length(options)] + source[key_at:value_at]
        head += varint[value_length or empty_value_length(options, empty_value)]
        headers = _encode_headers(source[value_end : value_end + headers_length]) if headers_length else _NO_HEADERS
        parts += (varint[len(head) + value_length + len(headers)], head, source[value_at:value_end], headers)


def empty_key_length(options: int) -> int:
    """Return the content of the length field of a key without bytes: 0, or -1 for null."""
    return 0 if options & lay.OPTION_EMPTY_KEY else NULL


def empty_value_length(options: int, by_config: int) -> int:
    """Return the content of the length field of a value without bytes: 0, or -1 for null.

    `by_config` is the result if the options do not tell null from empty.
    """
    if options & lay.OPTION_NULL_VALUE:
        return NULL
    return 0 if options & lay.OPTION_EMPTY_VALUE else by_config


def _encode_headers(data: bytes | memoryview) -> bytes:
    """Convert record headers from the format of clients to Kafka's.  Raises SlabError if they are damaged."""
    headers = decode_headers(data)
    if headers is None:
        raise SlabError("The headers of a record are damaged.")
    return b"".join((_VARINTS[len(headers)], *(field for header in headers for field in map(_encode_field, header))))


def _encode_field(data: bytes | None) -> bytes:
    return _NULL_VARINT if data is None else _VARINTS[len(data)] + data


class _Varints(dict[int, bytes]):
    """A mapping of signed integers to their encodings as zig-zag varints; it caches the encodings of small integers."""

    def __missing__(self, value: int) -> bytes:
        encoded = encode_varint(wrap_int64(value))
        if NULL <= value < _CACHE_LIMIT:
            self[value] = encoded
        return encoded


_CACHE_LIMIT: Final = 8192
"""Encodings of smaller integers are cached; lengths and timestamp deltas rarely reach this limit."""
_VARINTS: Final = _Varints()
_NULL_VARINT: Final = _VARINTS[NULL]
_NO_HEADERS: Final = _VARINTS[0]
