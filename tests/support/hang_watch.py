"""Show where a test hangs: after HANG_S without a new test, the stacks of all threads go to the standard error."""

from __future__ import annotations

import faulthandler
import os
import time
from typing import Final

__all__ = ["HangWatch"]

HANG_S: Final = 300
REARM_S: Final = 30
"""The `faulthandler_timeout` of pytest rearms for each test, and waits each time until the scheduler has run and ended
the thread of the former alarm: 20 ms on a busy machine, of a test of 1 ms."""


class HangWatch:
    """An alarm that starts again with a test, but no more often than every REARM_S."""

    def __init__(self) -> None:
        self._stderr = -1
        self._armed_s = 0.0

    def start(self) -> None:
        """Keep the standard error of now, which pytest captures later."""
        self._stderr = os.dup(2)

    def rearm_if_due(self) -> None:
        now = time.monotonic()
        if now - self._armed_s > REARM_S:
            faulthandler.dump_traceback_later(HANG_S, file=self._stderr)
            self._armed_s = now
