"""Fenced attempts: a client marks the beginning and the end of an attempt on a stream connection.

    begin  int32 Size | int16 ApiKey = 260 | int16 ApiVersion = 0 | int16 Flags = 0 | int16 NameSize | Name
    end    int32 Size | int16 ApiKey = 261 | int16 ApiVersion = 0 | int16 Flags = 0
    ended  int32 Size | int16 ApiKey = 262 | int16 ApiVersion = 0 | int16 Reason | int16 TextSize | Text

All integers are big-endian and signed; Size counts the whole frame, itself included.  The daemon holds the messages
between the two frames and sends them to Kafka after the end frame.  If the connection ends first, the daemon discards
them with a reason of their own.  Name identifies the attempt for people.

After a NUL byte, Name may have options, separated by spaces.  A daemon ignores unknown options; an older daemon treats
them as part of the name.  `timestamps=client`: the daemon keeps the timestamps of all messages up to the next begin
frame, of any age.  An attempt without messages sets this option for the messages after it.

The daemon sends the third frame before it ends an open attempt and closes the connection.  Text is a sentence in UTF-8
for the log of the client.
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
    "LONGEST_NAME",
    "AttemptBegin",
    "EndReason",
    "decode_begin",
    "decode_ended",
    "encode_begin",
    "encode_end",
    "encode_ended",
    "is_end",
]

BEGIN_KEY: Final = 260
END_KEY: Final = 261
ENDED_KEY: Final = 262
API_VERSION: Final = 0
LONGEST_NAME: Final = 255
_SEPARATOR: Final = b"\0"
_KEEPS_TIMESTAMPS: Final = b"timestamps=client"

_BEGIN: Final = Struct(">ihhhh")
_END: Final = Struct(">ihhh")
_ENDED: Final = Struct(">ihhhh")
_LONGEST_TEXT: Final = 4000


@unique
class EndReason(IntEnum):
    """Why the daemon ended an open attempt."""

    TOO_LARGE = 1
    """It is larger than the daemon's settings allow; to send it again is in vain."""
    NO_ROOM = 2
    """Others have the room that it needs."""
    SPILL_FAILED = 3
    """The file system refused the spill file."""
    NOT_UNDERSTOOD = 4
    """The client sent what cannot be understood, or a frame where it must not stand."""
    SHUTTING_DOWN = 5
    """The daemon shuts down, or a new version takes over."""
    NOT_ALLOWED = 6
    """The user may no longer send."""
    UNREAD_ANSWERS = 7
    """The client does not read the answers to its barriers."""


class AttemptBegin(NamedTuple):
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


def decode_begin(data: bytes | bytearray | memoryview) -> AttemptBegin | None:
    """Return the content of a begin frame, complete as its Size says; None if the frame is not sound."""
    if len(data) < _BEGIN.size:
        return None
    size, key, version, flags, length = _BEGIN.unpack_from(data)
    sound = (size, key, version, flags) == (len(data), BEGIN_KEY, API_VERSION, 0)
    if not sound or length != len(data) - _BEGIN.size or length > LONGEST_NAME:
        return None
    name, _, options = bytes(data[_BEGIN.size :]).partition(_SEPARATOR)
    return AttemptBegin(name, _KEEPS_TIMESTAMPS in options.split(b" "))


def is_end(data: bytes | bytearray | memoryview) -> bool:
    """Return True for a valid end frame."""
    return bytes(data) == encode_end()


def encode_end() -> bytes:
    """Return the frame that completes an attempt."""
    return _END.pack(_END.size, END_KEY, API_VERSION, 0)


def encode_ended(reason: EndReason, text: str) -> bytes:
    """The frame that says why the daemon ends an attempt; a text that is too long is cut."""
    data = text.encode()[:_LONGEST_TEXT]
    return _ENDED.pack(_ENDED.size + len(data), ENDED_KEY, API_VERSION, reason, len(data)) + data


def decode_ended(data: bytes | bytearray | memoryview) -> tuple[EndReason | int, str]:
    """The reason and the sentence of such a frame; an unknown reason stands as its number.

    Raises RemoteProtocolError for bytes that are none.
    """
    if len(data) < _ENDED.size:
        raise RemoteProtocolError("What came is no frame that ends an attempt; is that the daemon's socket?")
    size, key, version, reason, length = _ENDED.unpack_from(data)
    sound = (size, key, version) == (len(data), ENDED_KEY, API_VERSION)
    if not sound or length != len(data) - _ENDED.size:
        raise RemoteProtocolError("What came is no frame that ends an attempt; is that the daemon's socket?")
    text = bytes(data[_ENDED.size :]).decode("utf-8", "replace")
    return (EndReason(reason) if reason in _REASONS else reason), text


_REASONS: Final = frozenset(EndReason)
