"""A client of the daemon's datagram socket: one message, one `sendto()`, no thread and no reply.

* The socket has no name and is not connected: each datagram goes to whoever is bound to the path now, so that a client
  lives through restarts of the daemon.
* It may cross a `fork()`: the child notices its new pid and opens a socket of its own.
* When the daemon's queue is full the kernel makes the sender wait.  The time limit for that is the socket's
  SO_SNDTIMEO and not Python's own: Python would poll(), which calls an unconnected datagram socket always writable: it
  would spin.
* A datagram that was sent has reached the daemon's queue in the kernel; whether the daemon found it good, nobody says.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError
from bruce_mp.protocol.client_wire import encode_any_partition, encode_partition_key

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["DaemonUnreachableError", "DatagramClient", "MessageTooLargeError", "SendError", "SendTimeoutError"]

Buffer = bytes | bytearray | memoryview

_TIMEVAL: Final = struct.Struct("@ll")
_SOCKET_PATH_MAX: Final = 107
_KERNEL_OVERHEAD: Final = 32
"""An AF_UNIX datagram may have this much less than SO_SNDBUF (Linux, unix_dgram_sendmsg)."""


class SendError(BruceError):
    """The kernel did not take a message; nothing of it was sent."""


class DaemonUnreachableError(SendError):
    """Nobody receives at the path, or we may not send there.  Sending again later may work."""


class MessageTooLargeError(SendError):
    """The message is larger than the kernel lets this socket send.  It will not work later."""


class SendTimeoutError(SendError):
    """The daemon's queue stayed full for the whole time limit.  Sending again may work."""


_NO_PERMISSION: Final = (
    "no permission to send. Senders need write permission on the socket (input.unix_datagram.mode of the daemon) "
    "and access to its directory."
)
_UNREACHABLE: Final = {
    errno.ENOENT: "there is no such socket. Start the daemon, or give its input.unix_datagram.path.",
    errno.ECONNREFUSED: "nobody receives at this socket. The daemon that made it is gone: start it again.",
    errno.EPIPE: "the daemon is shutting down and takes nothing more. Send again when it is back.",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
}


class DatagramClient:
    """Sends messages to the daemon that is bound to `path`.

    Args:
        path: the daemon's `input.unix_datagram.path`; at most 107 bytes.
        timeout: seconds that `send()` may wait while the daemon's queue is full; `None`: without end, 0: not at all.
        send_buffer: SO_SNDBUF in bytes, for messages beyond the system's default (`net.core.wmem_default`).

    Not for use by several threads at once while one of them may `close()` it; `send()` itself is one system call.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float | None = None, send_buffer: int | None = None
    ) -> None:
        self._path = os.fspath(path)
        self._timeout = timeout
        self._send_buffer = send_buffer
        length = len(os.fsencode(self._path))
        if not 0 < length <= _SOCKET_PATH_MAX:
            raise SendError(f"{self._path}: a socket's path has 1 to {_SOCKET_PATH_MAX} bytes, this one has {length}.")
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; what was sent stays sent."""
        self._socket.close()

    def send(
        self,
        topic: bytes | str,
        value: Buffer,
        key: Buffer = b"",
        partition_key: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Hand one message to the daemon; with a `partition_key` it chooses the partition, else the daemon does.

        Without `timestamp_ms` the message bears the current time.  Raises `LocalProtocolError` for what the format does
        not allow, and the `SendError` that fits if the kernel does not take it.
        """
        now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        if partition_key is None:
            self.send_encoded(encode_any_partition(topic, value, key, timestamp_ms=now))
        else:
            self.send_encoded(encode_partition_key(partition_key, topic, value, key, timestamp_ms=now))

    def send_encoded(self, datagram: Buffer) -> None:
        """Hand over a message that is encoded already, as it is.  Raises the `SendError` that fits."""
        if os.getpid() != self._pid:
            self._socket.close()  # only our copy of the parent's
            self._open()
        try:
            self._socket.sendto(datagram, self._flags, self._path)
        except OSError as error:
            raise self._explain(error, len(datagram)) from error

    def _open(self) -> None:
        self._pid = os.getpid()
        self._flags = socket.MSG_DONTWAIT if self._timeout == 0 else 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(None)  # whatever socket.setdefaulttimeout() says
        if self._timeout:
            seconds, rest = divmod(self._timeout, 1)
            limit = _TIMEVAL.pack(int(seconds), max(1, int(rest * 1e6)))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        if self._send_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)

    def _explain(self, error: OSError, size: int) -> SendError:
        if error.errno == errno.EMSGSIZE:
            return MessageTooLargeError(self._too_large(size))
        if error.errno == errno.EAGAIN:
            return SendTimeoutError(f"{self._path}: the daemon's queue stayed full for {self._timeout} s.")
        if error.errno in _UNREACHABLE:
            return DaemonUnreachableError(f"{self._path}: {_UNREACHABLE[error.errno]}")
        return SendError(f"{self._path}: cannot send: {os.strerror(error.errno or 0)}.")

    def _too_large(self, size: int) -> str:
        limit = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _KERNEL_OVERHEAD
        return (
            f"{self._path}: a message of {size} bytes is too large, the kernel takes at most {limit} from this socket. "
            "Send less at once, or give the client a larger send_buffer (up to net.core.wmem_max); the daemon's "
            "input.max_datagram_size has to allow it, too."
        )
