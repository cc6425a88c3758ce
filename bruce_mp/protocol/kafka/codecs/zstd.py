"""Single frames of Zstandard.  Each level keeps its compressor, because the constructor allocates tables."""

from __future__ import annotations

from functools import cache
from typing import Final

import zstandard

from bruce_mp.protocol.kafka.codecs.bounds import bounded

__all__ = ["FAILURES", "compress", "decompress"]

FAILURES: Final = (zstandard.ZstdError, ValueError)


@cache
def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level)


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 1 to 22."""
    return _compressor(level).compress(data)


def decompress(data: bytes, limit: int) -> bytes:
    """Decompress to at most `limit` bytes."""
    declared = zstandard.get_frame_parameters(data).content_size
    if declared != zstandard.CONTENTSIZE_UNKNOWN:
        bounded(declared, limit)
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)
