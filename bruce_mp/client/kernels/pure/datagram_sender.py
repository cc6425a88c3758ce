"""The sender of a datagram client: one `send()` for each message, and counts of the sent messages."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.client.kernels.fields import encode_fields

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from bruce_mp.protocol.client.record_headers import Buffer, HeaderInput

__all__ = ["DatagramSender"]


_NEVER: Final = -1


class DatagramSender:
    """Sends datagrams to the process that is bound to `path`.

    The sender connects the socket, because the kernel needs twice the time to look up the path for each message.  It
    connects again each second, in case the path has another owner although the old socket is still open.

    Args:
        lock: held during each call, so that no thread sends from a closed descriptor.
        opened: the socket; the caller closes it after `close()`.
        path: the path of the daemon's socket, at most 107 bytes.
        max_message: size in bytes of the largest message that `accept` sends.
    """

    def __init__(self, lock: threading.RLock, opened: socket.socket, path: str, max_message: int) -> None:
        self._lock = lock
        self._socket: socket.socket | None = opened
        self._path = path
        self._max_message = max_message
        self._connected_in = _NEVER
        """Second of the monotonic clock in which the socket was connected; `_NEVER` = it is not connected."""
        self.sent = 0
        self.sent_bytes = 0

    # Named like the method of `SendBuffer`; it has nothing to do with `socket.accept`.
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
        """Encode and send a message without waiting, and return True if the kernel accepted it.

        If not, the caller may send the message to the path, whose owner may have changed.
        """
        message = encode_fields(topic, value, key, partition_key, timestamp_ms, headers, keep_empty)
        with self._lock:
            if len(message) > self._max_message or self._socket is None:
                return False
            try:
                self._connect(self._socket)
                self._socket.send(message, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                self._connected_in = _NEVER
                return False
            self.count(len(message))
        return True

    def _connect(self, opened: socket.socket) -> None:
        """Connect the socket once a second."""
        second = int(time.monotonic())
        if self._connected_in != second:
            opened.connect(self._path)
            self._connected_in = second

    def count(self, size: int) -> None:
        """Count a message of `size` bytes that the caller has sent itself."""
        with self._lock:
            self.sent += 1
            self.sent_bytes += size

    def close(self) -> None:
        """Refuse all further messages."""
        with self._lock:
            self._socket = None
