"""A time limit that several waits share."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """`seconds` from now; `None` never comes."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds that are left, at least 0; `None`: no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def at_most(self, seconds: float) -> float:
        """What is left, or `seconds` if that is shorter."""
        left = self.left()
        return seconds if left is None else min(left, seconds)

    def allows(self, seconds: float) -> bool:
        """Whether a wait of so many seconds ends in time."""
        return self._end is None or time.monotonic() + seconds <= self._end

    def poll_ms(self) -> int | None:
        """What is left as poll() takes it; rounded up, so that nobody polls in a loop for the last millisecond."""
        left = self.left()
        return None if left is None else -int(-left * 1000 // 1)

    def lock_s(self, least: float) -> float:
        """What is left as Lock.acquire() takes it, but at least so much."""
        left = self.left()
        return -1 if left is None else max(left, least)
