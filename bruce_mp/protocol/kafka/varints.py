"""Zigzag varints, the numbers inside a record: small values of either sign take few bytes.

A number n of 64 bits is written as the unsigned n * 2 (or -n * 2 - 1 below 0), seven bits a byte, the lowest first.
The reader never reads after the end of its data; it raises RemoteProtocolError instead.
"""

from __future__ import annotations

from typing import Final

from bruce_mp.errors import RemoteProtocolError

__all__ = ["VarintReader", "encode_varint", "wrap_int64"]

BITS: Final = 64
LONGEST: Final = 10  # bytes of a number of 64 bits
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


class VarintReader:
    """Reads numbers, and bytes with a length before them, from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def varint(self) -> int:
        value = 0
        for index, byte in enumerate(self._data[self.position : self.position + LONGEST]):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self.position += index + 1
                value &= MASK
                return value >> 1 ^ -(value & 1)
        raise RemoteProtocolError(f"A number at byte {self.position} of the records does not end.")

    def read(self, size: int) -> bytes:
        """Read `size` bytes; raise RemoteProtocolError if fewer are left or `size` is negative."""
        end = self.position + size
        if not self.position <= end <= len(self._data):
            raise RemoteProtocolError(f"{size} bytes are claimed at byte {self.position} of {len(self._data)}.")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def nullable_bytes(self) -> bytes | None:
        """Read a length and its bytes; length -1 means null."""
        size = self.varint()
        return None if size == -1 else self.read(size)

    def expect_end(self) -> None:
        """Raise RemoteProtocolError if bytes are left."""
        if self.position != len(self._data):
            raise RemoteProtocolError(f"{len(self._data) - self.position} bytes are left behind the last record.")
