"""LZ4 frames with independent blocks: Java's reader refuses dependent ones."""

from __future__ import annotations

import lz4.frame

__all__ = ["compress"]


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 0 to 16."""
    packed: bytes = lz4.frame.compress(data, compression_level=level, block_linked=False)
    return packed
