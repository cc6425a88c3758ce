"""Raw Snappy blocks, one for each record batch.

Java's clients write xerial's framing, but their reader accepts data without the framing's magic as a raw block
(SnappyInputStream.readFully).  librdkafka writes and reads raw blocks.  Framing would cost 3 to 4 % in size.
"""

from __future__ import annotations

import snappy

__all__ = ["compress"]


def compress(data: bytes, _level: int) -> bytes:
    """Compress; Snappy has no levels."""
    packed: bytes = snappy.compress(data)
    return packed
