"""Stream connection to the daemon that reconnects after a break, with growing waits between the tries (back-off).

The owner holds a lock around every method except `end_reading`, `interrupt` and `sleep`. One thread may read from the
connection without the lock. While this thread reads, other threads do not close the socket: they shut it down, and the
reading thread closes it.
"""

from __future__ import annotations

import errno
import random
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp.client.base import new_socket
from bruce_mp.client.errors import ClientClosedError, DaemonUnreachableError, SendError, SendTimeoutError, error_for
from bruce_mp.client.outage_warning import OutageWarning
from bruce_mp.protocol.client.answer_reader import AnswerReader

if TYPE_CHECKING:
    from bruce_mp.client.deadline import Deadline

__all__ = ["ConnectionBrokenError", "ReconnectingLink"]

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 5.0
"""Longest wait between two tries to connect, and so the longest time until the client finds a restarted daemon."""
READ_SIZE: Final = 1 << 16
MAX_CONNECT_S: Final = 5.0
"""Longest duration of one try to connect: a thread that waits without a time limit must notice a `close()`."""
MIN_CONNECT_S: Final = 0.001
"""Shortest timeout of a try: connect() over TCP always fails with 0, and needs less than this on the loopback."""
NO_PERMISSION: Final = frozenset({errno.EACCES, errno.EPERM})
"""Errors of missing permission. Waiting does not help, except while the daemon starts (see `_record_denial`)."""

Address = str | tuple[str, int]


class ConnectionBrokenError(Exception):
    """The connection ended. The next write opens another one."""


class ReconnectingLink:
    """Connection to `address`, a path or (host, port); `destination` names it in errors. `connect` opens it."""

    def __init__(self, destination: str, address: Address, so_sndbuf: int | None) -> None:
        self._destination = destination
        self._address = address
        self._so_sndbuf = so_sndbuf
        self._socket: socket.socket | None = None
        self._socket_being_read: socket.socket | None = None
        """The connection from which a thread reads without the lock; None if no thread does."""
        self._reading_lock = threading.Lock()  # for the end of this reading
        self._reader = AnswerReader()
        self._next_try_s = 0.0
        """Monotonic time before which no try to connect begins."""
        self._backoff_s = FIRST_BACKOFF_S
        self._closed = threading.Event()
        self._outage = OutageWarning()
        self._is_denied = False
        """True if the last try to connect failed because permission is missing."""
        self.has_uncounted_write = False
        """True from the start of a write until the owner has counted what is written, or has handled the break."""
        self.connection_count = 0
        """Number of connections opened so far."""

    # --- connecting --------------------------------------------------------------------------------------------------

    def connect(self, deadline: Deadline) -> None:
        """Ensure that a connection exists. Raise SendError if no try succeeds in time, or if permission is missing."""
        while self._socket is None:
            if self._closed.is_set():
                raise ClientClosedError(f"{self._destination}: the client is closed. Create a new one.")
            wait_s = self._next_try_s - time.monotonic()
            if wait_s <= 0:
                self._try_connect(deadline)
            elif deadline.allows(wait_s):
                self._closed.wait(wait_s)
            else:
                raise DaemonUnreachableError(f"{self._destination}: no connection; the next try is in {wait_s:.2g} s.")

    def _try_connect(self, deadline: Deadline) -> None:
        self._schedule_next_try()
        try:
            self._socket = self._open(deadline.remaining_at_most(MAX_CONNECT_S))
        except OSError as error:
            failure = self._explain(error)
            self._outage.on_failure(failure)
            if self._record_denial(error) or not deadline.allows(self._next_try_s - time.monotonic()):
                raise failure from error
        else:
            self._is_denied = False
            self._outage.on_connected()
            self._reader = AnswerReader()
            self.connection_count += 1

    def _record_denial(self, error: OSError) -> bool:
        """Record if a try failed because permission is missing. Return True if the try before it failed for this, too.

        A single denial may be temporary, because a starting daemon creates the socket before it sets its owner. A
        denial resets the back-off, so that the second try follows soon.
        """
        was_denied, self._is_denied = self._is_denied, error.errno in NO_PERMISSION
        if self._is_denied:
            self._backoff_s = FIRST_BACKOFF_S
        return was_denied and self._is_denied

    def _open(self, timeout: float) -> socket.socket:
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        opened = new_socket(family, socket.SOCK_STREAM, self._so_sndbuf)
        try:
            opened.settimeout(max(timeout, MIN_CONNECT_S))
            opened.connect(self._address)
            opened.settimeout(None)
            if family == socket.AF_INET:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            opened.close()
            raise
        return opened

    def _explain(self, error: OSError) -> SendError:
        """Return the SendError for a failed try to connect."""
        if isinstance(error, (TimeoutError, BlockingIOError)):  # BlockingIOError: a UNIX socket with a full backlog
            return DaemonUnreachableError(
                f"{self._destination}: the daemon accepts no connection now. Try again later."
            )
        return error_for(self._destination, error)

    def _schedule_next_try(self) -> None:
        # A random factor, so that the clients of a restarted daemon do not all connect at once.
        self._next_try_s = time.monotonic() + self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    def reset_backoff(self) -> None:
        """Reset the back-off, because the connection has carried a whole message."""
        self._backoff_s = FIRST_BACKOFF_S

    # --- traffic -----------------------------------------------------------------------------------------------------

    def write(self, data: memoryview, deadline: Deadline) -> int:
        """Write at least one byte of the data, and return the number of bytes written.

        Raise SendTimeoutError on timeout, ConnectionBrokenError if the connection ends.
        """
        assert self._socket is not None
        try:
            if self._is_closed_by_daemon(self._socket):
                raise BrokenPipeError
            while True:
                self.has_uncounted_write = True
                try:
                    return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self.has_uncounted_write = False
                    self._wait_for_room(self._socket, deadline)
        except OSError as error:
            self.disconnect()
            raise ConnectionBrokenError from error

    def _wait_for_room(self, connection: socket.socket, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(connection, select.POLLOUT)
        while not poll.poll(deadline.poll_ms()):
            if deadline.has_passed():
                raise SendTimeoutError(f"{self._destination}: the daemon did not read in time.")

    def _is_closed_by_daemon(self, connection: socket.socket) -> bool:
        """Return True if the daemon has closed the connection: over TCP, a write would succeed, but lose its data."""
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def begin_reading(self) -> tuple[socket.socket, AnswerReader]:
        """Return the connection and its answer reader; the caller may use both without the lock until `end_reading`."""
        assert self._socket is not None
        self._socket_being_read = self._socket
        return self._socket, self._reader

    def end_reading(self) -> None:
        """End the use that `begin_reading` allowed; close the connection if `disconnect` has dropped it since then."""
        with self._reading_lock:
            ended, self._socket_being_read = self._socket_being_read, None
            is_dropped = ended is not self._socket
        if ended is not None and is_dropped:
            ended.close()

    # --- disconnecting -----------------------------------------------------------------------------------------------

    def disconnect(self) -> bool:
        """Drop the connection. Return True if there was one."""
        with self._reading_lock:
            dropped, self._socket = self._socket, None
            is_being_read = dropped is self._socket_being_read
        if dropped is None:
            return False
        if is_being_read:
            _shut_down(dropped, socket.SHUT_RDWR)  # the reading thread wakes up, and closes the socket
        else:
            dropped.close()
        return True

    def disconnect_if_current(self, connection: socket.socket) -> bool:
        """Drop `connection` if it is the current one; return True if it was."""
        return connection is self._socket and self.disconnect()

    def interrupt(self) -> None:
        """Wake a thread that holds the lock and waits, and let no thread connect again. The caller needs no lock."""
        self._closed.set()
        if (connection := self._socket) is not None:
            _shut_down(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, and never reconnect."""
        self._closed.set()
        if self._socket is not None and self._socket is not self._socket_being_read:
            _shut_down(self._socket, socket.SHUT_WR)
            with suppress(OSError):
                # Read answers first: a close with unread data resets a TCP connection, and so discards sent messages.
                self._socket.recv(READ_SIZE, socket.MSG_DONTWAIT)
        self.disconnect()

    def sleep(self, seconds: float) -> None:
        """Wait, but return early when the link is closed. The caller needs no lock."""
        self._closed.wait(seconds)

    def abandon_after_fork(self) -> None:
        """Close the sockets that a forked child has inherited; the connections of the parent stay open."""
        for inherited in (self._socket, self._socket_being_read):
            if inherited is not None:
                inherited.close()


def _shut_down(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # the connection may have ended already
        connection.shutdown(how)
