"""Signals as bytes in a pipe: the handlers do nothing, the main loop reads which signals came.

A handler that logs or takes a lock can come at any instruction; this one cannot do harm.  `signal.set_wakeup_fd` has
the interpreter's C handler write the number of each signal into a socket, which wakes the loop.
"""

from __future__ import annotations

import signal
import socket
from signal import Signals
from typing import Final

__all__ = ["WATCHED", "SignalPipe"]

WATCHED: Final = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


class SignalPipe:
    """Collects the supervisor's signals from its construction on."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in WATCHED:
            signal.signal(number, _nothing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)  # they were held back for us

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reader.fileno()

    def read(self) -> list[Signals]:
        """The watched signals that came since the last call, in order."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [Signals(number) for number in numbers if number in WATCHED]


def _nothing(_number: int, _frame: object) -> None:
    """Without a handler in Python the interpreter's own would not be installed."""
