"""Record batches, message format v2: the reference encoding that tests compare with the kernels, and a reader.

`bruce_mp.protocol.kafka.record_batch` has the layout.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import kafka.codec

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.compression import Codec, compress
from bruce_mp.protocol.kafka.record_batch import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER,
    Producer,
    batch_header,
    encode_varint,
    wrap_int64,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "BatchHeader",
    "KafkaRecord",
    "RecordBatch",
    "VarintReader",
    "advance_sequence",
    "batch_of",
    "decompress",
    "encode_records",
    "read_batches",
    "whole_batch",
]

HEADER: Final = Struct(">qiibIhiqqqhii")
COVERED_AT: Final = 21
CODEC_MASK: Final = 0x07
NO_ATTRIBUTES: Final = b"\0"
NULL: Final = encode_varint(-1)
SEQUENCES: Final = 1 << 31
LONGEST_VARINT: Final = 10  # bytes of a number of 64 bits
_DECODERS: Final = {
    Codec.NONE: bytes,
    Codec.GZIP: kafka.codec.gzip_decode,
    Codec.SNAPPY: kafka.codec.snappy_decode,
    Codec.LZ4: kafka.codec.lz4_decode,
    Codec.ZSTD: kafka.codec.zstd_decode,
}


class KafkaRecord(NamedTuple):
    """One record.  `timestamp` in milliseconds; `offset` is absolute when read and ignored when encoded."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    offset: int = -1


class VarintReader:
    """Reads numbers, and bytes with a length before them, from the front; never reads after the end of its data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def varint(self) -> int:
        value = 0
        for index, byte in enumerate(self._data[self.position : self.position + LONGEST_VARINT]):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self.position += index + 1
                value &= (1 << 64) - 1
                return value >> 1 ^ -(value & 1)
        raise RemoteProtocolError(f"A number at byte {self.position} of the records does not end.")

    def read(self, size: int) -> bytes:
        """Read `size` bytes; raise RemoteProtocolError if fewer are left or `size` is negative."""
        end = self.position + size
        if not self.position <= end <= len(self._data):
            raise RemoteProtocolError(f"{size} bytes are claimed at byte {self.position} of {len(self._data)}.")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def nullable_bytes(self) -> bytes | None:
        """Read a length and its bytes; length -1 means null."""
        size = self.varint()
        return None if size == -1 else self.read(size)

    def expect_end(self) -> None:
        """Raise RemoteProtocolError if bytes are left."""
        if self.position != len(self._data):
            raise RemoteProtocolError(f"{len(self._data) - self.position} bytes are left behind the last record.")


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


def whole_batch(
    records: bytes,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    producer: Producer = NO_PRODUCER,
) -> bytes:
    """Return a batch as it is sent; see `batch_header`."""
    return batch_header(records, count, first_timestamp, max_timestamp, codec=codec, producer=producer) + records


def batch_of(records: Sequence[KafkaRecord], codec: Codec = Codec.NONE, producer: Producer = NO_PRODUCER) -> bytes:
    """Return a batch with these records, as it is sent."""
    section, latest = compress(codec, None, encode_records(records)), max(record.timestamp for record in records)
    return whole_batch(section, len(records), records[0].timestamp, latest, codec=codec, producer=producer)


def _encode_bytes(data: bytes | None) -> bytes:
    return NULL if data is None else encode_varint(len(data)) + data


def _encode_headers(headers: tuple[tuple[bytes, bytes | None], ...]) -> bytes:
    pairs = (_encode_bytes(name) + _encode_bytes(value) for name, value in headers)
    return encode_varint(len(headers)) + b"".join(pairs)


# --- reading ----------------------------------------------------------------------------------------------------------
def decompress(codec: Codec, data: bytes) -> bytes:
    """Return the records that a batch with this codec holds, by kafka-python."""
    records: bytes = _DECODERS[codec](data)
    return records


def read_batches(data: bytes) -> Iterator[RecordBatch]:
    """Read consecutive batches, as in a produce request or a fetch response.

    Raises RemoteProtocolError at the first batch that is cut off, is not of format v2 or has a wrong CRC.
    """
    at = 0
    while at < len(data):
        batch = _read_batch(data, at)
        yield batch
        at += LENGTH_END + batch.header.length


def _read_batch(data: bytes, at: int) -> RecordBatch:
    if len(data) - at < HEADER_BYTES:
        raise RemoteProtocolError(f"{len(data) - at} bytes at {at} are too few for the header of a record batch.")
    header = BatchHeader(*HEADER.unpack_from(data, at))
    if header.magic != MAGIC:
        raise RemoteProtocolError(f"The batch at {at} is of message format {header.magic}; only format 2 is read.")
    end = at + LENGTH_END + header.length
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
