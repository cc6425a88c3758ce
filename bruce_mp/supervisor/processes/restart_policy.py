"""Restart policy of a process: the delay before each restart, and the limit of failed boots.

The first restart is immediate, because most crashes do not repeat. The second has a delay of `MIN_DELAY_S`, and each
further crash doubles the delay, up to `MAX_DELAY_S`. A *failed boot* is an exit before the process is ready. After
`MAX_FAILED_BOOTS` in a row, the policy allows no further restart, because the cause is probably permanent.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_FAILED_BOOTS", "RestartPolicy"]

MAX_FAILED_BOOTS: Final = 5
MIN_DELAY_S: Final = 0.25
MAX_DELAY_S: Final = 5.0
"""Shortest and longest delay of a restart after the first. The delays leave the machine time for other work."""
LONG_UPTIME_S: Final = 10.0
"""If a process crashes after running at least this long, the crash counts as the first."""


class RestartPolicy:
    """Restart policy of one process, with its past crashes. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._started_at = 0.0
        self._crash_count = 0
        """Number of crashes in a row; a crash after `LONG_UPTIME_S` begins another row."""
        self._is_ready = False
        self.failed_boot_count = 0

    def on_started(self, now: float) -> None:
        self._started_at = now
        self._is_ready = False

    def on_ready(self) -> None:
        self._is_ready = True
        self.failed_boot_count = 0

    def on_died(self, now: float) -> float | None:
        """Record a death. Return the seconds until the restart, or None if the policy allows no restart."""
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
