"""Signals as bytes in a socket pair: the handlers do nothing, and the event loop reads the signal numbers.

A Python handler may run between any two instructions, so a handler must not write to the log or take a lock.
`signal.set_wakeup_fd` makes the interpreter's C handler write each signal number into a socket, which wakes the event
loop.
"""

from __future__ import annotations

import signal
import socket
from signal import Signals
from typing import Final

__all__ = ["WATCHED_SIGNALS", "SignalPipe"]

WATCHED_SIGNALS: Final = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


class SignalPipe:
    """Receiver of the signals of this process. The constructor installs the handlers and unblocks the signals."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in WATCHED_SIGNALS:
            signal.signal(number, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED_SIGNALS)  # blocked by `bruce`, or by the old code

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[Signals]:
        """Return the watched signals that arrived since the last call, in order of arrival."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [Signals(number) for number in numbers if number in WATCHED_SIGNALS]


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing. The interpreter installs its C handler only for a signal that has a Python handler."""
