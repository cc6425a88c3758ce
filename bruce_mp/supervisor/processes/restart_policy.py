"""Restart policy of a process: delay between restarts, and the limit of failed boots.

The first restart is immediate, because most crashes do not repeat. Each further crash less than `LONG_UPTIME_S` after
the start doubles the delay. A *failed boot* is an exit before the process is ready. After `MAX_FAILED_BOOTS` in a row,
the policy allows no further restart, because the cause is permanent.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_FAILED_BOOTS", "RestartPolicy"]

MAX_FAILED_BOOTS: Final = 5
"""Failed boots in a row after which the cause counts as permanent; with the delays between them, they take seconds."""
MIN_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 5.0
"""Bounds of later restarts' delays, so that a machine with a permanent fault has time for other work."""
LONG_UPTIME_S: Final = 10.0
"""Uptime after which a crash counts as the first one."""


class RestartPolicy:
    """Restart state of one process. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._started = 0.0
        self._early_crashes = 0
        self._is_ready = False
        self.failed_boots = 0

    def on_started(self, now: float) -> None:
        self._started = now
        self._is_ready = False

    def on_ready(self) -> None:
        self._is_ready = True
        self.failed_boots = 0

    def on_died(self, now: float) -> float | None:
        """Record a death. Return the seconds until the restart, or None if there is none."""
        if not self._is_ready:
            self.failed_boots += 1
        if self.failed_boots >= MAX_FAILED_BOOTS:
            return None
        if now - self._started >= LONG_UPTIME_S:
            self._early_crashes = 0
        self._early_crashes += 1
        if self._early_crashes == 1:
            return 0.0
        return min(MAX_DELAY_S, MIN_DELAY_S * 2.0 ** min(self._early_crashes - 2, 16))  # 16 keeps the power finite
