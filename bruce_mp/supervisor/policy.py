"""When a process that died is started again, and when that has no sense any more.

Pure: the clock is an argument.  The first restart is immediate, because most deaths are single ones; a process that
dies again soon waits, twice as long each time.  A *failed boot* is a life that ended before the process said that it
is ready; so many of them in a row mean that the cause will not go away by itself.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BOOTS_MAX", "Restarts"]

BOOTS_MAX: Final = 5
DELAY_FIRST_S: Final = 0.25
DELAY_MAX_S: Final = 5.0
LONG_LIFE_S: Final = 10.0


class Restarts:
    """The lives of one process.  Times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._started = 0.0
        self._short_lives = 0
        self._is_ready = False
        self.failed_boots = 0

    def started(self, now: float) -> None:
        """A life begins."""
        self._started = now
        self._is_ready = False

    def ready(self) -> None:
        """The process does its work."""
        self._is_ready = True
        self.failed_boots = 0

    def died(self, now: float) -> float | None:
        """A life ended: seconds until the next one begins, None when there should be none."""
        if not self._is_ready:
            self.failed_boots += 1
        if self.failed_boots >= BOOTS_MAX:
            return None
        if now - self._started >= LONG_LIFE_S:
            self._short_lives = 0
        delay = _delay(self._short_lives)
        self._short_lives += 1
        return delay


def _delay(short_lives: int) -> float:
    """0 s, then doubling."""
    if not short_lives:
        return 0.0
    return min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(short_lives - 1, 16))
