"""Stream connection to the daemon that reconnects after a break, with growing back-off.

The owner holds a lock around every method except `interrupt`. One thread may read from the connection without the lock;
until it ends, other threads only shut the socket down and leave closing it to the reader.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from bruce_mp.client.base import new_socket
from bruce_mp.client.errors import ClientClosedError, DaemonUnreachableError, SendError, SendTimeoutError, explain
from bruce_mp.protocol.client.barrier import AnswerReader

if TYPE_CHECKING:
    from bruce_mp.client.deadline import Deadline

__all__ = ["BrokenError", "Link"]

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
READ_SIZE: Final = 1 << 16
LONGEST_CONNECT_S: Final = 5.0
LEAST_CONNECT_S: Final = 0.001
"""connect() over TCP fails with a timeout of 0; over loopback it takes almost no time."""

Address = str | tuple[str, int]


class BrokenError(Exception):
    """The connection ended. The next write opens another one."""


class Link:
    """Connection to `address`, a path or (host, port). The first write opens it."""

    def __init__(self, place: str, address: Address, send_buffer: int | None) -> None:
        self._place = place
        self._address = address
        self._send_buffer = send_buffer
        self._socket: socket.socket | None = None
        self._read_from: socket.socket | None = None
        self._answers = AnswerReader()
        self._next_attempt = 0.0
        self._pause = FIRST_PAUSE_S
        self._closed = threading.Event()
        self.connections = 0

    # --- connecting --------------------------------------------------------------------------------------------------

    def connect(self, deadline: Deadline) -> None:
        """Ensure that a connection exists. Raise SendError if none succeeds in time."""
        while self._socket is None:
            if self._closed.is_set():
                raise ClientClosedError(f"{self._place}: the client is closed. Create a new one.")
            wait = self._next_attempt - time.monotonic()
            if wait <= 0:
                self._try(deadline)
            elif deadline.allows(wait):
                self._closed.wait(wait)
            else:
                raise DaemonUnreachableError(f"{self._place}: no connection; the next attempt is in {wait:.2g} s.")

    def _try(self, deadline: Deadline) -> None:
        self._put_off()
        try:
            self._socket = self._open(deadline.at_most(LONGEST_CONNECT_S))
        except OSError as error:
            if not deadline.allows(self._next_attempt - time.monotonic()):
                raise self._unreachable(error) from error
        else:
            self._answers = AnswerReader()
            self.connections += 1

    def _open(self, timeout: float) -> socket.socket:
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        made = new_socket(family, socket.SOCK_STREAM, self._send_buffer)
        try:
            made.settimeout(max(timeout, LEAST_CONNECT_S))
            made.connect(self._address)
            made.settimeout(None)
            if family == socket.AF_INET:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            made.close()
            raise
        return made

    def _unreachable(self, error: OSError) -> SendError:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return DaemonUnreachableError(f"{self._place}: the daemon accepts no connection now. Try again later.")
        return explain(self._place, error)

    def _put_off(self) -> None:
        self._next_attempt = time.monotonic() + self._pause * random.uniform(0.5, 1.0)  # noqa: S311
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def reset_backoff(self) -> None:
        """Reset the back-off after the connection took a whole message."""
        self._pause = FIRST_PAUSE_S

    # --- traffic -----------------------------------------------------------------------------------------------------

    def write(self, data: memoryview, deadline: Deadline) -> int:
        """Write some of the data, at least one byte. Raise SendTimeoutError on timeout."""
        assert self._socket is not None
        try:
            if self._is_over(self._socket):
                raise BrokenPipeError
            while True:
                try:
                    return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._wait_for_room(self._socket, deadline)
        except OSError as error:
            self.disconnect()
            raise BrokenError from error

    def _wait_for_room(self, writing: socket.socket, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(writing, select.POLLOUT)
        if not poll.poll(deadline.poll_ms()):
            raise SendTimeoutError(f"{self._place}: the daemon did not read in time.")

    def _is_over(self, connection: socket.socket) -> bool:
        """Return True if the daemon has closed the connection: over TCP the first write after that would be lost."""
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def begin_reading(self) -> tuple[socket.socket, AnswerReader]:
        """Return the connection for reading without the lock; `end_reading` releases it."""
        assert self._socket is not None
        self._read_from = self._socket
        return self._socket, self._answers

    def end_reading(self) -> None:
        """Release the connection after reading."""
        if self._read_from is not None and self._read_from is not self._socket:
            self._read_from.close()
        self._read_from = None

    # --- ends --------------------------------------------------------------------------------------------------------

    def disconnect(self) -> bool:
        """Drop the connection. Return True if one existed."""
        gone, self._socket = self._socket, None
        if gone is None:
            return False
        if gone is self._read_from:
            _shut(gone, socket.SHUT_RDWR)  # its reader wakes up and closes it
        else:
            gone.close()
        return True

    def drop_this(self, connection: socket.socket) -> bool:
        """Drop the connection if it is still this one, and return True if so."""
        return connection is self._socket and self.disconnect()

    def interrupt(self) -> None:
        """Wake the thread that waits while it holds the lock. This method alone needs no lock."""
        self._closed.set()
        if (connection := self._socket) is not None:
            _shut(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the connection for good."""
        self._closed.set()
        if self._socket is not None and self._socket is not self._read_from:
            _shut(self._socket, socket.SHUT_WR)
            with suppress(OSError):  # over TCP, unread answers would reset the connection and discard sent data
                self._socket.recv(READ_SIZE, socket.MSG_DONTWAIT)
        self.disconnect()

    def sleep(self, seconds: float) -> None:
        """Wait, but return early when the link is closed."""
        self._closed.wait(seconds)

    def abandon_after_fork(self) -> None:
        """Close the child's copies of the parent's sockets."""
        for inherited in (self._socket, self._read_from):
            if inherited is not None:
                inherited.close()


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # the connection may have ended already
        connection.shutdown(how)
