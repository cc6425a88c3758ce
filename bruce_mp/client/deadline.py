"""A time limit that several waits share."""

from __future__ import annotations

import math
import time

__all__ = ["Deadline"]


class Deadline:
    """The moment `seconds` from now; `None` means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the remaining seconds, at least 0, or `None` without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def at_most(self, seconds: float) -> float:
        """Return the remaining seconds, but at most `seconds`."""
        left = self.left()
        return seconds if left is None else min(left, seconds)

    def allows(self, seconds: float) -> bool:
        """Return True if a wait of this length ends before the deadline."""
        return self._end is None or time.monotonic() + seconds <= self._end

    def poll_ms(self) -> int | None:
        """Return the remaining time for poll(), in ms, rounded up to avoid a busy loop in the last millisecond."""
        left = self.left()
        return None if left is None else math.ceil(left * 1000)

    def lock_timeout_s(self, minimum_s: float) -> float:
        """Return the timeout for Lock.acquire(): at least `minimum_s`, even after the deadline; -1 without a limit."""
        left = self.left()
        return -1 if left is None else max(left, minimum_s)
