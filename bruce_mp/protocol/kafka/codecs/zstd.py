"""Zstandard frames.  Each level keeps its compressor, because the constructor allocates tables."""

from __future__ import annotations

from functools import cache

import zstandard

__all__ = ["compress"]


@cache
def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level)


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 1 to 22."""
    return _compressor(level).compress(data)
