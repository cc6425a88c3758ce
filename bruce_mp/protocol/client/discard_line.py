"""The line format of the discard file: one line for a discarded message or a possible duplicate.

    now: MS ts: TS event: E info: I topic: LEN[T] key: LEN[B64] msg: LEN[B64]

This is the format of Dory, the predecessor of this daemon. MS is the time of writing, TS the message's timestamp, E the
event (DISC or DUP), I the reason of a discard, T the topic; `msg` has the message's value. B64 is base64, and LEN is
the number of bytes between the brackets. With four additions, a message can be sent again from its line:

* ` pkey: N` after `msg` has the unsigned key of a PartitionKey message. Parsers of Dory's lines skip unknown fields
  after `msg`.
* ` hdrs: K:V,K:V,...` after these fields has record headers: keys and values in base64, `-` for a null value.
* ` empty: N` comes last. N is a sum of `messages.EmptyFields`, which tells an empty key or value from a null one.
* In a topic, the backslash and every byte outside printable ASCII are written as `\\xHH`, so that no topic of a client
  can contain the end of a line. Topics that Kafka allows contain no such bytes.

An empty or null key or value is `0[]`. A topic that could not be parsed is `0[]`, too, and then `msg` has all received
bytes. The writer may truncate key and value and omit headers; the line does not show this.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason, RemoteProtocolError

if TYPE_CHECKING:
    from bruce_mp.protocol.client.record_headers import Header

__all__ = ["NO_INFO", "DiscardLine", "LineEvent", "format_debug_line", "format_line", "info_of", "parse_line"]


NO_INFO: Final = "NONE"
"""The info field of a possible duplicate."""


@unique
class LineEvent(Enum):
    """The event field of a line."""

    DISCARD = "DISC"
    DUPLICATE = "DUP"
    """The daemon has sent the message again, although Kafka may already have it. The info field is NONE."""


@dataclass(frozen=True, slots=True)
class DiscardLine:
    """The fields of a line.

    `now_ms` is the time of writing, and `timestamp_ms` the message's timestamp, both in ms since the epoch. `info`
    contains no space; `info_of` returns the info for a discard reason. `empty` is a sum of `messages.EmptyFields`.
    """

    now_ms: int
    timestamp_ms: int
    event: LineEvent
    info: str
    topic: bytes
    key: bytes
    value: bytes
    partition_key: int | None = None
    headers: tuple[Header, ...] = ()
    empty: int = 0


def info_of(reason: DiscardReason, number: int = 0, *, is_tcp: bool = False) -> str:
    """Return the info field for a discard reason.

    Some reasons need an argument: `number` is the unsupported API key or version, and `is_tcp` tells a disconnected TCP
    client from one of a UNIX stream socket.
    """
    match reason:
        case DiscardReason.UNSUPPORTED_API_KEY:
            return f"API_KEY({number})"
        case DiscardReason.UNSUPPORTED_VERSION:
            return f"VERSION({number})"
        case DiscardReason.UNCLEAN_DISCONNECT:
            return "UNCLEAN_T" if is_tcp else "UNCLEAN_U"
        case _:
            return reason.name


# --- writing ---------------------------------------------------------------------------------------------------------

_NULL: Final = b"-"
_UNSAFE_BYTE: Final = re.compile(rb"[^\x20-\x7e]|\\")


def format_line(line: DiscardLine) -> bytes:
    """Return the bytes of the line, with a newline."""
    head = f"now: {line.now_ms} ts: {line.timestamp_ms} event: {line.event.value} info: {line.info} "
    fields = (("topic", _escape(line.topic)), ("key", b64encode(line.key)), ("msg", b64encode(line.value)))
    tail = b"" if line.partition_key is None else b" pkey: %d" % line.partition_key
    if line.headers:
        tail += b" hdrs: " + b",".join(map(_format_header, line.headers))
    if line.empty:
        tail += b" empty: %d" % line.empty
    return head.encode() + _format_bracketed(fields) + tail + b"\n"


def _format_header(header: Header) -> bytes:
    key, value = header
    return b64encode(key) + b":" + (_NULL if value is None else b64encode(value))


def format_debug_line(timestamp_ms: int, topic: bytes, key: bytes, value: bytes) -> bytes:
    """Return a line of a debug file, with a newline. Nothing is truncated."""
    fields = (("topic", _escape(topic)), ("key", b64encode(key)), ("value", b64encode(value)))
    return b"ts: %d %b\n" % (timestamp_ms, _format_bracketed(fields))


def _escape(topic: bytes) -> bytes:
    return _UNSAFE_BYTE.sub(lambda match: b"\\x%02x" % match[0][0], topic)


def _format_bracketed(fields: tuple[tuple[str, bytes], ...]) -> bytes:
    return b" ".join([b"%b: %d[%b]" % (name.encode(), len(text), text) for name, text in fields])


# --- reading ---------------------------------------------------------------------------------------------------------

_HEAD: Final = re.compile(rb"now: (\d{1,20}) ts: (-?\d{1,20}) event: (DISC|DUP) info: (\S+) ")
_FIELD_START: Final = re.compile(rb"(\w+): (\d{1,20})\[")
_OPTIONAL_FIELD: Final = re.compile(rb" (\w+): (\S+)")
_EMPTY_BY_TEXT: Final = {b"%d" % fields: fields for fields in range(0, 32, 4)}
"""The valid values of `empty` by their text: all sums of the `EmptyFields` 4, 8 and 16."""
_MAX_PKEY_DIGITS: Final = len(str((1 << 32) - 1))
_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")


def parse_line(data: bytes) -> DiscardLine:
    """Parse a line, with or without a newline. Raise RemoteProtocolError if the bytes are not such a line."""
    data = data.removesuffix(b"\n")
    head = _HEAD.match(data)
    if head is None:
        raise RemoteProtocolError(
            "A line of a discard file begins with `now: MS ts: MS event: E info: I`; this does not."
        )
    now, timestamp, event, info = head.groups()
    topic, end = _read_bracketed(data, head.end(), b"topic")
    key, end = _read_bracketed(data, end + 1, b"key")  # + 1 for the space between two fields
    value, end = _read_bracketed(data, end + 1, b"msg")
    optional = _read_optional(data, end)
    return DiscardLine(
        now_ms=int(now),
        timestamp_ms=int(timestamp),
        event=LineEvent(event.decode()),
        info=info.decode("ascii", "backslashreplace"),
        topic=_ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), topic),
        key=_unbase64(key, "key"),
        value=_unbase64(value, "msg"),
        partition_key=_parse_partition_key(optional.get(b"pkey")),
        headers=_parse_headers(optional.get(b"hdrs")),
        empty=_parse_empty(optional.get(b"empty")),
    )


def _read_bracketed(data: bytes, start: int, name: bytes) -> tuple[bytes, int]:
    """Return the text of the field `name: LEN[text]` at byte `start`, and the index of the byte after the field."""
    opening = _FIELD_START.match(data, start)
    is_after_space = data[start - 1 : start] == b" "
    if opening is None or opening[1] != name or not is_after_space:
        raise RemoteProtocolError(f"Byte {start} of a line of a discard file should begin `{name.decode()}: LENGTH[`.")
    text_start, text_end = opening.end(), opening.end() + int(opening[2])
    if data[text_end : text_end + 1] != b"]":
        raise RemoteProtocolError(f"The {name.decode()} of a line of a discard file is not as long as it says.")
    return data[text_start:text_end], text_end + 1


def _unbase64(text: bytes, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Error as error:
        raise RemoteProtocolError(f"The {name} of a line of a discard file is not base64.") from error


def _read_optional(data: bytes, start: int) -> dict[bytes, bytes]:
    """Return the optional fields, which begin at byte `start`, by name."""
    fields: dict[bytes, bytes] = {}
    while start < len(data):
        field = _OPTIONAL_FIELD.match(data, start)
        if field is None:
            raise RemoteProtocolError(f"Byte {start} of a line of a discard file should begin ` NAME: VALUE`.")
        fields[field[1]], start = field[2], field.end()
    return fields


def _parse_headers(text: bytes | None) -> tuple[Header, ...]:
    if text is None:
        return ()
    pairs = [pair.split(b":") for pair in text.split(b",")]
    if any(len(pair) != 2 for pair in pairs):
        raise RemoteProtocolError("The hdrs of a line of a discard file are not pairs of key and value.")
    return tuple((_unbase64(key, "hdrs"), None if value == _NULL else _unbase64(value, "hdrs")) for key, value in pairs)


def _parse_partition_key(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > _MAX_PKEY_DIGITS or int(text) >= 1 << 32:
        raise RemoteProtocolError("The pkey of a line of a discard file is not an unsigned number of 32 bits.")
    return int(text)


def _parse_empty(text: bytes | None) -> int:
    if text is None:
        return 0
    empty = _EMPTY_BY_TEXT.get(text)
    if empty is None:
        raise RemoteProtocolError('The field "empty" of a line of a discard file is not a sum of 4, 8 and 16.')
    return empty
