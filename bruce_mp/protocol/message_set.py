"""Message sets, what brokers before record batches take: message format 0 (Kafka 0.8 and 0.9) and 1 (0.10).

    offset 0   offset i64                  16  magic i8: the format, 0 or 1
           8   size i32 (what follows)     17  attributes i8: the codec
          12   CRC-32 u32 of all from      18  timestamp i64, in format 1 alone
               magic on                    ..  key, then value: each a length i32, -1 for null, and the bytes

All big-endian.  A set is messages one behind the other, with neither head nor count.  To compress it is to make it the
value of one message without a key, the wrapper, whose attributes name the codec.

* Offsets are the broker's business.  In format 0 it numbers all messages itself, and unpacks a wrapper for that.  In
  format 1 the messages of a set are numbered from 0, and a wrapper has the number of its last: then the broker keeps
  it as it is.
* A wrapper of format 1 has the latest timestamp of its messages.  Timestamps are a client's and may be anything.
* There is no producer id: a broker keeps what it gets twice.

The messages of a set are encoded by a kernel; here are its structures, and the wrapper.
Source: https://kafka.apache.org/documentation/#messageset
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from bruce_mp.protocol.compression import Codec

__all__ = ["COVERED", "CRC_BYTES", "LENGTH", "NULL", "UNCOVERED", "MessageFormat", "wrap_set"]

UNCOVERED: Final = Struct(">qiI")
"""Offset, size, CRC."""
COVERED: Final = (Struct(">bbi"), Struct(">bbqi"))
"""By format, from magic on: magic, attributes, in format 1 the timestamp, length of the key."""
LENGTH: Final = Struct(">i")
CRC_BYTES: Final = 4  # the size counts the CRC, the CRC does not cover itself
NULL: Final = -1


@unique
class MessageFormat(IntEnum):
    """How messages are written; the value is what stands in their field `magic`."""

    V0 = 0
    """Without timestamps."""
    V1 = 1
    """With timestamps."""
    BATCHES = 2
    """Not a message set: a record batch."""


def wrap_set(compressed: bytes, codec: Codec, message_format: MessageFormat, count: int, max_timestamp: int) -> bytes:
    """The wrapper of `count` messages, which `codec` has compressed: a message set of one message."""
    has_time = message_format is MessageFormat.V1
    time = (max_timestamp,) if has_time else ()
    head = COVERED[message_format].pack(message_format, codec, *time, NULL) + LENGTH.pack(len(compressed))
    size = CRC_BYTES + len(head) + len(compressed)
    return UNCOVERED.pack(count - 1 if has_time else 0, size, crc32(compressed, crc32(head))) + head + compressed
