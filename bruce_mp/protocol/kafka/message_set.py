"""Message sets, for brokers that do not know record batches: message format 0 (Kafka 0.8 and 0.9) and 1 (Kafka 0.10).

The layout of a message in a set:

    byte   0   offset i64                  16  magic i8: the format, 0 or 1
           8   size i32 (of the rest)      17  attributes i8: the codec
          12   CRC-32 u32 of magic and     18  timestamp i64, only in format 1
               all that follows            ..  key, then value: each a length i32, -1 for null, and the bytes

All integers are big-endian.  A set consists of consecutive messages, without a header or a count.  To send a compressed
set, the whole compressed set becomes the value of one message, the wrapper.  The wrapper has no key, and its attributes
name the codec.

* The broker assigns the final offsets.  In format 0, it must decompress a wrapper to number the messages inside.  In
  format 1, the client numbers the messages of a set from 0, and gives the wrapper the number of the last message, so
  that the broker need not change the messages inside.
* In format 1, the timestamp of a wrapper is the latest timestamp of its messages.  Timestamps come from clients, so
  each may be any 64-bit number.
* There is no producer id, so a broker stores a repeated message twice.

The kernel `encode_message_set` encodes the messages of a set; this module has their structures, and builds the wrapper.
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
"""The fields that the CRC covers, by format: magic, attributes, timestamp (only in format 1), length of the key."""
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
    """Return a set of one message, the wrapper of `compressed`: `count` messages, which `codec` has compressed.

    `max_timestamp` is the latest timestamp of these messages in ms.
    """
    is_v1 = message_format is MessageFormat.V1
    timestamp = (max_timestamp,) if is_v1 else ()
    head = COVERED[message_format].pack(message_format, codec, *timestamp, NULL) + LENGTH.pack(len(compressed))
    size = CRC_BYTES + len(head) + len(compressed)
    return UNCOVERED.pack(count - 1 if is_v1 else 0, size, crc32(compressed, crc32(head))) + head + compressed
