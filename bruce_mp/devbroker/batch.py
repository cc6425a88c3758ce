"""Record batch v2 as a broker sees it: a header of 61 bytes, and a body that stays closed.

The body is covered by the CRC and is stored as it came, compressed or not; a broker rewrites only the base offset and
the leader epoch, which lie outside the CRC for that very reason.  `CHECKS` lists, in Kafka's order, what is wrong with
a batch and what the client is told.  The records inside are walked only on demand (`check_records`): in Python that
costs more than all the rest.

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

__all__ = ["HEADER", "BatchHead", "Limits", "check_records", "read_batch", "rebase", "records_of"]

HEADER: Final = Struct(">qiibIhiqqqhii")
LENGTH_OVERHEAD: Final = 12  # base offset and length, which the length field does not count
MAGIC_AT: Final = 16
CRC_COVERS_FROM: Final = 21
REBASE: Final = Struct(">qii")  # base offset, length, leader epoch
MAGIC_V2: Final = 2
CODEC_MASK: Final = 0x07
ZSTD: Final = 4
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
ZSTD_SINCE_PRODUCE: Final = 7  # KIP-110
SEQUENCE_MASK: Final = 0x7FFFFFFF  # sequence numbers go round from 2^31-1 to 0
UNREADABLE: Final = (
    *(KafkaError, struct.error, ValueError, IndexError),  # the records
    *(EOFError, OSError, zlib.error, snappy.UncompressError, RuntimeError, zstandard.ZstdError),  # the codecs
)
"""What kafka-python's decoder and the codecs under it raise on a body that is damaged."""


class BatchHead(NamedTuple):
    """The header's fields in wire order.  Times are milliseconds, -1 as id, epoch or sequence means none."""

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
    records: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_OVERHEAD

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class Limits(NamedTuple):
    """What a batch is checked against; `strict` also walks every record."""

    message_max_bytes: int = 1_048_588
    strict: bool = False


class Check(NamedTuple):
    """One thing that can be wrong with a batch whose header could be read."""

    wrong: Callable[[BatchHead, bytes, int, Limits], bool]
    code: Code
    text: str


def crc_differs(head: BatchHead, raw: bytes) -> bool:
    return bool(google_crc32c.value(raw[CRC_COVERS_FROM:]) != head.crc)


CHECKS: Final = (
    Check(lambda h, *_: h.magic != MAGIC_V2, Code.INVALID_RECORD, "Produce takes only record batches of magic 2."),
    Check(lambda h, *_: h.size < HEADER.size, Code.CORRUPT_MESSAGE, "The record batch is shorter than its header."),
    Check(lambda h, raw, *_: h.size > len(raw), Code.INVALID_RECORD, "The record batch is cut off."),
    Check(lambda h, raw, *_: h.size < len(raw), Code.INVALID_RECORD, "There must be one record batch per partition."),
    Check(
        lambda h, _, version, __: h.codec == ZSTD and version < ZSTD_SINCE_PRODUCE,
        Code.UNSUPPORTED_COMPRESSION_TYPE,
        "Zstandard needs Produce version 7.",
    ),
    Check(lambda h, *_: h.codec > ZSTD, Code.UNSUPPORTED_COMPRESSION_TYPE, "The compression type is not known."),
    Check(lambda h, *_: h.base_offset != 0, Code.INVALID_RECORD, "The base offset of a produced batch must be 0."),
    Check(
        lambda h, _, __, limits: h.size > limits.message_max_bytes,
        Code.MESSAGE_TOO_LARGE,
        "The record batch is larger than message.max.bytes.",
    ),
    Check(lambda h, raw, *_: crc_differs(h, raw), Code.CORRUPT_MESSAGE, "The CRC-32C of the batch does not match."),
    Check(
        lambda h, *_: h.records <= 0 or h.last_offset_delta != h.records - 1,
        Code.INVALID_RECORD,
        "The last offset delta does not go with the number of records.",
    ),
    Check(lambda h, *_: bool(h.attributes & CONTROL), Code.INVALID_RECORD, "Clients must not write control batches."),
    Check(
        lambda h, *_: h.producer_id >= 0 and h.base_sequence < 0,
        Code.INVALID_RECORD,
        "A batch with a producer id needs a sequence number.",
    ),
    Check(
        lambda h, *_: bool(h.attributes & TRANSACTIONAL),
        Code.INVALID_TXN_STATE,
        "This broker has no transactions.",
    ),
)


def read_batch(raw: bytes | None, version: int, limits: Limits) -> BatchHead:
    """The header of the one record batch in `raw`, the records field of a Produce request of `version`.

    Raises:
        RefusedError: with the code that a real broker answers.
    """
    if raw is None or len(raw) <= MAGIC_AT:
        raise RefusedError(Code.INVALID_RECORD, "There must be one record batch per partition.")
    if len(raw) < HEADER.size:
        raise RefusedError(Code.CORRUPT_MESSAGE, "The record batch is shorter than its header.")
    head = BatchHead._make(HEADER.unpack_from(raw))
    for check in CHECKS:
        if check.wrong(head, raw, version, limits):
            raise RefusedError(check.code, check.text)
    if limits.strict:
        check_records(raw)
    return head


def rebase(raw: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The batch as it is stored: with the offset and the leader epoch that the broker gave it."""
    return b"".join((REBASE.pack(base_offset, len(raw) - LENGTH_OVERHEAD, leader_epoch), raw[REBASE.size :]))


def records_of(raw: bytes) -> list[Any]:
    """The records of one batch, decompressed, as kafka-python's `DefaultRecord`.

    Raises:
        RefusedError: the body is not what the header promises.
    """
    try:
        return list(DefaultRecordBatch(raw))
    except UNREADABLE as cause:
        raise RefusedError(Code.INVALID_RECORD, f"The records of the batch cannot be read: {cause!r}.") from cause


def check_records(raw: bytes) -> None:
    """Walk the records: each must be whole, and their offsets must count up by one.

    Raises:
        RefusedError: one is not.
    """
    base = HEADER.unpack_from(raw)[0]
    offsets = [record.offset - base for record in records_of(raw)]
    if offsets != list(range(len(offsets))):
        raise RefusedError(Code.INVALID_RECORD, "The offset deltas of the records do not count up by one.")
