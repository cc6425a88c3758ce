"""The line format of the discard file: one line for a discarded message or a possible duplicate.

    now: MS ts: TS event: E info: I topic: LEN[T] key: LEN[B64] msg: LEN[B64]

This is Dory's line; LEN counts the bytes between the brackets. Four additions allow a message to be sent again from
its line:

* ` pkey: N` at the end holds the unsigned key of a PartitionKey message. Parsers of Dory's
  lines skip unknown fields behind `msg`.
* ` hdrs: K:V,K:V,...` behind that holds record headers: keys and values in base64, `-` for a null value.
* ` empty: N` behind that holds the client's choice between null and empty, a sum of `EmptyFields`.
* In a topic, every byte outside printable ASCII, and the backslash, is written as `\\xHH`. A line thus stays one line
  for any client data. Topics that Kafka allows contain no such byte.

An empty key or message is `0[]`, and so is a topic that could not be parsed; `msg` then holds the received bytes. The
writer may truncate key and message and omit headers, without a mark in the line.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason

if TYPE_CHECKING:
    from bruce_mp.protocol.client.record_headers import Header

__all__ = ["NO_INFO", "DiscardLine", "LineEvent", "format_debug_line", "format_line", "info_of"]


NO_INFO: Final = "NONE"
"""Info of a possible duplicate."""


@unique
class LineEvent(Enum):
    """Event of a line."""

    DISCARD = "DISC"
    DUPLICATE = "DUP"
    """A resent message that Kafka may have twice. Its info is NONE."""


@dataclass(frozen=True, slots=True)
class DiscardLine:
    """Fields of a line. Times are in ms since the epoch: `now_ms` by the writer, `timestamp_ms` by the client.

    `info` is one word, such as `info_of` returns.
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
    """Return the info of a reason.

    `number` is the unsupported API key or version. `is_tcp` distinguishes unclean disconnects of TCP from those of UNIX
    streams.
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
_ESCAPED_BYTES: Final = re.compile(rb"[^\x20-\x7e]|\\")


def format_line(line: DiscardLine) -> bytes:
    """Return the line with its newline."""
    head = f"now: {line.now_ms} ts: {line.timestamp_ms} event: {line.event.value} info: {line.info} "
    fields = (("topic", _escaped(line.topic)), ("key", b64encode(line.key)), ("msg", b64encode(line.value)))
    tail = b"" if line.partition_key is None else b" pkey: %d" % line.partition_key
    if line.headers:
        tail += b" hdrs: " + b",".join(map(_header_text, line.headers))
    if line.empty:
        tail += b" empty: %d" % line.empty
    return head.encode() + _joined(fields) + tail + b"\n"


def _header_text(header: Header) -> bytes:
    key, value = header
    return b64encode(key) + b":" + (_NULL if value is None else b64encode(value))


def format_debug_line(timestamp_ms: int, topic: bytes, key: bytes, value: bytes) -> bytes:
    """Return a line of a debug file with its newline. Nothing is truncated."""
    fields = (("topic", _escaped(topic)), ("key", b64encode(key)), ("value", b64encode(value)))
    return b"ts: %d %b\n" % (timestamp_ms, _joined(fields))


def _escaped(topic: bytes) -> bytes:
    return _ESCAPED_BYTES.sub(lambda match: b"\\x%02x" % match[0][0], topic)


def _joined(fields: tuple[tuple[str, bytes], ...]) -> bytes:
    return b" ".join([b"%b: %d[%b]" % (name.encode(), len(text), text) for name, text in fields])
