"""The steady clock: the monotonic clock plus an offset, so that it agrees with the wall clock at the daemon's start.

The daemon measures delays and ages by it, because a change of the wall clock would lengthen or shorten them.

A process compares its current time with times from other processes, for example the arrival of a message. So all
processes must have the same offset: `bootstrap.py` gives each of them the offset that the supervisor has computed.
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
        """Return the time in ms since the epoch, as if the wall clock had not been changed since the daemon's start."""
        return monotonic_ms() + self.offset_ms

    def ms_of(self, monotonic_s: float) -> int:
        """Convert a time of `time.monotonic()` to ms of this clock, rounded up."""
        return math.ceil(monotonic_s * 1000) + self.offset_ms


def monotonic_ms() -> int:
    """Return the time in ms of the kernel's monotonic clock, which is 0 at the boot and the same in all processes."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return the time of the wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


def utc_text(seconds: float) -> str:
    """Format a time in seconds since the epoch: `2031-05-17 09:30:00 UTC`.

    Raise ValueError, OverflowError or OSError for a time that the system cannot convert to a date.
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


steady: Final = SteadyClock()
steady_ms: Final = steady.now_ms
