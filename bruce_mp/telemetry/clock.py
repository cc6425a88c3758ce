"""The steady clock: the monotonic clock, offset to the wall clock at the daemon's start.

Lingers, back-offs and ages use it, so that they do not stall for an hour when an administrator sets the clock back.

Processes compare such times, for example the arrival of a run with the current time. So `bootstrap.py` gives all of
them the supervisor's offset; otherwise processes started before and after a change of the wall clock would disagree.
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
        """Return ms since the epoch, by the wall clock at the daemon's start. Only differences are exact."""
        return monotonic_ms() + self.offset_ms

    def ms_of(self, monotonic_s: float) -> int:
        """Convert a time of `time.monotonic()` to ms of this clock, rounded up."""
        return math.ceil(monotonic_s * 1000) + self.offset_ms


def monotonic_ms() -> int:
    """Return ms of the kernel's monotonic clock, which all processes share and which begins at the boot."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return ms since the epoch, by the current wall clock."""
    return time.time_ns() // 1_000_000


def utc_text(seconds: float) -> str:
    """Return a time since the epoch as pages, commands and log show it, such as `2031-05-17 09:30:00 UTC`.

    Raise ValueError, OverflowError or OSError for a time that the system's calendar lacks.
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


steady: Final = SteadyClock()
steady_ms: Final = steady.now_ms
