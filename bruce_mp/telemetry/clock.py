"""Monotonic clock in wall-clock units.

Lingers, back-offs and ages must not stall for an hour when an administrator sets the clock back. So the daemon reads
the wall clock once, at its start, and advances from there with the monotonic clock.

Processes compare such times, for example the arrival of a run with the current time. All of them therefore use the
supervisor's offset: processes started before and after a change of the clock would otherwise disagree.
"""

from __future__ import annotations

import math
import time
from typing import Final

__all__ = ["SteadyClock", "steady", "steady_ms", "wall_ms"]


class SteadyClock:
    """Monotonic clock plus an offset, both in ms."""

    __slots__ = ("offset_ms",)

    def __init__(self) -> None:
        self.offset_ms = wall_ms() - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Return ms since the epoch, by the wall clock at the time of the offset. Only differences are exact."""
        return time.monotonic_ns() // 1_000_000 + self.offset_ms

    def ms_of(self, moment: float) -> int:
        """Return the first ms, as `now_ms` counts them, at which `time.monotonic()` has reached `moment`."""
        return math.ceil(moment * 1000) + self.offset_ms


def wall_ms() -> int:
    """Return ms since the epoch, by the current wall clock."""
    return time.time_ns() // 1_000_000


steady: Final = SteadyClock()
steady_ms: Final = steady.now_ms
