"""Fenced attempts: messages of a stream client that the daemon delivers together, or discards together.

The client marks the beginning and the end of an attempt on its stream connection:

    begin  int32 Size | int16 ApiKey = 260 | int16 ApiVersion = 0 | int16 Flags = 0 | int16 NameSize | Name
    end    int32 Size | int16 ApiKey = 261 | int16 ApiVersion = 0 | int16 Flags = 0
    ended  int32 Size | int16 ApiKey = 262 | int16 ApiVersion = 0 | int16 Reason | int16 TextSize | Text

All integers are big-endian and signed; Size counts the whole frame, itself included.  The daemon keeps the messages
between begin and end, and sends them to Kafka after the end frame.  If the connection ends before the end frame, the
daemon discards the messages with the reason ABANDONED_ATTEMPT.  Name identifies the attempt in the daemon's log.

The field Name may have options: a NUL byte after the name, then the options, separated by spaces.  A daemon ignores
unknown options.  A daemon that is too old for options takes the whole field for the name.

* `timestamps=client`: the daemon keeps the timestamps of all messages up to the next begin frame, even very old ones.
  So a client can send an attempt without messages to set this option for the messages after the attempt.
* `name=unique`: the daemon remembers the name of the attempt once it is complete, and refuses to complete a second
  attempt with this name (see `inquiry.py`).

The daemon may also end an open attempt itself.  It sends the ended frame, discards the attempt, and closes the
connection.  Text is a sentence in UTF-8 for the client's log.
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

BEGIN_KEY: Final = 260  # `barrier.py` uses 258 and 259
END_KEY: Final = 261
ENDED_KEY: Final = 262
API_VERSION: Final = 0
MAX_NAME_BYTES: Final = 255
_SEPARATOR: Final = b"\0"
_TIMESTAMPS_OPTION: Final = b"timestamps=client"
_UNIQUE_OPTION: Final = b"name=unique"

_BEGIN: Final = Struct(">ihhhh")
_END: Final = Struct(">ihhh")
_ENDED: Final = Struct(">ihhhh")
_MAX_TEXT_BYTES: Final = 4000
"""Maximum length of the text that this daemon sends in an ended frame."""
MIN_ENDED_BYTES: Final = _ENDED.size
MAX_ENDED_BYTES: Final = _ENDED.size + 2**15 - 1
"""Maximum size of an ended frame that a client accepts. It allows for the largest TextSize, because a daemon of another
release may send longer texts."""
_NOT_ENDED_FRAME: Final = "The bytes are not a frame that ends an attempt; check that the socket is the daemon's."


@unique
class EndReason(IntEnum):
    """The daemon's reason to end an open attempt."""

    TOO_LARGE = 1
    """The attempt is larger than the daemon's settings allow, so a retry would fail, too."""
    NO_ROOM = 2
    """Other attempts occupy the memory, or the space for spill files, that this attempt needs."""
    SPILL_FAILED = 3
    """The daemon could not write the attempt's spill file, which holds the part that does not fit in memory."""
    NOT_UNDERSTOOD = 4
    """The client sent malformed bytes, or a frame that must not come within an attempt."""
    SHUTTING_DOWN = 5
    """The daemon shuts down, or is upgraded."""
    NOT_ALLOWED = 6
    """A changed configuration no longer allows the user to send."""
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
    """Return a begin frame.

    Raise LocalProtocolError if the name has a NUL, or if name, NUL byte and options have more than 255 bytes in all.
    """
    if "\0" in name:  # the daemon would take the rest of the name for options
        raise LocalProtocolError(f"The name of an attempt, {name!r}, has a NUL. Leave it out.")
    options = b" ".join([_TIMESTAMPS_OPTION] * keeps_timestamps + [_UNIQUE_OPTION] * is_unique)
    text = name.encode() + (_SEPARATOR + options if options else b"")
    if len(text) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"The name of an attempt has {len(text)} bytes: at most {MAX_NAME_BYTES} fit.")
    return _BEGIN.pack(_BEGIN.size + len(text), BEGIN_KEY, API_VERSION, 0, len(text)) + text


def decode_begin(data: bytes | bytearray | memoryview) -> AttemptBegin | None:
    """Decode a whole begin frame; return None if it is malformed."""
    if len(data) < _BEGIN.size:
        return None
    size, key, version, flags, name_size = _BEGIN.unpack_from(data)
    is_valid = (size, key, version, flags) == (len(data), BEGIN_KEY, API_VERSION, 0)
    if not is_valid or name_size != len(data) - _BEGIN.size or name_size > MAX_NAME_BYTES:
        return None
    name, _, options = bytes(data[_BEGIN.size :]).partition(_SEPARATOR)
    given = options.split(b" ")
    return AttemptBegin(name, keeps_timestamps=_TIMESTAMPS_OPTION in given, is_unique=_UNIQUE_OPTION in given)


def is_end(data: bytes | bytearray | memoryview) -> bool:
    return bytes(data) == encode_end()


def encode_end() -> bytes:
    """Return the frame that completes an attempt."""
    return _END.pack(_END.size, END_KEY, API_VERSION, 0)


def encode_ended(reason: EndReason, text: str) -> bytes:
    """Return the ended frame; a text of more than 4000 bytes is truncated after a whole character."""
    data = text.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return _ENDED.pack(_ENDED.size + len(data), ENDED_KEY, API_VERSION, reason, len(data)) + data


def decode_ended(data: bytes | bytearray | memoryview) -> tuple[EndReason | int, str]:
    """Return reason and text of an ended frame; raise RemoteProtocolError for other bytes. An unknown reason is int."""
    if len(data) < _ENDED.size:
        raise RemoteProtocolError(_NOT_ENDED_FRAME)
    size, key, version, reason, text_size = _ENDED.unpack_from(data)
    is_valid = (size, key, version) == (len(data), ENDED_KEY, API_VERSION)
    if not is_valid or text_size != len(data) - _ENDED.size:
        raise RemoteProtocolError(_NOT_ENDED_FRAME)
    text = bytes(data[_ENDED.size :]).decode("utf-8", "replace")
    return (EndReason(reason) if reason in _REASONS else reason), text


_REASONS: Final = frozenset(EndReason)
