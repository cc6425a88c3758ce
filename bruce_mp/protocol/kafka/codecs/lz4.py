"""The frame format of LZ4 with independent blocks: Java's reader refuses dependent ones."""

from __future__ import annotations

from typing import Final

import lz4.frame

from bruce_mp.protocol.kafka.codecs.bounds import whole

__all__ = ["FAILURES", "compress", "decompress"]

FAILURES: Final = (RuntimeError, EOFError, ValueError)


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 0 to 16."""
    packed: bytes = lz4.frame.compress(data, compression_level=level, block_linked=False)
    return packed


def decompress(data: bytes, limit: int) -> bytes:
    """Decompress to at most `limit` bytes."""
    stream = lz4.frame.LZ4FrameDecompressor()
    return whole(stream.decompress(data, max_length=limit + 1), limit, ended=stream.eof)
