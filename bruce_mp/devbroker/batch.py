"""Record batch v2 as a broker handles it: a header of 61 bytes, and a body that the broker does not interpret.

The broker stores the body as the client sent it, compressed or not. In the header it rewrites only the base offset and
the leader epoch. The CRC does not cover these two fields, so it remains valid.

`CHECKS` lists, in Kafka's order, the checks that need no decoded records. Decoding and checking the records costs more
than all other checks, so it is done only if `BatchCheckSettings.strict` is True.

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

__all__ = ["HEADER", "LENGTH_OFFSET", "BatchCheckSettings", "BatchHead", "check_batch", "decode_records", "rebase"]

HEADER: Final = Struct(">qiibIhiqqqhii")  # the fields of `BatchHead`
LENGTH_FIELD: Final = Struct(">i")
LENGTH_OFFSET: Final = 8
LENGTH_OVERHEAD: Final = 12  # bytes of base offset and length, which the length field does not count
MIN_LENGTH_FIELD: Final = 14  # the smallest value of the length field: one record in Kafka's oldest format
MAGIC_OFFSET: Final = 16
CRC_START_OFFSET: Final = 21  # where the attributes begin, the first field that the CRC covers
REWRITTEN_FIELDS: Final = Struct(">qii")  # base offset, length (with its old value), leader epoch
MAGIC_V2: Final = 2
ZSTD: Final = 4  # the highest codec number
# Bits of the attributes:
CODEC_BITS: Final = 0x07
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
ZSTD_PRODUCE_VERSION: Final = 7  # the first version of Produce that allows Zstandard (KIP-110)
SEQUENCE_MASK: Final = 0x7FFFFFFF  # sequence numbers wrap from 2^31-1 to 0
BODY_ERRORS: Final = (
    *(KafkaError, struct.error, ValueError, IndexError),  # raised by the decoder of records
    *(EOFError, OSError, zlib.error, snappy.UncompressError, RuntimeError, zstandard.ZstdError),  # raised by codecs
)
"""Exceptions that kafka-python's decoder and the codecs raise for a damaged body."""


class BatchHead(NamedTuple):
    """The fields of a batch's header, in wire order.

    Timestamps are in ms. A producer id, producer epoch or base sequence of -1 means that the batch has none.
    """

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
    def unpack(cls, raw: bytes, position: int = 0) -> BatchHead:
        return cls._make(HEADER.unpack_from(raw, position))

    @property
    def size(self) -> int:
        """Return the size of the whole batch in bytes."""
        return self.length + LENGTH_OVERHEAD

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS

    @property
    def last_sequence(self) -> int:
        """Return the sequence number of the batch's last record."""
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class BatchCheckSettings(NamedTuple):
    message_max_bytes: int = 1_048_588
    """Largest size of a batch; Kafka's `message.max.bytes`."""
    strict: bool = False
    """True: decode and check the records also."""


class BatchCheck(NamedTuple):
    """One check of a batch, with the error code and message for a batch that is wrong."""

    is_wrong: Callable[[BatchHead, bytes, int, BatchCheckSettings], bool]
    """Called with the header, the whole batch, the version of the Produce request, and the limits."""
    code: Code
    text: str


CHECKS: Final = (
    # The parameters of the lambdas: h (the header), raw (the batch), version (of the Produce request), limits.
    BatchCheck(lambda h, *_: h.size < HEADER.size, Code.CORRUPT_MESSAGE,
               "The record batch is shorter than its header."),
    BatchCheck(lambda h, raw, *_: h.size < len(raw), Code.INVALID_RECORD,
               "There must be one record batch per partition."),
    BatchCheck(lambda h, _, version, __: h.codec == ZSTD and version < ZSTD_PRODUCE_VERSION,
               Code.UNSUPPORTED_COMPRESSION_TYPE, "Zstandard needs Produce version 7."),
    BatchCheck(lambda h, *_: h.codec > ZSTD, Code.UNSUPPORTED_COMPRESSION_TYPE, "The compression type is not known."),
    BatchCheck(lambda h, *_: h.base_offset != 0, Code.INVALID_RECORD, "The base offset of a produced batch must be 0."),
    BatchCheck(lambda h, _, __, limits: h.size > limits.message_max_bytes, Code.MESSAGE_TOO_LARGE,
               "The record batch is larger than message.max.bytes."),
    BatchCheck(lambda h, raw, *_: bool(google_crc32c.value(raw[CRC_START_OFFSET:]) != h.crc), Code.CORRUPT_MESSAGE,
               "The CRC-32C of the batch does not match."),
    BatchCheck(lambda h, *_: h.record_count <= 0 or h.last_offset_delta != h.record_count - 1, Code.INVALID_RECORD,
               "The last offset delta does not match the number of records."),
    BatchCheck(lambda h, *_: bool(h.attributes & CONTROL_BIT), Code.INVALID_RECORD,
               "Clients must not write control batches."),
    BatchCheck(lambda h, *_: h.producer_id >= 0 and h.base_sequence < 0, Code.INVALID_RECORD,
               "A batch with a producer id needs a sequence number."),
    BatchCheck(lambda h, *_: bool(h.attributes & TRANSACTIONAL_BIT), Code.INVALID_TXN_STATE,
               "This broker has no transactions."),
)  # fmt: skip


def check_batch(raw: bytes | None, version: int, limits: BatchCheckSettings) -> BatchHead:
    """Check the records field `raw` of a Produce request of `version`, and return the header of its one batch.

    Raise RefusedError, with the error code that a real broker returns, if the batch is wrong.
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
    """Return the header of a batch. Raise RefusedError if `raw` does not begin with a whole batch of version 2."""
    [length] = LENGTH_FIELD.unpack_from(raw, LENGTH_OFFSET)
    if length < MIN_LENGTH_FIELD:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The length of the record batch is too small for any record.")
    if len(raw) > MAGIC_OFFSET and raw[MAGIC_OFFSET] > MAGIC_V2:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The magic of the record batch is not known.")
    if len(raw) < LENGTH_OVERHEAD + length:
        raise RefusedError(Code.INVALID_RECORD, "The record batch is cut off.")
    if raw[MAGIC_OFFSET] < MAGIC_V2:
        raise RefusedError(Code.INVALID_RECORD, "Produce takes only record batches of magic 2.")
    if len(raw) < HEADER.size:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The record batch is shorter than its header.")
    return BatchHead.unpack(raw)


def rebase(raw: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch with the base offset and leader epoch that the broker assigns."""
    return b"".join(
        (REWRITTEN_FIELDS.pack(base_offset, len(raw) - LENGTH_OVERHEAD, leader_epoch), raw[REWRITTEN_FIELDS.size :])
    )


def decode_records(raw: bytes) -> list[Any]:
    """Decompress a batch and return its records, as objects of kafka-python's class `DefaultRecord`.

    Raise RefusedError if the body is damaged.
    """
    try:
        return list(DefaultRecordBatch(raw))
    except BODY_ERRORS as cause:
        raise RefusedError(Code.INVALID_RECORD, f"The records of the batch cannot be read: {cause!r}.") from cause


def check_records(raw: bytes) -> None:
    """Raise RefusedError unless all records are complete and their offset deltas are 0, 1, 2 and so on."""
    base = HEADER.unpack_from(raw)[0]
    offsets = [record.offset - base for record in decode_records(raw)]
    if offsets != list(range(len(offsets))):
        raise RefusedError(Code.INVALID_RECORD, "The offset deltas of the records do not count up by one.")
