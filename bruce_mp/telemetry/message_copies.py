"""Copies of messages for the discard file and the debug files, which the status process writes.

The process that holds a message puts its copy into a `CopyQueue`, which never blocks. If the link to the status process
refuses the queued copies, they wait for the next flush. If the queue has no room for a copy, the copy is dropped. The
counter MsgCopyLost counts dropped copies, and copies that the status process cannot write. Delivery does not depend on
copies.

A process *prepares* copies of messages that it is about to discard. One transaction marks these messages as discarded
and counts the copies in DiscardCopyQueued; then the process queues the copies. DiscardCopySettled counts the copies
that were written or lost. If the daemon is killed, its next start adds the difference of these two counters to
MsgCopyLost.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from collections.abc import Callable, Sequence
from enum import IntEnum, unique
from typing import Final, Protocol

import msgspec

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.telemetry.counters import Counter

__all__ = ["ByteSender", "Copy", "CopyQueue", "CopyTarget", "count_lost", "decode_copies"]

FRAME_BYTES: Final = 256 * 1024
"""When the queued copies reach this size, `add` sends them without waiting for the next flush."""
MAX_QUEUED_BYTES: Final = 8 << 20
"""The maximum size of the queued copies; an empty queue accepts even a larger copy."""
_COPY_OVERHEAD_BYTES: Final = 100
"""The estimated memory that a queued copy takes in addition to the message's bytes."""


@unique
class CopyTarget(IntEnum):
    """The destination of a copy: the discard file and the dead letter topic, or a file of message debugging."""

    DISCARDS = 0
    MSG_RECEIVE = 1
    MSG_SEND = 2
    MSG_GOT_ACK = 3


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """A copy of a message; key and value may be cut.

    `copied_ms` is the time of the copy by the wall clock; `timestamp_ms` is the timestamp that the client gave the
    message. `info` is the discard reason, or empty for a possible duplicate or a debug copy. If `topic` is empty, the
    message was not parsed, and `value` holds the received bytes.
    """

    target: CopyTarget
    copied_ms: int
    timestamp_ms: int
    info: str
    topic: bytes
    key: bytes
    value: bytes
    partition_key: int | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    empty_fields: int = 0
    """Flags of `protocol.client.messages.EmptyFields`: whether a key or value without bytes is null or empty."""


_DECODER: Final[msgspec.msgpack.Decoder[list[Copy]]] = msgspec.msgpack.Decoder(list[Copy])


def decode_copies(data: bytes) -> list[Copy]:
    """Decode a frame from `CopyQueue`. Raise RemoteProtocolError for bytes that are no such frame."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError("A process sent copies of messages that cannot be read.") from error


def count_lost(count: Callable[[Counter, int], None], copies: Sequence[Copy]) -> None:
    """Count lost copies; `count(counter, amount)` adds to a counter of the process."""
    count(Counter.MsgCopyLost, len(copies))
    count(Counter.DiscardCopySettled, sum(copy.target is CopyTarget.DISCARDS for copy in copies))


class ByteSender(Protocol):
    """The sending end of a link between processes, such as `ipc.links.LinkSender`."""

    def send_bytes(self, data: bytes) -> bool:
        """Send without blocking. Return False if the link refused the data."""


class CopyQueue:
    """Queue of the copies of one process. `count(counter, amount)` adds to a counter of the process."""

    def __init__(self, sender: ByteSender, count: Callable[[Counter, int], None]) -> None:
        self._sender = sender
        self._count = count
        self._prepared: list[Copy] = []
        self._queued: list[Copy] = []
        self._queued_bytes = 0
        self._is_link_full = False
        """True if the link refused the last frame."""

    @property
    def has_pending(self) -> bool:
        return bool(self._queued or self._prepared)

    @property
    def prepared_count(self) -> int:
        return len(self._prepared)

    def prepare(self, copy: Copy) -> None:
        """Keep a copy until `queue_prepared` or `flush`."""
        self._prepared.append(copy)

    def queue_prepared(self) -> None:
        """Queue the prepared copies, which the caller has counted in DiscardCopyQueued."""
        prepared, self._prepared = self._prepared, []
        for copy in prepared:
            self.add(copy)

    def add(self, copy: Copy) -> None:
        """Queue a copy, or drop and count it if the queue is full."""
        headers_size = sum(len(key) + len(value or b"") for key, value in copy.headers)
        size = len(copy.topic) + len(copy.key) + len(copy.value) + headers_size + _COPY_OVERHEAD_BYTES
        if self._queued and self._queued_bytes + size > MAX_QUEUED_BYTES:
            count_lost(self._count, [copy])
            return
        self._queued.append(copy)
        self._queued_bytes += size
        if self._queued_bytes >= FRAME_BYTES and not self._is_link_full:
            self.flush()

    def flush(self) -> None:
        """Send all queued copies. First count and queue the prepared copies, as no transaction has counted them yet.

        Processes call this twice a second.
        """
        if self._prepared:
            self._count(Counter.DiscardCopyQueued, len(self._prepared))
            self.queue_prepared()
        if self._queued:
            self._is_link_full = not self._sender.send_bytes(msgspec.msgpack.encode(self._queued))
            if not self._is_link_full:
                self._queued, self._queued_bytes = [], 0
