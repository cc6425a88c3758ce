"""Record batch v2 as a broker handles it: a header of 61 bytes, and an opaque body.

The broker stores the body, which the CRC covers, unchanged, compressed or not. It rewrites only base offset and leader
epoch, which the CRC does not cover. `CHECKS` has the checks of a batch in Kafka's order, with the error code of each.
`check_records` also parses the records. It runs only if `LogLimits.strict` is set, because it costs more in Python than
all other checks.

Layout: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c
import snappy
import zstandard
from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatch

from bruce_mp.devbroker.codes import Code, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEADER", "LENGTH_AT", "BatchHead", "LogLimits", "read_batch", "rebase", "records_of"]

HEADER: Final = Struct(">qiibIhiqqqhii")
LENGTH: Final = Struct(">i")
LENGTH_AT: Final = 8
LENGTH_OVERHEAD: Final = 12  # size of base offset and length, which the length field does not count
MIN_LENGTH: Final = 14  # that of a record in Kafka's oldest format
MAGIC_AT: Final = 16
CRC_COVERS_FROM: Final = 21  # offset of the attributes
REBASE: Final = Struct(">qii")  # base offset, length, leader epoch
MAGIC_V2: Final = 2
CODEC_MASK: Final = 0x07
ZSTD: Final = 4  # the highest number of a codec
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
ZSTD_SINCE_PRODUCE: Final = 7  # KIP-110
SEQUENCE_MASK: Final = 0x7FFFFFFF  # sequence numbers wrap from 2^31-1 to 0
UNREADABLE: Final = (
    *(KafkaError, struct.error, ValueError, IndexError),  # the records
    *(EOFError, OSError, zlib.error, snappy.UncompressError, RuntimeError, zstandard.ZstdError),  # the codecs
)
"""Exceptions of kafka-python's decoder and of the codecs on a damaged body."""


class BatchHead(NamedTuple):
    """Header fields in wire order. Times are in ms; -1 as id, epoch or sequence means none."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def unpack(cls, raw: bytes, at: int = 0) -> BatchHead:
        return cls._make(HEADER.unpack_from(raw, at))

    @property
    def size(self) -> int:
        """Return the size of the whole batch in bytes."""
        return self.length + LENGTH_OVERHEAD

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class LogLimits(NamedTuple):
    """Limits for checks; `strict` also parses every record."""

    message_max_bytes: int = 1_048_588
    strict: bool = False


class BatchCheck(NamedTuple):
    """Check of a batch with a readable header: `is_wrong(header, batch, Produce version, limits)`, error code, text."""

    is_wrong: Callable[[BatchHead, bytes, int, LogLimits], bool]
    code: Code
    text: str


CHECKS: Final = (
    BatchCheck(lambda h, *_: h.size < HEADER.size, Code.CORRUPT_MESSAGE,
               "The record batch is shorter than its header."),
    BatchCheck(lambda h, raw, *_: h.size < len(raw), Code.INVALID_RECORD,
               "There must be one record batch per partition."),
    BatchCheck(lambda h, _, version, __: h.codec == ZSTD and version < ZSTD_SINCE_PRODUCE,
               Code.UNSUPPORTED_COMPRESSION_TYPE, "Zstandard needs Produce version 7."),
    BatchCheck(lambda h, *_: h.codec > ZSTD, Code.UNSUPPORTED_COMPRESSION_TYPE, "The compression type is not known."),
    BatchCheck(lambda h, *_: h.base_offset != 0, Code.INVALID_RECORD, "The base offset of a produced batch must be 0."),
    BatchCheck(lambda h, _, __, limits: h.size > limits.message_max_bytes, Code.MESSAGE_TOO_LARGE,
               "The record batch is larger than message.max.bytes."),
    BatchCheck(lambda h, raw, *_: bool(google_crc32c.value(raw[CRC_COVERS_FROM:]) != h.crc), Code.CORRUPT_MESSAGE,
               "The CRC-32C of the batch does not match."),
    BatchCheck(lambda h, *_: h.record_count <= 0 or h.last_offset_delta != h.record_count - 1, Code.INVALID_RECORD,
               "The last offset delta does not match the number of records."),
    BatchCheck(lambda h, *_: bool(h.attributes & CONTROL), Code.INVALID_RECORD,
               "Clients must not write control batches."),
    BatchCheck(lambda h, *_: h.producer_id >= 0 and h.base_sequence < 0, Code.INVALID_RECORD,
               "A batch with a producer id needs a sequence number."),
    BatchCheck(lambda h, *_: bool(h.attributes & TRANSACTIONAL), Code.INVALID_TXN_STATE,
               "This broker has no transactions."),
)  # fmt: skip


def read_batch(raw: bytes | None, version: int, limits: LogLimits) -> BatchHead:
    """Return the header of the one record batch in `raw`, the records field of a Produce request of `version`.

    Raise RefusedError with the error code that a real broker returns.
    """
    if raw is None or len(raw) < LENGTH_OVERHEAD:
        raise RefusedError(Code.INVALID_RECORD, "There must be one record batch per partition.")
    head = read_head(raw)
    for check in CHECKS:
        if check.is_wrong(head, raw, version, limits):
            raise RefusedError(check.code, check.text)
    if limits.strict:
        check_records(raw)
    return head


def read_head(raw: bytes) -> BatchHead:
    """Return the header of a batch. Raise RefusedError for bytes in which Kafka's reader recognises no whole batch."""
    [length] = LENGTH.unpack_from(raw, LENGTH_AT)
    if length < MIN_LENGTH:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The length of the record batch is too small for any record.")
    if len(raw) > MAGIC_AT and raw[MAGIC_AT] > MAGIC_V2:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The magic of the record batch is not known.")
    if len(raw) < LENGTH_OVERHEAD + length:
        raise RefusedError(Code.INVALID_RECORD, "The record batch is cut off.")
    if raw[MAGIC_AT] < MAGIC_V2:
        raise RefusedError(Code.INVALID_RECORD, "Produce takes only record batches of magic 2.")
    if len(raw) < HEADER.size:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The record batch is shorter than its header.")
    return BatchHead.unpack(raw)


def rebase(raw: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return the stored form of a batch, with the broker's offset and leader epoch."""
    return b"".join((REBASE.pack(base_offset, len(raw) - LENGTH_OVERHEAD, leader_epoch), raw[REBASE.size :]))


def records_of(raw: bytes) -> list[Any]:
    """Return a batch's decompressed records, each kafka-python's `DefaultRecord`. Raise RefusedError for damage."""
    try:
        return list(DefaultRecordBatch(raw))
    except UNREADABLE as cause:
        raise RefusedError(Code.INVALID_RECORD, f"The records of the batch cannot be read: {cause!r}.") from cause


def check_records(raw: bytes) -> None:
    """Raise RefusedError unless each record is complete, and their offset deltas count up by one."""
    base = HEADER.unpack_from(raw)[0]
    offsets = [record.offset - base for record in records_of(raw)]
    if offsets != list(range(len(offsets))):
        raise RefusedError(Code.INVALID_RECORD, "The offset deltas of the records do not count up by one.")
