"""Split the stream of bytes from a broker into frames.  A frame is a size of 4 bytes, and as many bytes of content.

The reader checks the size as soon as it has 4 bytes, before it waits for the content.  So it detects at once a peer
that is not a Kafka broker.

Separate because framing needs neither the state of the connection nor the versions of its requests.
"""

from __future__ import annotations

from typing import Final

from bruce_mp.errors import RemoteProtocolError

__all__ = ["DEFAULT_MAX_FRAME", "FrameReader"]

DEFAULT_MAX_FRAME: Final = 100 * 1024 * 1024
"""The largest content in bytes, as Kafka's default limit for requests (socket.request.max.bytes) and about librdkafka's
default limit for responses."""
SIZE_BYTES: Final = 4
MIN_FRAME: Final = 4  # the size of the correlation id, the first field of each response


class FrameReader:
    """Splitter of received bytes into frames; `max_frame` is the largest allowed content in bytes."""

    def __init__(self, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self._max_frame = max_frame
        # A deletion at the front of a bytearray moves a pointer and rarely copies the rest.  So the cost of all
        # deletions is proportional to the number of bytes, however many frames and reads there are.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes; then call `next_frame` until it returns None."""
        self._buffer += data

    def next_frame(self, min_size: int = MIN_FRAME) -> bytes | None:
        """Return the content of the next frame, or None if the frame is not complete yet.

        Raises RemoteProtocolError if the size of the content is below `min_size` or above `max_frame`; then the stream
        is unusable.
        """
        if len(self._buffer) < SIZE_BYTES:
            return None
        size = int.from_bytes(self._buffer[:SIZE_BYTES], "big", signed=True)
        if not min_size <= size <= self._max_frame:
            start = bytes(self._buffer[:16])
            raise RemoteProtocolError(
                f"A response claims {size} bytes (allowed: {min_size} to {self._max_frame}); it starts with {start!r}. "
                "Check that the port is really Kafka's, and without TLS."
            )
        end = SIZE_BYTES + size
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            frame = bytes(view[SIZE_BYTES:end])
        del self._buffer[:end]
        return frame
