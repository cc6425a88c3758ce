"""Blocking of signals until the daemon handles them. Their default action would end the process.

A service manager or a log rotation may send signals right after a start. The command blocks them before it imports the
supervisor, and the supervisor's `SignalPipe` receives them later. SIGTERM and SIGINT are not blocked: they end a daemon
at once while it starts or waits for a lock. Signals that arrive before the interpreter runs, in the first few
hundredths of a second, cannot be blocked.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from signal import Signals
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HELD_BACK", "held_back"]

HELD_BACK: Final = (Signals.SIGHUP, Signals.SIGUSR1, Signals.SIGUSR2)


@contextmanager
def held_back() -> Iterator[None]:
    """Block the signals during the block, and restore the signal mask at its end.

    Pending signals are discarded at the end: the start has failed by then, and its exit status reports the failure.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        while signal.sigtimedwait(HELD_BACK, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
