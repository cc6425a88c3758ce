"""Client of the daemon's datagram socket: one system call for each message, no thread and no reply.

* The client survives restarts of the daemon: if the sender's connected socket refuses a message, the client sends it to
  the path, that is, to the process that is bound to the path at that moment.
* If the daemon's queue is full, the client waits on a second socket. Calls on the first socket never block, so threads
  hold a lock only briefly.
* A sent datagram is in the queue of the daemon's socket. The client cannot learn if the daemon accepts it.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Final

from bruce_mp.client.base import Client, check_path, new_socket
from bruce_mp.client.deadline import MAX_POLL_MS
from bruce_mp.client.errors import MessageTooLargeError, SendError, SendTimeoutError, error_for
from bruce_mp.client.kernels import DatagramSender

if TYPE_CHECKING:
    import os

    from bruce_mp.client.base import ErrorMode
    from bruce_mp.protocol.client.record_headers import Buffer

__all__ = ["MAX_DATAGRAM", "DatagramClient"]

MAX_DATAGRAM: Final = 64 * 1024
"""Default of the daemon's `input.max_datagram_size`, in bytes."""
_KERNEL_OVERHEAD: Final = 32
"""SO_SNDBUF less the size of the largest UNIX datagram, in bytes (Linux, unix_dgram_sendmsg)."""


class DatagramClient(Client):
    """Sender of messages to the daemon's UNIX datagram socket.

    Args:
        path: the daemon's `input.unix_datagram.path`; at most 107 bytes.
        timeout: seconds that `send()` waits while the daemon's queue is full; None: without limit, 0: not at all.
        errors: "raise" or "count", see `Client`.
        max_message: the daemon's `input.max_datagram_size`, because the daemon discards a longer message as malformed.
        send_buffer: SO_SNDBUF in bytes. A message larger than the system's default (`net.core.wmem_default`) needs it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float | None = None,
        errors: ErrorMode = "raise",
        max_message: int = MAX_DATAGRAM,
        send_buffer: int | None = None,
    ) -> None:
        destination = check_path(path)
        self.timeout = timeout
        self._so_sndbuf = send_buffer
        self._socket = new_socket(socket.AF_UNIX, socket.SOCK_DGRAM, send_buffer)
        advice = (
            "Send less at once, or by a stream. If the daemon's input.max_datagram_size is larger, set the "
            "client's max_message."
        )
        super().__init__(destination, errors, max_message, advice)
        self._create_sender()

    def _create_sender(self) -> None:
        self._sender = DatagramSender(self._count_lock, self._socket, self._destination, self._max_message)
        self._accept = self._sender.accept

    def close(self) -> None:
        with self._count_lock:
            self._sender.close()
            self._socket.close()

    def _transmit(self, message: Buffer) -> None:
        try:
            with self._count_lock:  # so that no thread closes the descriptor during the call
                self._socket.sendto(message, socket.MSG_DONTWAIT, self._destination)
        except BlockingIOError as error:
            self._wait_and_send(message, error)
        except OSError as error:
            raise self._explain(error, len(message)) from error
        self._sender.count(len(message))

    def _wait_and_send(self, message: Buffer, queue_full: OSError) -> None:
        """Wait up to `timeout` for room in the daemon's queue, and send; `queue_full` is the error of the first try."""
        if self.timeout == 0:
            raise self._explain(queue_full, len(message)) from queue_full
        try:
            with new_socket(socket.AF_UNIX, socket.SOCK_DGRAM, self._so_sndbuf) as blocking:
                blocking.settimeout(None if self.timeout is None else min(self.timeout, MAX_POLL_MS / 1000))
                blocking.connect(self._destination)
                blocking.send(message)
        except OSError as error:
            raise self._explain(error, len(message)) from error

    def _reset(self) -> None:
        super()._reset()
        was_closed = self._socket.fileno() == -1
        self._socket.close()  # closes only the child's descriptor
        if not was_closed:
            self._socket = new_socket(socket.AF_UNIX, socket.SOCK_DGRAM, self._so_sndbuf)
        self._create_sender()

    def _sent_counts(self) -> tuple[int, int]:
        return self._sender.sent, self._sender.sent_bytes

    def _explain(self, error: OSError, size: int) -> SendError:
        """Return the SendError for a kernel error that occurred while a message of `size` bytes was sent."""
        if error.errno == errno.EMSGSIZE:
            return MessageTooLargeError(self._too_large_text(size))
        if isinstance(error, (BlockingIOError, TimeoutError)):
            return SendTimeoutError(f"{self._destination}: the daemon's queue stayed full for {self.timeout} s.")
        return error_for(self._destination, error)

    def _too_large_text(self, size: int) -> str:
        limit = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _KERNEL_OVERHEAD
        return (
            f"{self._destination}: a message of {size} bytes is too large, the kernel accepts at most {limit} from "
            "this socket. Send less at once, or give the client a larger send_buffer (up to net.core.wmem_max); the "
            "daemon's input.max_datagram_size must allow it, too."
        )
