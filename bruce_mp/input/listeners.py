"""The listening sockets of a stream worker; several workers share them, and the kernel wakes any idle one."""

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
_ACCEPTS_A_ROUND: Final = 16
"""Most connections that a worker accepts in a round: the other workers, which the kernel wakes too, accept the rest."""
_ERROR_PAUSE_S: Final = 1.0
"""Pause while the system has no descriptor or memory for a connection."""
_EXHAUSTED: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})


class Listeners:
    """Listening sockets by descriptor, in the epoll set of the worker.  `add` gets each accepted connection."""

    def __init__(
        self,
        sockets: Iterable[socket.socket | None],
        epoll: select.epoll,
        loop: Loop,
        row: ProcessRow,
        add: Callable[[socket.socket], None],
    ) -> None:
        self._sockets = {each.fileno(): each for each in sockets if each is not None}
        self._epoll = epoll
        self._loop = loop
        self._row = row
        self._add = add
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
        for _ in range(_ACCEPTS_A_ROUND):
            try:
                connection, _ = self._sockets[descriptor].accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._on_accept_error(error)
                return
            self._add(connection)

    def _on_accept_error(self, error: OSError) -> None:
        """Pause accepting for a second if a resource is exhausted. Other errors mean a closed listener or client."""
        if error.errno in _EXHAUSTED:
            self._row.add(Counter.AcceptExhausted)
            text = "A connection cannot be accepted: %s. The worker retries in a second."
            log.error(text, error.strerror, extra={"about": error.errno})  # see telemetry/logs.py
            if not self._is_paused:  # another listener of the same round may have paused all
                self._is_paused = True
                for listener in self._sockets.values():
                    self._epoll.unregister(listener)
                self._loop.call_later(_ERROR_PAUSE_S, self.listen)
