"""Restart policy of a process: the delay before each restart, and the limit of failed boots.

The first restart is immediate, because most crashes do not repeat. The second has a delay of `MIN_DELAY_S`, and each
further crash doubles the delay, unless the process ran for `LONG_UPTIME_S` before it. A *failed boot* is an exit before
the process is ready. After `MAX_FAILED_BOOTS` in a row, the policy allows no further restart, because the cause is
probably permanent.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_FAILED_BOOTS", "RestartPolicy"]

MAX_FAILED_BOOTS: Final = 5
"""Failed boots in a row after which the cause counts as permanent. With the delays they take only some seconds."""
MIN_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 5.0
"""Shortest and longest delay of restarts after the first. The delay leaves a machine with a permanent fault time for
other work."""
LONG_UPTIME_S: Final = 10.0
"""A crash after at least this time from the start counts as a first crash."""


class RestartPolicy:
    """Restart policy of one process, with its past crashes. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._crash_count = 0
        """Crashes in a row of which each came less than `LONG_UPTIME_S` after the start, except perhaps the first."""
        self._is_ready = False
        self.failed_boot_count = 0

    def on_started(self, now: float) -> None:
        self._started_at = now
        self._is_ready = False

    def on_ready(self) -> None:
        self._is_ready = True
        self.failed_boot_count = 0

    def on_died(self, now: float) -> float | None:
        """Record a death. Return the seconds until the restart, or None if the policy allows none."""
        if not self._is_ready:
            self.failed_boot_count += 1
        if self.failed_boot_count >= MAX_FAILED_BOOTS:
            return None
        if now - self._started_at >= LONG_UPTIME_S:
            self._crash_count = 0
        self._crash_count += 1
        if self._crash_count == 1:
            return 0.0
        doublings = min(self._crash_count - 2, 16)  # 16, because a power with a large exponent would overflow
        return min(MAX_DELAY_S, MIN_DELAY_S * 2.0**doublings)
