"""Record batches, message format v2: decoding, and the header for records that a kernel has encoded.

    offset 0   base offset i64          27  first timestamp i64     43  producer id i64
           8   length i32 (of the rest)  35  max timestamp i64     51  producer epoch i16
          12   leader epoch i32                                     53  base sequence i32
          16   magic i8 (2)             17  CRC-32C u32 over all    57  count i32
          21   attributes i16               from attributes on      61  records, compressed or not
          23   last offset delta i32

All integers are big-endian.  A record is length, attributes i8 (0), timestamp delta, offset delta, key, value and
headers, with zigzag varints for every number and -1 as the length of a null.  Deltas count from the batch's first
timestamp and from its base offset.

* Timestamps come from clients and may be any 64-bit number; deltas wrap at 64 bits as in Java.
* Producer id, epoch and base sequence are all -1 or all given.
* `encode_records` is the reference that the tests compare with the kernels; the message path does not call it.

Source: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka.compression import Codec, decompress
from bruce_mp.protocol.kafka.varints import VarintReader, encode_varint, wrap_int64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER",
    "BatchHeader",
    "KafkaRecord",
    "Producer",
    "RecordBatch",
    "advance_sequence",
    "batch_header",
    "encode_records",
    "read_batches",
]

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
UNCOVERED: Final = Struct(">qiibI")
COVERED: Final = Struct(">hiqqqhii")  # the part of the header that the CRC covers
COVERED_AT: Final = 21
LENGTH_AT: Final = 12  # the length counts the bytes after it
MAGIC: Final = 2
CODEC_MASK: Final = 0x07
NO_ATTRIBUTES: Final = b"\0"
NULL: Final = encode_varint(-1)
SEQUENCES: Final = 1 << 31
UNKNOWN_LEADER_EPOCH: Final = -1


class Producer(NamedTuple):
    """The producer of a batch, and the sequence number of its first record."""

    producer_id: int
    epoch: int
    base_sequence: int


NO_PRODUCER: Final = Producer(-1, -1, -1)


class KafkaRecord(NamedTuple):
    """One record.  `timestamp` in milliseconds; `offset` is absolute when read and ignored when encoded."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    offset: int = -1


class BatchHeader(NamedTuple):
    """The fields in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> Codec:
        """The batch's codec; raises RemoteProtocolError for an unknown number."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError as failure:
            raise RemoteProtocolError(f"A batch names codec {self.attributes & CODEC_MASK}.") from failure

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch, self.base_sequence)


class RecordBatch(NamedTuple):
    """A batch with a valid CRC; its records are read on demand."""

    header: BatchHeader
    payload: bytes

    def records(self) -> list[KafkaRecord]:
        """Return the records; raise RemoteProtocolError if they contradict the header."""
        reader = VarintReader(decompress(self.header.codec, self.payload))
        records = [_read_record(reader, self.header) for _ in range(self.header.record_count)]
        reader.expect_end()
        return records


# --- writing ----------------------------------------------------------------------------------------------------------
def batch_header(
    records: bytes,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    producer: Producer = NO_PRODUCER,
) -> bytes:
    """Return the header that makes a batch of `count` records, encoded and already compressed by `codec`.

    The records are not copied, because a batch may be large.
    Raises LocalProtocolError for a batch without records: a broker refuses it.
    """
    if count < 1:
        raise LocalProtocolError(f"A record batch has at least one record, not {count}.")
    covered = COVERED.pack(codec, count - 1, first_timestamp, max_timestamp, *producer, count)
    crc = google_crc32c.extend(google_crc32c.value(covered), records)
    length = HEADER_BYTES - LENGTH_AT + len(records)
    return UNCOVERED.pack(0, length, UNKNOWN_LEADER_EPOCH, MAGIC, crc) + covered


def advance_sequence(sequence: int, count: int) -> int:
    """Return the sequence number after `count` records; 0 follows 2^31 - 1."""
    return (sequence + count) % SEQUENCES


def encode_records(records: Iterable[KafkaRecord], *, empty_value_as_null: bool = True) -> bytes:
    """Encode records for `batch_header`; an empty key becomes null, as an empty value does by default."""
    encoded = bytearray()
    first: int | None = None
    for index, record in enumerate(records):
        first = record.timestamp if first is None else first
        value = (record.value or None) if empty_value_as_null else record.value
        body = (
            NO_ATTRIBUTES
            + encode_varint(wrap_int64(record.timestamp - first))
            + encode_varint(index)
            + _encode_bytes(record.key or None)
            + _encode_bytes(value)
            + _encode_headers(record.headers)
        )
        encoded += encode_varint(len(body)) + body
    return bytes(encoded)


def _encode_bytes(data: bytes | None) -> bytes:
    return NULL if data is None else encode_varint(len(data)) + data


def _encode_headers(headers: tuple[tuple[bytes, bytes | None], ...]) -> bytes:
    pairs = (_encode_bytes(name) + _encode_bytes(value) for name, value in headers)
    return encode_varint(len(headers)) + b"".join(pairs)


# --- reading ----------------------------------------------------------------------------------------------------------
def read_batches(data: bytes) -> Iterator[RecordBatch]:
    """Read consecutive batches, as in a produce request or a fetch response.

    Raises RemoteProtocolError at the first batch that is cut off, is not of format v2 or has a wrong CRC.
    """
    at = 0
    while at < len(data):
        batch = _read_batch(data, at)
        yield batch
        at += LENGTH_AT + batch.header.length


def _read_batch(data: bytes, at: int) -> RecordBatch:
    if len(data) - at < HEADER_BYTES:
        raise RemoteProtocolError(f"{len(data) - at} bytes at {at} are too few for the header of a record batch.")
    header = BatchHeader(*HEADER.unpack_from(data, at))
    if header.magic != MAGIC:
        raise RemoteProtocolError(f"The batch at {at} is of message format {header.magic}; only format 2 is read.")
    end = at + LENGTH_AT + header.length
    if not at + HEADER_BYTES <= end <= len(data):
        raise RemoteProtocolError(f"The batch at {at} claims {header.length} bytes, of {len(data) - at}.")
    if google_crc32c.value(data[at + COVERED_AT : end]) != header.crc:
        raise RemoteProtocolError(f"The batch at {at}, base offset {header.base_offset}, has a wrong CRC-32C.")
    return RecordBatch(header, data[at + HEADER_BYTES : end])


def _read_record(reader: VarintReader, header: BatchHeader) -> KafkaRecord:
    length = reader.varint()
    start = reader.position
    reader.read(1)  # attributes: none are defined
    timestamp = wrap_int64(header.first_timestamp + reader.varint())
    offset = header.base_offset + reader.varint()
    key, value = reader.nullable_bytes(), reader.nullable_bytes()
    headers = tuple(_read_header(reader) for _ in range(reader.varint()))
    if reader.position - start != length:
        raise RemoteProtocolError(f"A record claims {length} bytes and has {reader.position - start}.")
    return KafkaRecord(timestamp, key, value, headers, offset)


def _read_header(reader: VarintReader) -> tuple[bytes, bytes | None]:
    name = reader.nullable_bytes()
    if name is None:
        raise RemoteProtocolError("A header of a record has no name.")
    return name, reader.nullable_bytes()
