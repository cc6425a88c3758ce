"""gzip containers without name and time, so that equal input gives equal output."""

from __future__ import annotations

import zlib
from typing import Final

from bruce_mp.protocol.kafka.codecs.bounds import whole

__all__ = ["FAILURES", "compress", "decompress"]

FAILURES: Final = (zlib.error, EOFError, ValueError)
_CONTAINER: Final = zlib.MAX_WBITS | 16


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 0 to 9."""
    return zlib.compress(data, level, wbits=_CONTAINER)


def decompress(data: bytes, limit: int) -> bytes:
    """Decompress to at most `limit` bytes."""
    stream = zlib.decompressobj(wbits=_CONTAINER)
    return whole(stream.decompress(data, limit + 1), limit, ended=stream.eof)
