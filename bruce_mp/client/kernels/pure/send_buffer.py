"""The send buffer of a stream client: encoded messages without gaps, and the number of written bytes.

A write may end within a message, but the daemon needs whole messages. So after a break of the connection, the client
writes the partly written message again from its start (`rewind`). This module uses no sockets.
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
    """Counts of the messages and frames that a write completed; `message_count` is without frames."""

    message_count: int
    byte_count: int


class SendBuffer:
    """A byte queue with message boundaries. `len()` is its number of bytes, with all bytes of a partly written message.

    The caller of every method except `accept` holds `lock`.

    Args:
        lock: the lock of the client.
        max_message: size in bytes of the largest message that `accept` takes.
    """

    def __init__(self, lock: threading.Lock, max_message: int) -> None:
        self._lock = lock
        self._max_message = max_message
        self._bytes = bytearray()
        self._sizes: deque[tuple[int, bool]] = deque()
        """The size in bytes of each message or frame, and True for a message, False for a frame such as a barrier."""
        self._written = 0
        """Number of bytes of the first message that are written to the present connection; less than its size."""
        self.message_count = 0
        """Number of messages in the buffer, without frames."""
        self.fill_limit = 0
        """Number of bytes up to which `accept` may fill the buffer. A thread that acquires `lock` outside of `accept`
        sets it to 0, and may raise it after it has scheduled the writer thread."""

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
        if not self.fill_limit:
            return False
        message = encode_fields(topic, value, key, partition_key, timestamp_ms, headers, keep_empty)
        if len(message) > self._max_message or not self._lock.acquire(blocking=False):
            return False
        try:
            if len(self._bytes) + len(message) > self.fill_limit:
                return False
            self.append(message)
        finally:
            self._lock.release()
        return True

    def append(self, message: Buffer, *, is_message: bool = True) -> None:
        self._bytes += message
        self._sizes.append((len(message), is_message))
        self.message_count += is_message

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
        self.message_count -= message_count
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
        self.message_count -= is_message
        return True

    def remove_first(self) -> int:
        """Remove the first message or frame; the caller has called `rewind`. Return the number of removed messages."""
        assert not self._written
        size, is_message = self._sizes.popleft()
        del self._bytes[:size]
        self.message_count -= is_message
        return int(is_message)

    def clear(self) -> int:
        """Remove all messages and return their number."""
        lost_count = self.message_count
        self._bytes, self._written, self.message_count = bytearray(), 0, 0
        self._sizes.clear()
        return lost_count
