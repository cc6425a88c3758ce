"""The listening sockets of a stream worker.

Several workers share the sockets.  For a new connection, the kernel wakes one or more of the idle workers.
"""

from __future__ import annotations

import logging
import select
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import TYPE_CHECKING, Final

from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from bruce_mp.ipc.loop import Loop
    from bruce_mp.slab.rows import ProcessRow

__all__ = ["Listeners"]

log = logging.getLogger(__name__)
_MAX_ACCEPTS: Final = 16
"""Maximum number of connections that a worker accepts in a round, so that other workers get some, too."""
_ERROR_PAUSE_S: Final = 1.0
"""Pause of accepting after an error in `_EXHAUSTION_ERRORS`."""
_EXHAUSTION_ERRORS: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})
"""Errors that mean that the system has no descriptor or memory for a connection."""


class Listeners:
    """The listening sockets of a worker, which it watches in its epoll set.

    `add_connection` is called with each accepted connection.  `descriptor in listeners` is True for a listening socket.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket | None],
        epoll: select.epoll,
        loop: Loop,
        row: ProcessRow,
        add_connection: Callable[[socket.socket], None],
    ) -> None:
        self._sockets = {each.fileno(): each for each in sockets if each is not None}
        self._epoll = epoll
        self._loop = loop
        self._row = row
        self._add_connection = add_connection
        self._is_paused = False

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._sockets

    def listen(self) -> None:
        """Add the sockets to the epoll set, which then reports waiting connections."""
        self._is_paused = False
        for listener in self._sockets.values():
            listener.setblocking(False)
            self._epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def accept(self, descriptor: int) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                connection, _ = self._sockets[descriptor].accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_accept_error(error)
                return
            self._add_connection(connection)

    def _on_accept_error(self, error: OSError) -> None:
        """Pause accepting if a resource is exhausted.

        Other errors need no pause: the listener was closed, or the client has gone.
        """
        if error.errno in _EXHAUSTION_ERRORS:
            self._row.add(Counter.AcceptExhausted)
            text = "A connection cannot be accepted: %s. The worker retries in a second."
            log.error(text, error.strerror, extra={"about": error.errno})  # see telemetry/logs.py
            if not self._is_paused:  # an error of another listener in this round may have paused all of them
                self._is_paused = True
                for listener in self._sockets.values():
                    self._epoll.unregister(listener)
                self._loop.call_later(_ERROR_PAUSE_S, self.listen)
