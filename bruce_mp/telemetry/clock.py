"""A clock that looks like the wall clock and never jumps.

Lingers, back-offs and ages must not stall for an hour when somebody sets the clock back.  So a process reads the wall
clock once, at its start, and counts on from there with the monotonic clock.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["steady_ms", "wall_ms"]

_OFFSET_MS: Final = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds since the epoch, as of the start of this process; only differences are exact."""
    return time.monotonic_ns() // 1_000_000 + _OFFSET_MS


def wall_ms() -> int:
    """Milliseconds since the epoch, as the wall clock says now."""
    return time.time_ns() // 1_000_000
