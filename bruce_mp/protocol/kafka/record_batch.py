"""Build the header of a record batch, message format 2; the kernel `encode` encodes the records.

    byte   0   base offset i64             21  attributes i16           51  producer epoch i16
           8   length i32 (of the rest)    23  last offset delta i32    53  base sequence i32
          12   leader epoch i32            27  first timestamp i64      57  count i32
          16   magic i8 (2)                35  max timestamp i64        61  records, compressed or not
          17   CRC-32C u32 of attributes   43  producer id i64
               and all that follows

All integers are big-endian.  A record is length, attributes i8 (0), timestamp delta, offset delta, key, value and
headers.  All numbers in a record except the attributes are zigzag varints, and the length of a null is -1.  The deltas
are the differences to the first timestamp and to the base offset of the batch.

* Timestamps come from clients, so each may be any 64-bit number.  Deltas wrap at 64 bits as in Java.
* Producer id, producer epoch and base sequence are all valid, or all three are -1 (`NO_PRODUCER`).

Source: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.compression import Codec

__all__ = ["HEADER_BYTES", "NO_PRODUCER", "Producer", "batch_header", "encode_varint", "wrap_int64"]

UNCOVERED: Final = Struct(">qiibI")  # the fields up to the CRC, which covers none of them
COVERED: Final = Struct(">hiqqqhii")  # the fields that the CRC covers
HEADER_BYTES: Final = UNCOVERED.size + COVERED.size
LENGTH_END: Final = 12  # the field `length` counts the bytes after this offset
MAGIC: Final = 2
UNKNOWN_LEADER_EPOCH: Final = -1


class Producer(NamedTuple):
    """The producer of a batch, and the sequence number of its first record."""

    producer_id: int
    epoch: int
    base_sequence: int


NO_PRODUCER: Final = Producer(-1, -1, -1)


def batch_header(
    records: bytes,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    producer: Producer = NO_PRODUCER,
) -> bytes:
    """Return the header of a batch of `count` records; `records` has their bytes, already compressed by `codec`.

    Timestamps are in ms. The header is separate from the records, because joining them would copy a large batch.
    Raises LocalProtocolError for a count of 0, because brokers refuse such a batch.
    """
    if count < 1:
        raise LocalProtocolError(f"A record batch has at least one record, not {count}.")
    covered = COVERED.pack(codec, count - 1, first_timestamp, max_timestamp, *producer, count)
    crc = google_crc32c.extend(google_crc32c.value(covered), records)
    length = HEADER_BYTES - LENGTH_END + len(records)
    return UNCOVERED.pack(0, length, UNKNOWN_LEADER_EPOCH, MAGIC, crc) + covered


_MASK: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


def wrap_int64(value: int) -> int:
    """Wrap `value` to a signed 64-bit number, as Java's arithmetic does."""
    return ((value + _SIGN) & _MASK) - _SIGN


def encode_varint(value: int) -> bytes:
    """Encode a signed 64-bit number as a zigzag varint.

    Zigzag maps n to the unsigned number 2n, or to -2n - 1 if n is negative. The varint has seven bits of this number in
    each byte, the lowest bits first; in all bytes except the last, the highest bit is set.
    """
    rest = (value << 1 ^ value >> 63) & _MASK
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
