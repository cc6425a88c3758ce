"""A clock that looks like the wall clock and never jumps.

Lingers, back-offs and ages must not stall for an hour when somebody sets the clock back.  So a process reads the wall
clock once, at its start, and counts on from there with the monotonic clock.

The processes of a daemon compare such times (when a run arrived, and now), so all of them use the supervisor's offset:
two processes that started before and after the clock was set would not agree.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SteadyClock", "steady", "steady_ms", "wall_ms"]


class SteadyClock:
    """The monotonic clock plus an offset, both in ms."""

    __slots__ = ("offset_ms",)

    def __init__(self) -> None:
        self.offset_ms = wall_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as of the time when the offset was taken; only differences are exact."""
        return time.monotonic_ns() // 1_000_000 + self.offset_ms


def wall_ms() -> int:
    """Milliseconds since the epoch, as the wall clock says now."""
    return time.time_ns() // 1_000_000


steady: Final = SteadyClock()
steady_ms: Final = steady.now_ms
