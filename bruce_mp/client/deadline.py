"""A time limit that several waits share."""

from __future__ import annotations

import math
import time
from threading import TIMEOUT_MAX
from typing import Final

__all__ = ["MAX_POLL_MS", "Deadline"]

MAX_POLL_MS: Final = 2**31 - 1
"""The longest time limit of a poll(), 24.8 days. A longer wait consists of several polls."""


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

    def has_passed(self) -> bool:
        return not self.allows(0)

    def poll_ms(self) -> int | None:
        """Return the timeout in ms for a poll(); None without a limit.

        The number is rounded up, to avoid a busy loop in the last ms. A poll() may end before the deadline, after
        `MAX_POLL_MS`: the caller polls again until the deadline `has_passed`.
        """
        remaining = self.remaining_s()
        return None if remaining is None else math.ceil(min(remaining * 1000, MAX_POLL_MS))

    def lock_timeout_s(self, minimum_s: float) -> float:
        """Return the timeout for Lock.acquire(), at least `minimum_s` even after the deadline; -1 without a limit."""
        remaining = self.remaining_s()
        return -1 if remaining is None else min(max(remaining, minimum_s), TIMEOUT_MAX)
