"""Parse and format sizes: `4096`, `"64k"`, `"128m"`, `"2g"`; the suffixes are powers of 1024.

The conversion is exact: `parse_size(format_size(n)) == n` for every n >= 0.
"""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_FACTORS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB}
_SIZE: Final = re.compile(r"([0-9]+)([kmg]?)", re.IGNORECASE)


def parse_size(raw: object) -> int:
    """Return the number of bytes that an integer or a string stands for. For another value, raise ValueError."""
    if type(raw) is int:
        return raw
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError("a size is an integer or a string of digits, optionally followed by k, m or g")
    return int(match[1]) * _FACTORS[match[2].lower()]


def format_size(size: int) -> str:
    """Return the shortest exact notation of `size`: `64k` for 65536, but `1000000` for 1000000."""
    for suffix, factor in (("g", GIB), ("m", MIB), ("k", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
