"""Split the stream from a broker into frames: a 4-byte size, then that many bytes.

The reader checks a frame's size before it waits for the content, so the first four bytes expose a peer that is not a
Kafka broker.

Separate because framing needs neither the state of the connection nor the versions of its requests.
"""

from __future__ import annotations

from typing import Final

from bruce_mp.errors import RemoteProtocolError

__all__ = ["DEFAULT_MAX_FRAME", "FrameReader"]

DEFAULT_MAX_FRAME: Final = 100 * 1024 * 1024
"""About Kafka's limit for a request (socket.request.max.bytes) and librdkafka's for a response, in bytes."""
SIZE_BYTES: Final = 4
MIN_FRAME: Final = 4  # a correlation id


class FrameReader:
    """Split received bytes into frames."""

    def __init__(self, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self._max_frame = max_frame
        # Deletion from the front of a bytearray moves a pointer and rarely copies the rest, so the cost is linear in
        # the bytes, both for many small frames in one read and for one large frame in many reads.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes; `next_frame` returns them as frames."""
        self._buffer += data

    def next_frame(self, smallest: int = MIN_FRAME) -> bytes | None:
        """Return the next whole frame without its size; None if it is not complete yet.

        Raises RemoteProtocolError for an invalid size, after which the stream is unusable.
        """
        if len(self._buffer) < SIZE_BYTES:
            return None
        size = int.from_bytes(self._buffer[:SIZE_BYTES], "big", signed=True)
        if not smallest <= size <= self._max_frame:
            start = bytes(self._buffer[:16])
            raise RemoteProtocolError(
                f"A response claims {size} bytes (allowed: {smallest} to {self._max_frame}); it starts with {start!r}. "
                "Check that the port is really Kafka's, and without TLS."
            )
        end = SIZE_BYTES + size
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            frame = bytes(view[SIZE_BYTES:end])
        del self._buffer[:end]
        return frame
