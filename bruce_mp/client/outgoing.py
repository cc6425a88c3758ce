"""What a stream client still has to write: messages back to back, and how far the first ones are written.

Writing stops anywhere, a message is only worth something whole: when a connection breaks, the message that was being
written begins anew on the next one (`rewind`).  No sockets here.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Done", "Outgoing"]

Buffer = bytes | bytearray | memoryview


class Done(NamedTuple):
    """What a write completed."""

    messages: int
    bytes: int


class Outgoing:
    """A queue of bytes that knows its messages.  `len()` is in bytes; a message counts until it is written whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._sizes: deque[tuple[int, bool]] = deque()
        """Size of each message, and whether it counts as one: a barrier does not."""
        self._written = 0
        """Bytes at the front that this connection has taken; always less than the first message."""
        self.messages = 0

    def __len__(self) -> int:
        return len(self._bytes)

    def append(self, message: Buffer, *, counts: bool = True) -> None:
        """Put a message at the end."""
        self._bytes += message
        self._sizes.append((len(message), counts))
        self.messages += counts

    @contextmanager
    def unwritten(self) -> Iterator[memoryview]:
        """What is to be written next; valid inside the `with` block."""
        with memoryview(self._bytes) as whole, whole[self._written :] as rest:
            yield rest

    def wrote(self, size: int) -> Done:
        """The next `size` bytes are written; what that completed leaves the queue."""
        self._written += size
        messages = done = 0
        while self._sizes and self._written - done >= self._sizes[0][0]:
            length, counts = self._sizes.popleft()
            done += length
            messages += counts
        del self._bytes[:done]
        self._written -= done
        self.messages -= messages
        return Done(messages, done)

    def rewind(self) -> bool:
        """The connection broke; whether it did so within a message, which now begins anew."""
        was_within, self._written = self._written > 0, 0
        return was_within

    def take_back(self) -> bool:
        """Remove the last message if nothing of it is written; whether it was removed."""
        if not self._sizes or (len(self._sizes) == 1 and self._written):
            return False
        size, counts = self._sizes.pop()
        del self._bytes[len(self._bytes) - size :]
        self.messages -= counts
        return True

    def drop_first(self) -> int:
        """Remove what is first, only after `rewind`; how many messages that is: 1, or 0 for a barrier."""
        assert not self._written
        size, counts = self._sizes.popleft()
        del self._bytes[:size]
        self.messages -= counts
        return int(counts)

    def clear(self) -> int:
        """Remove everything; the number of messages."""
        lost = self.messages
        self.__init__()  # type: ignore[misc]
        return lost
