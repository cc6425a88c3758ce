"""Fenced attempts: a client on a stream connection says where an attempt begins and where it is complete.

    begin  int32 Size | int16 ApiKey = 260 | int16 ApiVersion = 0 | int16 Flags = 0 | int16 NameSize | Name
    end    int32 Size | int16 ApiKey = 261 | int16 ApiVersion = 0 | int16 Flags = 0

All integers are big-endian and signed; Size counts the whole, itself included.  What comes between the two is held by
the daemon and goes to Kafka when the end has come.  A connection that ends before that takes its attempt with it: the
messages are discarded, for a reason of their own.  Name tells people whose attempt it was.

Behind a NUL byte in Name there may be options, separated by spaces; a daemon ignores those that it does not know, and
one that knows none takes them for a part of the name.  `timestamps=client`: the daemon keeps the timestamps of all
messages up to the next begin frame, however old they are.  An attempt without messages may say so for what follows it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from bruce_mp.errors import LocalProtocolError

__all__ = ["BEGIN_KEY", "END_KEY", "LONGEST_NAME", "Begin", "decode_begin", "encode_begin", "encode_end", "is_end"]

BEGIN_KEY: Final = 260
END_KEY: Final = 261
API_VERSION: Final = 0
LONGEST_NAME: Final = 255
_SEPARATOR: Final = b"\0"
_KEEPS_TIMESTAMPS: Final = b"timestamps=client"

_BEGIN: Final = Struct(">ihhhh")
_END: Final = Struct(">ihhh")


class Begin(NamedTuple):
    """The content of a begin frame: the attempt's name, and the options behind it."""

    name: bytes
    keeps_timestamps: bool


def encode_begin(name: str, *, keeps_timestamps: bool = False) -> bytes:
    """Return the frame that begins an attempt.

    Raises LocalProtocolError for a name of more than 255 bytes, options included.
    """
    text = name.encode() + (_SEPARATOR + _KEEPS_TIMESTAMPS if keeps_timestamps else b"")
    if len(text) > LONGEST_NAME:
        raise LocalProtocolError(f"The name of an attempt has {len(text)} bytes: at most {LONGEST_NAME} fit.")
    return _BEGIN.pack(_BEGIN.size + len(text), BEGIN_KEY, API_VERSION, 0, len(text)) + text


def decode_begin(data: bytes | bytearray | memoryview) -> Begin | None:
    """Return the content of a begin frame, complete as its Size says; None if the frame is not sound."""
    if len(data) < _BEGIN.size:
        return None
    size, key, version, flags, length = _BEGIN.unpack_from(data)
    sound = (size, key, version, flags) == (len(data), BEGIN_KEY, API_VERSION, 0)
    if not sound or length != len(data) - _BEGIN.size or length > LONGEST_NAME:
        return None
    name, _, options = bytes(data[_BEGIN.size :]).partition(_SEPARATOR)
    return Begin(name, _KEEPS_TIMESTAMPS in options.split(b" "))


def is_end(data: bytes | bytearray | memoryview) -> bool:
    """Whether this is a sound end frame."""
    return bytes(data) == encode_end()


def encode_end() -> bytes:
    """The frame that completes an attempt."""
    return _END.pack(_END.size, END_KEY, API_VERSION, 0)
