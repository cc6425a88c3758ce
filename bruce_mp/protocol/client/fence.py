"""Fenced attempts: a client marks the beginning and the end of an attempt on a stream connection.

    begin  int32 Size | int16 ApiKey = 260 | int16 ApiVersion = 0 | int16 Flags = 0 | int16 NameSize | Name
    end    int32 Size | int16 ApiKey = 261 | int16 ApiVersion = 0 | int16 Flags = 0
    ended  int32 Size | int16 ApiKey = 262 | int16 ApiVersion = 0 | int16 Reason | int16 TextSize | Text

All integers are big-endian and signed; Size counts the whole frame, itself included.  The daemon holds the messages
between begin and end, and sends them to Kafka after the end frame.  If the connection ends first, the daemon discards
them with the reason ABANDONED_ATTEMPT.  Name identifies the attempt in the daemon's log.

After a NUL byte, Name may have options, separated by spaces.  A daemon ignores unknown options; one that is
older than the options treats all of them as part of the name.  `timestamps=client`: the daemon keeps the timestamps, of
any age, of all messages up to the next begin frame.  So a client can send an attempt without messages to set this
option for the messages after it.  `name=unique`: the daemon remembers the name of the complete attempt, and completes
no second attempt of this name (see `inquiry.py`).

The daemon sends the ended frame before it discards an open attempt and closes the connection.  Text is a sentence in
UTF-8 for the log of the client.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final, NamedTuple

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "BEGIN_KEY",
    "ENDED_KEY",
    "END_KEY",
    "MAX_ENDED_BYTES",
    "MAX_NAME_BYTES",
    "MIN_ENDED_BYTES",
    "AttemptBegin",
    "EndReason",
    "decode_begin",
    "decode_ended",
    "encode_begin",
    "encode_end",
    "encode_ended",
    "is_end",
]

BEGIN_KEY: Final = 260  # API keys continue those of `barrier.py`
END_KEY: Final = 261
ENDED_KEY: Final = 262
API_VERSION: Final = 0
MAX_NAME_BYTES: Final = 255
_SEPARATOR: Final = b"\0"
_KEEPS_TIMESTAMPS: Final = b"timestamps=client"
_IS_UNIQUE: Final = b"name=unique"

_BEGIN: Final = Struct(">ihhhh")
_END: Final = Struct(">ihhh")
_ENDED: Final = Struct(">ihhhh")
_MAX_TEXT_BYTES: Final = 4000
"""Longest text that this daemon sends in an ended frame."""
MIN_ENDED_BYTES: Final = _ENDED.size
MAX_ENDED_BYTES: Final = _ENDED.size + 2**15 - 1
"""The longest text that TextSize can express may come from a daemon of another version."""
_NOT_ENDED_FRAME: Final = "The bytes are not a frame that ends an attempt; check that the socket is the daemon's."


@unique
class EndReason(IntEnum):
    """The daemon's reason to end an open attempt."""

    TOO_LARGE = 1
    """It is larger than the daemon's settings allow, so a retry fails too."""
    NO_ROOM = 2
    """Other attempts occupy the memory or the spill files that it needs."""
    SPILL_FAILED = 3
    """Writing the spill file failed."""
    NOT_UNDERSTOOD = 4
    """The client sent malformed bytes, or a frame that is not allowed within an attempt."""
    SHUTTING_DOWN = 5
    """The daemon shuts down, or is upgraded."""
    NOT_ALLOWED = 6
    """The user may no longer send."""
    UNREAD_ANSWERS = 7
    """The client does not read the answers to its barriers."""
    NAME_IN_USE = 8
    """An earlier attempt with the same unique name is complete, or is being completed."""


class AttemptBegin(NamedTuple):
    """The content of a begin frame: the attempt's name, and its options."""

    name: bytes
    keeps_timestamps: bool
    is_unique: bool = False


def encode_begin(name: str, *, keeps_timestamps: bool = False, is_unique: bool = False) -> bytes:
    """Return the frame that begins an attempt.

    Raises LocalProtocolError for a name of more than 255 bytes, options included.
    """
    options = b" ".join([_KEEPS_TIMESTAMPS] * keeps_timestamps + [_IS_UNIQUE] * is_unique)
    text = name.encode() + (_SEPARATOR + options if options else b"")
    if len(text) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"The name of an attempt has {len(text)} bytes: at most {MAX_NAME_BYTES} fit.")
    return _BEGIN.pack(_BEGIN.size + len(text), BEGIN_KEY, API_VERSION, 0, len(text)) + text


def decode_begin(data: bytes | bytearray | memoryview) -> AttemptBegin | None:
    """Decode a whole begin frame; return None for a malformed one."""
    if len(data) < _BEGIN.size:
        return None
    size, key, version, flags, name_size = _BEGIN.unpack_from(data)
    is_valid = (size, key, version, flags) == (len(data), BEGIN_KEY, API_VERSION, 0)
    if not is_valid or name_size != len(data) - _BEGIN.size or name_size > MAX_NAME_BYTES:
        return None
    name, _, options = bytes(data[_BEGIN.size :]).partition(_SEPARATOR)
    given = options.split(b" ")
    return AttemptBegin(name, keeps_timestamps=_KEEPS_TIMESTAMPS in given, is_unique=_IS_UNIQUE in given)


def is_end(data: bytes | bytearray | memoryview) -> bool:
    return bytes(data) == encode_end()


def encode_end() -> bytes:
    """Return the frame that completes an attempt."""
    return _END.pack(_END.size, END_KEY, API_VERSION, 0)


def encode_ended(reason: EndReason, text: str) -> bytes:
    """Return the frame that tells the client why the attempt ended; a text of more than 4000 bytes is truncated."""
    data = text.encode()[:_MAX_TEXT_BYTES]
    return _ENDED.pack(_ENDED.size + len(data), ENDED_KEY, API_VERSION, reason, len(data)) + data


def decode_ended(data: bytes | bytearray | memoryview) -> tuple[EndReason | int, str]:
    """Decode an ended frame to its reason and text; an unknown reason is returned as its number.

    Raises RemoteProtocolError for bytes that are no ended frame.
    """
    if len(data) < _ENDED.size:
        raise RemoteProtocolError(_NOT_ENDED_FRAME)
    size, key, version, reason, text_size = _ENDED.unpack_from(data)
    is_valid = (size, key, version) == (len(data), ENDED_KEY, API_VERSION)
    if not is_valid or text_size != len(data) - _ENDED.size:
        raise RemoteProtocolError(_NOT_ENDED_FRAME)
    text = bytes(data[_ENDED.size :]).decode("utf-8", "replace")
    return (EndReason(reason) if reason in _REASONS else reason), text


_REASONS: Final = frozenset(EndReason)
