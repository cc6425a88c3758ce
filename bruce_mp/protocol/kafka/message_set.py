"""Message sets for brokers before record batches: message format 0 (Kafka 0.8 and 0.9) and 1 (0.10).

    byte   0   offset i64                  16  magic i8: the format, 0 or 1
           8   size i32 (of the rest)      17  attributes i8: the codec
          12   CRC-32 u32 of all from      18  timestamp i64, in format 1 alone
               magic on                    ..  key, then value: each a length i32, -1 for null, and the bytes

All integers are big-endian.  A set consists of consecutive messages, without a header or a count.  A compressed set is
the value of one message without a key, the wrapper, whose attributes name the codec.

* The broker assigns offsets.  In format 0 it numbers all messages itself, and decompresses a wrapper for that.  In
  format 1 the messages of a set are numbered from 0, and a wrapper has the number of its last one, so the broker stores
  the wrapper unchanged.
* A wrapper of format 1 has the latest timestamp of its messages.  Timestamps come from clients: any 64-bit number.
* There is no producer id: a broker stores a repeated message twice.

The kernel `encode` encodes the messages of a set; this module has the structures and the wrapper.
Source: https://kafka.apache.org/documentation/#messageset
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.compression import Codec

__all__ = ["COVERED", "CRC_BYTES", "LENGTH", "NULL", "UNCOVERED", "MessageFormat", "wrap_set"]

UNCOVERED: Final = Struct(">qiI")
"""The fields that the CRC does not cover: offset, size, CRC."""
COVERED: Final = (Struct(">bbi"), Struct(">bbqi"))
"""The fields that the CRC covers, by format: magic, attributes, in format 1 the timestamp, length of the key."""
LENGTH: Final = Struct(">i")
CRC_BYTES: Final = 4  # the size includes the CRC
NULL: Final = -1


@unique
class MessageFormat(IntEnum):
    """A message format; the value is that of the field `magic`."""

    V0 = 0
    """Without timestamps."""
    V1 = 1
    """With timestamps."""
    BATCHES = 2
    """Not a message set: a record batch."""


def wrap_set(compressed: bytes, codec: Codec, message_format: MessageFormat, count: int, max_timestamp: int) -> bytes:
    """Return a set of one message, the wrapper of `count` compressed messages; `max_timestamp` is in ms."""
    is_v1 = message_format is MessageFormat.V1
    timestamp = (max_timestamp,) if is_v1 else ()
    head = COVERED[message_format].pack(message_format, codec, *timestamp, NULL) + LENGTH.pack(len(compressed))
    size = CRC_BYTES + len(head) + len(compressed)
    return UNCOVERED.pack(count - 1 if is_v1 else 0, size, crc32(compressed, crc32(head))) + head + compressed
