"""One frame of Zstandard.  One compressor is kept for each level, for it allocates its tables when it is made."""

from __future__ import annotations

from functools import cache
from typing import Final

import zstandard

from bruce_mp.protocol.codecs.bounds import bounded

__all__ = ["FAILURES", "compress", "decompress"]

FAILURES: Final = (zstandard.ZstdError, ValueError)


@cache
def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level)


def compress(data: bytes, level: int) -> bytes:
    """Levels 1 to 22."""
    return _compressor(level).compress(data)


def decompress(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes."""
    declared = zstandard.get_frame_parameters(data).content_size
    if declared != zstandard.CONTENTSIZE_UNKNOWN:
        bounded(declared, limit)
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)
