"""Copies of messages, on their way from a process of the message path to the files that status writes.

A copy is for a file: of discarded messages, or one of those for debugging.  `Copies` lives in the process that has the
message.  It never blocks and is bounded: what the link refuses waits, and what finds no room with it is not copied but
counted.  So is, in status, what cannot be written.  Delivery depends on none of it.
"""

# No `from __future__ import annotations` here: what the annotations name is used at run time.

from collections.abc import Callable
from enum import IntEnum, unique
from typing import Final, Protocol

import msgspec

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.telemetry.counters import Counter

__all__ = ["ByteSender", "Copies", "Copy", "Target", "decode_copies"]

FRAME_BYTES: Final = 256 * 1024
"""So much goes on its way at once."""
WAITING_BYTES: Final = 8 << 20
"""So much waits at the most, or one message that is larger."""
_OVERHEAD: Final = 100


@unique
class Target(IntEnum):
    """The file that a copy is for."""

    DISCARDS = 0
    MSG_RECEIVE = 1
    MSG_SEND = 2
    MSG_GOT_ACK = 3


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A message, or the beginnings of its key and value.

    `info` says why it was discarded; empty for a possible duplicate and for debugging.  Without a `topic` the value is
    what was received.  Times in ms: `now_ms` on our clock, `timestamp_ms` the client's.
    """

    target: Target
    now_ms: int
    timestamp_ms: int
    info: str
    topic: bytes
    key: bytes
    value: bytes
    partition_key: int | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


_DECODER: Final[msgspec.msgpack.Decoder[list[Copy]]] = msgspec.msgpack.Decoder(list[Copy])


def decode_copies(data: bytes) -> list[Copy]:
    """What `Copies` sends.  Raises RemoteProtocolError for bytes that are no copies."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"A process sent copies of messages that cannot be read: {error}.") from error


class ByteSender(Protocol):
    """As `pipes.links.Sender`."""

    def send_bytes(self, data: bytes) -> bool:
        """Send without blocking; False when it was refused."""


class Copies:
    """The copies that one process makes.  `count(counter, amount)` raises a counter of it."""

    def __init__(self, sender: ByteSender, count: Callable[[Counter, int], None]) -> None:
        self._sender = sender
        self._count = count
        self._waiting: list[Copy] = []
        self._bytes = 0
        self._is_refused = False

    @property
    def pending(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._waiting)

    def add(self, copy: Copy) -> None:
        """Let a copy go to its file, if there is room on the way."""
        headers = sum(len(key) + len(value or b"") for key, value in copy.headers)
        size = len(copy.topic) + len(copy.key) + len(copy.value) + headers + _OVERHEAD
        if self._waiting and self._bytes + size > WAITING_BYTES:
            self._count(Counter.MsgCopyLost, 1)
            return
        self._waiting.append(copy)
        self._bytes += size
        if self._bytes >= FRAME_BYTES and not self._is_refused:
            self.flush()

    def flush(self) -> None:
        """Send what waits.  Meant to be called a few times a second; costs nothing when there is nothing."""
        if self._waiting:
            self._is_refused = not self._sender.send_bytes(msgspec.msgpack.encode(self._waiting))
            if not self._is_refused:
                self._waiting, self._bytes = [], 0
