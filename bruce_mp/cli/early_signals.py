"""Signals that come before the daemon listens for them wait: what each does by default is to end it.

A service manager or a rotation of logs sends them whenever it likes, also right after a start.  They are held back
before the supervisor's code is loaded, and its `SignalPipe` takes them when it is there.  SIGTERM and SIGINT are not
among them: a daemon that only begins, or waits for a lock, ends at once.  What comes before the interpreter itself is
there, in the first few hundredths of a second, nobody can hold back.
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
    """Hold them back until somebody lets them through; at the end everything is as before.

    Those that came and that nobody has taken by then are void: the start has failed, and has its own exit status.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        while signal.sigtimedwait(HELD_BACK, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
