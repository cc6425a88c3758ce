"""Zigzag varints, the numbers inside a record: small values of either sign take few bytes.

A number n of 64 bits is written as the unsigned n * 2 (or -n * 2 - 1 below 0), seven bits a byte, the lowest first.

Separate because the kernel that calls this module depends on the slab, and Kafka's record format does not.
"""

from __future__ import annotations

from typing import Final

__all__ = ["encode_varint", "wrap_int64"]

BITS: Final = 64
MASK: Final = (1 << BITS) - 1
SIGN: Final = 1 << (BITS - 1)


def wrap_int64(value: int) -> int:
    """Wrap `value` to a signed 64-bit number, as Java's arithmetic does."""
    return ((value + SIGN) & MASK) - SIGN


def encode_varint(value: int) -> bytes:
    """Encode a signed 64-bit number."""
    rest = (value << 1 ^ value >> (BITS - 1)) & MASK
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
