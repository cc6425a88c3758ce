"""Signals as bytes in a socket pair: the handlers do nothing, and the event loop reads the signal numbers.

A Python handler runs between any two instructions, so logging or locking in it is unsafe. `signal.set_wakeup_fd` makes
the interpreter's C handler write each signal number into a socket, which wakes the loop.
"""

from __future__ import annotations

import signal
import socket
from signal import Signals
from typing import Final

__all__ = ["WATCHED", "SignalPipe"]

WATCHED: Final = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


class SignalPipe:
    """Receiver of the signals of this process. Its construction installs the handlers and unblocks the signals."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in WATCHED:
            signal.signal(number, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)  # `bruce`, or the code before an upgrade, blocked them

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[Signals]:
        """Return the watched signals since the last call, in order of arrival."""
        try:
            numbers = self._reader.recv(4096)
        except BlockingIOError:
            return []
        return [Signals(number) for number in numbers if number in WATCHED]


def _ignore(_number: int, _frame: object) -> None:
    """Ignore the signal. Without a Python handler, the interpreter would not install its C handler."""
