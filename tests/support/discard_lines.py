"""A reader of the discard file's lines, which `bruce_mp.discards.file_line` writes."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.file_line import DiscardLine, LineEvent
from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from bruce_mp.protocol.client.record_headers import Header

__all__ = ["parse_line"]

_NULL: Final = b"-"
_HEAD: Final = re.compile(rb"now: (\d{1,20}) ts: (-?\d{1,20}) event: (DISC|DUP) info: (\S+) ")
_OPENING: Final = re.compile(rb"(\w+): (\d{1,20})\[")
_FIELD: Final = re.compile(rb" (\w+): (\S+)")
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")


def parse_line(data: bytes) -> DiscardLine:
    """Parse a line, with or without its newline. Raise RemoteProtocolError for other bytes."""
    data = data.removesuffix(b"\n")
    head = _HEAD.match(data)
    if head is None:
        raise RemoteProtocolError(
            "A line of a discard file begins with `now: MS ts: MS event: E info: I`; this does not."
        )
    now, timestamp, event, info = head.groups()
    topic, at = _bracketed(data, head.end(), b"topic")
    key, at = _bracketed(data, at + 1, b"key")
    value, at = _bracketed(data, at + 1, b"msg")
    more = _further(data, at)
    return DiscardLine(
        now_ms=int(now),
        timestamp_ms=int(timestamp),
        event=LineEvent(event.decode()),
        info=info.decode("ascii", "backslashreplace"),
        topic=_ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), topic),
        key=_unbase64(key, "key"),
        value=_unbase64(value, "msg"),
        partition_key=_partition_key(more.get(b"pkey")),
        headers=_headers(more.get(b"hdrs")),
        empty=int(more.get(b"empty", b"0")),
    )


def _bracketed(data: bytes, at: int, name: bytes) -> tuple[bytes, int]:
    """Return the text of the field `name: LEN[text]` at byte `at`, and the field's end."""
    opening = _OPENING.match(data, at)
    if opening is None or opening[1] != name or data[at - 1 : at] != b" ":
        raise RemoteProtocolError(f"Byte {at} of a line of a discard file should begin `{name.decode()}: LENGTH[`.")
    start, end = opening.end(), opening.end() + int(opening[2])
    if data[end : end + 1] != b"]":
        raise RemoteProtocolError(f"The {name.decode()} of a line of a discard file is not as long as it says.")
    return data[start:end], end + 1


def _unbase64(text: bytes, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Error as error:
        raise RemoteProtocolError(f"The {name} of a line of a discard file is not base64: {error}.") from error


def _further(data: bytes, at: int) -> dict[bytes, bytes]:
    """Return the fields behind the message."""
    fields: dict[bytes, bytes] = {}
    while at < len(data):
        field = _FIELD.match(data, at)
        if field is None:
            raise RemoteProtocolError(f"Byte {at} of a line of a discard file should begin ` NAME: VALUE`.")
        fields[field[1]], at = field[2], field.end()
    return fields


def _headers(text: bytes | None) -> tuple[Header, ...]:
    if text is None:
        return ()
    pairs = [pair.split(b":") for pair in text.split(b",")]
    if any(len(pair) != 2 for pair in pairs):
        raise RemoteProtocolError("The hdrs of a line of a discard file are not pairs of key and value.")
    return tuple((_unbase64(key, "hdrs"), None if value == _NULL else _unbase64(value, "hdrs")) for key, value in pairs)


def _partition_key(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > _LONGEST_KEY or int(text) >= 1 << 32:
        raise RemoteProtocolError("The pkey of a line of a discard file is not a number of 32 bits.")
    return int(text)


_LONGEST_KEY: Final = len(str((1 << 32) - 1))
