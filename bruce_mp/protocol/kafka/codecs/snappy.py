"""Single raw blocks of Snappy.

Java's clients write xerial's framing, but their reader accepts a block without its magic as raw
(SnappyInputStream.readFully).  librdkafka writes and reads raw blocks.  Framing would cost 3 to 4 % in size.
"""

from __future__ import annotations

from typing import Final

import snappy

from bruce_mp.protocol.kafka.codecs.bounds import bounded

__all__ = ["FAILURES", "compress", "decompress"]

FAILURES: Final = (snappy.UncompressError, ValueError)


def compress(data: bytes, _level: int) -> bytes:
    """Compress; Snappy has no levels."""
    packed: bytes = snappy.compress(data)
    return packed


def decompress(data: bytes, limit: int) -> bytes:
    """Decompress to at most `limit` bytes; the check precedes the library's allocation of the claimed size."""
    bounded(_uvarint(data), limit)
    plain: bytes = snappy.decompress(data)
    return plain


def _uvarint(data: bytes) -> int:
    value = 0
    for position, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value
    raise ValueError("their length is missing")
