"""Encode and decode record headers, in the form in which clients send them and the slab stores them.

The headers of a message follow each other without padding:

    int16 KeySize | Key | int32 ValueSize (-1: null) | Value

All integers are big-endian and signed.  The headers of a message have at most 65,535 bytes.
`docs/protocol.md` has the layout.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

from bruce_mp.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_HEADERS_BYTES", "Buffer", "Header", "HeaderInput", "as_bytes", "decode_headers", "encode_headers"]

MAX_HEADERS_BYTES: Final = 2**16 - 1
_MAX_KEY_BYTES: Final = 2**15 - 1
_KEY_SIZE: Final = Struct(">h")
_VALUE_SIZE: Final = Struct(">i")
_NULL: Final = -1

Buffer = bytes | bytearray | memoryview
_Field = TypeVar("_Field", Buffer, Buffer | None)

Header = tuple[bytes, bytes | None]
"""Key and value; None is a null value."""
HeaderInput = tuple[bytes | str, Buffer | str | None]
"""Key and value of a header as callers may give them: a `str` is encoded as UTF-8."""


def encode_headers(headers: Iterable[HeaderInput]) -> bytes:
    """Encode headers.

    Raises LocalProtocolError for a key that is None or has more than 32,767 bytes, and for headers of more than 65,535
    bytes in all.
    """
    data = b"".join(map(_encode_header, headers))
    if len(data) > MAX_HEADERS_BYTES:
        raise LocalProtocolError(
            f"The record headers of the message have {len(data)} bytes: at most {MAX_HEADERS_BYTES} fit."
        )
    return data


def _encode_header(header: HeaderInput) -> bytes:
    key, value = map(_encode_text, header)
    if key is None:
        raise LocalProtocolError("The key of a record header is None: give bytes, which may be empty.")
    if len(key) > _MAX_KEY_BYTES:
        raise LocalProtocolError(f"The key of a record header has {len(key)} bytes: at most {_MAX_KEY_BYTES} fit.")
    size = _NULL if value is None else len(value)
    return b"".join((_KEY_SIZE.pack(len(key)), key, _VALUE_SIZE.pack(size), value or b""))


def _encode_text(text: Buffer | str | None) -> Buffer | None:
    return text.encode() if isinstance(text, str) else as_bytes(text)


def as_bytes(field: _Field) -> _Field:
    """Convert a memoryview with items of several bytes, because its `len` is not its number of bytes."""
    return bytes(field) if isinstance(field, memoryview) and len(field) != field.nbytes else field


def decode_headers(data: Buffer) -> tuple[Header, ...] | None:
    """Decode headers; return None if the bytes are malformed or do not end with a whole header."""
    headers: list[Header] = []
    start = 0
    try:
        while start < len(data):
            header, start = _decode_header(data, start)
            headers.append(header)
    except (ValueError, struct.error):
        return None
    return tuple(headers)


def _decode_header(data: Buffer, start: int) -> tuple[Header, int]:
    """Decode the header at byte `start`; return the header, and the index of the byte after it."""
    (key_size,) = _KEY_SIZE.unpack_from(data, start)
    key_start = start + _KEY_SIZE.size
    value_start = key_start + key_size + _VALUE_SIZE.size
    if key_size < 0:
        raise ValueError
    (value_size,) = _VALUE_SIZE.unpack_from(data, value_start - _VALUE_SIZE.size)
    end = value_start + max(value_size, 0)
    if value_size < _NULL or end > len(data):
        raise ValueError
    value = None if value_size == _NULL else bytes(data[value_start:end])
    return (bytes(data[key_start : key_start + key_size]), value), end
