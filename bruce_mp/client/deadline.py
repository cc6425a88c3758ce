"""A time limit that several waits share."""

from __future__ import annotations

import math
import time

__all__ = ["Deadline"]


class Deadline:
    """The moment `seconds` from now; `None` means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining_s(self) -> float | None:
        """Return the remaining seconds, at least 0; None if there is no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def remaining_at_most(self, seconds: float) -> float:
        """Return the remaining seconds, but at most `seconds`."""
        remaining = self.remaining_s()
        return seconds if remaining is None else min(remaining, seconds)

    def allows(self, seconds: float) -> bool:
        """Return True if a wait of `seconds` ends before the deadline."""
        return self._end is None or time.monotonic() + seconds <= self._end

    def poll_ms(self) -> int | None:
        """Return the timeout in ms for poll(), rounded up to avoid a busy loop in the last ms; None without a limit."""
        remaining = self.remaining_s()
        return None if remaining is None else math.ceil(remaining * 1000)

    def lock_timeout_s(self, minimum_s: float) -> float:
        """Return the timeout for Lock.acquire(), at least `minimum_s` even after the deadline; -1 without a limit."""
        remaining = self.remaining_s()
        return -1 if remaining is None else max(remaining, minimum_s)
