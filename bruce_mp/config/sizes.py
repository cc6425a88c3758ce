"""Sizes as people write them: `4096`, `"64k"`, `"128m"`, `"2g"`; the suffixes are powers of 1024.

Exact both ways: `parse_size(format_size(n)) == n` for every n >= 0.
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
    """Bytes meant by an integer or a string with an optional suffix; `ValueError`, saying so, if it is neither."""
    if type(raw) is int:
        return raw
    match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError("it is neither an integer nor a string of digits with k, m or g behind")
    return int(match[1]) * _FACTORS[match[2].lower()]


def format_size(size: int) -> str:
    """The shortest exact way to write `size`: `65536` is `64k`, `1000000` stays as it is."""
    for suffix, factor in (("g", GIB), ("m", MIB), ("k", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
