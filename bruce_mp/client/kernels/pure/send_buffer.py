"""The send buffer of a stream client: messages back to back, and the number of written bytes.

A write may stop at any byte, but the daemon needs whole messages. After a break of the connection, the partly
written message is sent again from its start (`rewind`). This module uses no sockets.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.client.kernels.fields import encode_fields

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from bruce_mp.protocol.client.record_headers import Buffer, HeaderInput

__all__ = ["SendBuffer", "WrittenMessages"]


class WrittenMessages(NamedTuple):
    """The messages that a write completed."""

    message_count: int
    byte_count: int


class SendBuffer:
    """A byte queue with message boundaries. `len()` is in bytes, and includes all of a partly written message.

    The caller of every method except `accept` holds `lock`.

    Args:
        lock: the lock of the client.
        max_message: the largest message that `accept` takes.
    """

    def __init__(self, lock: threading.Lock, max_message: int) -> None:
        self._lock = lock
        self._max_message = max_message
        self._bytes = bytearray()
        self._sizes: deque[tuple[int, bool]] = deque()
        """Size of each message or frame; True for a message, False for a frame, such as a barrier."""
        self._written = 0
        """Number of bytes of the first message that are written to the present connection; never all its bytes."""
        self.messages = 0
        """Number of messages in the buffer, without frames."""
        self.room = 0
        """Number of bytes up to which `accept` may fill the buffer. Every thread that acquires `lock` outside of
        `accept` sets it to 0, and may raise it once a write is scheduled."""

    def __len__(self) -> int:
        return len(self._bytes)

    def accept(  # noqa: PLR0917  # keywords would cost as much as the rest of the call
        self,
        topic: bytes | str,
        value: Buffer | None,
        key: Buffer | None,
        partition_key: int | None,
        timestamp_ms: int | None,
        headers: Sequence[HeaderInput],
        keep_empty: bool,
    ) -> bool:
        """Encode and append a message without waiting, and return True if there was room."""
        if not self.room:
            return False
        message = encode_fields(topic, value, key, partition_key, timestamp_ms, headers, keep_empty)
        if len(message) > self._max_message or not self._lock.acquire(blocking=False):
            return False
        try:
            if len(self._bytes) + len(message) > self.room:
                return False
            self.append(message)
        finally:
            self._lock.release()
        return True

    def append(self, message: Buffer, *, is_message: bool = True) -> None:
        self._bytes += message
        self._sizes.append((len(message), is_message))
        self.messages += is_message

    def unwritten(self) -> memoryview:
        """Return the bytes to write next. The caller releases the view before it calls another method."""
        return memoryview(self._bytes)[self._written :]

    def on_written(self, size: int) -> WrittenMessages:
        """Record that `size` more bytes are written; remove and count the messages that are now written whole."""
        self._written += size
        message_count = byte_count = 0
        while self._sizes and self._written - byte_count >= self._sizes[0][0]:
            first_size, is_message = self._sizes.popleft()
            byte_count += first_size
            message_count += is_message
        del self._bytes[:byte_count]
        self._written -= byte_count
        self.messages -= message_count
        return WrittenMessages(message_count, byte_count)

    def rewind(self) -> bool:
        """Let the first message be written again from its start, on another connection.

        Return True if it was partly written.
        """
        was_partial, self._written = self._written > 0, 0
        return was_partial

    def remove_last(self) -> bool:
        """Remove the last message if none of it is written, and return True if it was removed."""
        if not self._sizes or (len(self._sizes) == 1 and self._written):
            return False
        size, is_message = self._sizes.pop()
        del self._bytes[len(self._bytes) - size :]
        self.messages -= is_message
        return True

    def remove_first(self) -> int:
        """Remove the first message or frame, after a `rewind`. Return 1 for a message, 0 for a frame."""
        assert not self._written
        size, is_message = self._sizes.popleft()
        del self._bytes[:size]
        self.messages -= is_message
        return int(is_message)

    def clear(self) -> int:
        """Remove all messages and return their number."""
        lost_count = self.messages
        self._bytes, self._written, self.messages = bytearray(), 0, 0
        self._sizes.clear()
        return lost_count
