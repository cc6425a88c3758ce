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

    messages: int
    bytes: int


class SendBuffer:
    """A byte queue with message boundaries. `len()` is in bytes; a message counts until it is written whole.

    The caller of every method but `accept` holds `lock`.

    Args:
        lock: the lock of the client.
        max_message: the largest message that `accept` takes.
    """

    def __init__(self, lock: threading.Lock, max_message: int) -> None:
        self._lock = lock
        self._max_message = max_message
        self._bytes = bytearray()
        self._sizes: deque[tuple[int, bool]] = deque()
        """Size of each message or frame, and True if it counts as a message: barriers and fences do not."""
        self._written = 0
        """Bytes of the first message that are written to the present connection; always less than its size."""
        self.messages = 0
        self.room = 0
        """Bytes up to which `accept` fills the buffer. Each other holder of `lock` sets it to 0, and may raise it once
        a write is scheduled."""

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
        """Return the bytes to write next. Release the view before another method is called."""
        return memoryview(self._bytes)[self._written :]

    def on_written(self, size: int) -> WrittenMessages:
        """Remove and count the messages that `size` more written bytes complete."""
        self._written += size
        messages = done_bytes = 0
        while self._sizes and self._written - done_bytes >= self._sizes[0][0]:
            message_size, is_message = self._sizes.popleft()
            done_bytes += message_size
            messages += is_message
        del self._bytes[:done_bytes]
        self._written -= done_bytes
        self.messages -= messages
        return WrittenMessages(messages, done_bytes)

    def rewind(self) -> bool:
        """Restart the first message after a break of the connection. Return True if it was partly written."""
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
        """Remove the first message after a `rewind`. Return 1 if it counts as a message, else 0."""
        assert not self._written
        size, is_message = self._sizes.popleft()
        del self._bytes[:size]
        self.messages -= is_message
        return int(is_message)

    def clear(self) -> int:
        """Remove all messages and return their number."""
        lost = self.messages
        self._bytes, self._written, self.messages = bytearray(), 0, 0
        self._sizes.clear()
        return lost
