"""gzip containers without name and time, so that equal input gives equal output."""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["compress"]

_GZIP_WBITS: Final = zlib.MAX_WBITS | 16  # 16 selects the gzip container


def compress(data: bytes, level: int) -> bytes:
    """Compress with level 0 to 9."""
    return zlib.compress(data, level, wbits=_GZIP_WBITS)
