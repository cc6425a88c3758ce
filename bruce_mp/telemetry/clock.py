"""The steady clock: the monotonic clock plus an offset, so that it agrees with the wall clock at the daemon's start.

Delays and ages are measured by it. By the wall clock, a delay would last an hour too long if an administrator set the
clock back by an hour.

Processes compare times of each other, for example the arrival of a message with the current time. So all processes must
have the same offset: `bootstrap.py` gives them the supervisor's. If each computed its own, processes started before and
after a change of the wall clock would disagree.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Final

__all__ = ["SteadyClock", "monotonic_ms", "steady", "steady_ms", "utc_text", "wall_ms"]


class SteadyClock:
    """The monotonic clock plus an offset, in ms."""

    __slots__ = ("offset_ms",)

    def __init__(self) -> None:
        self.offset_ms = wall_ms() - monotonic_ms()

    def now_ms(self) -> int:
        """Return ms since the epoch, without changes of the wall clock since the daemon's start.

        Only differences of such times are exact.
        """
        return monotonic_ms() + self.offset_ms

    def ms_of(self, monotonic_s: float) -> int:
        """Convert a time of `time.monotonic()` to ms of this clock, rounded up."""
        return math.ceil(monotonic_s * 1000) + self.offset_ms


def monotonic_ms() -> int:
    """Return ms of the kernel's monotonic clock, which is the same for all processes and begins at the boot."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return ms since the epoch, by the current wall clock."""
    return time.time_ns() // 1_000_000


def utc_text(seconds: float) -> str:
    """Return a time in seconds since the epoch as pages, commands and logs show it: `2031-05-17 09:30:00 UTC`.

    Raise ValueError, OverflowError or OSError for a time that the system cannot convert to a date.
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


steady: Final = SteadyClock()
steady_ms: Final = steady.now_ms
