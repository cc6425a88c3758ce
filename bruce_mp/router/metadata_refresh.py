"""The schedule of metadata fetches: the earliest request decides, but never before the floor."""

from __future__ import annotations

from typing import Final

__all__ = ["RefreshSchedule"]

SPACING_MS: Final = 100
"""The shortest time between the starts of two fetches, which limits the load of unknown topics."""

LONGEST_ABSENCE_MS: Final = 5_000
"""The longest delay while no broker responds, so that messages flow within seconds after a long outage."""


class RefreshSchedule:
    """The next fetch's time.  Times are in ms on one clock."""

    def __init__(self) -> None:
        self._wanted_ms: int | None = 0
        self._floor_ms = 0

    @property
    def due_ms(self) -> int | None:
        """The time of the next fetch; None without a request."""
        return None if self._wanted_ms is None else max(self._wanted_ms, self._floor_ms)

    def request(self, at_ms: int) -> None:
        """Request a fetch at `at_ms` at the latest."""
        if self._wanted_ms is None or at_ms < self._wanted_ms:
            self._wanted_ms = at_ms

    def request_now(self, now_ms: int) -> None:
        """Request a fetch now, without the floor, because brokers or connection settings changed."""
        self._wanted_ms = self._floor_ms = now_ms

    def on_started(self, now_ms: int) -> None:
        """Clear the requests as a fetch begins; later requests are for the next fetch."""
        self._wanted_ms = None
        self._floor_ms = now_ms + SPACING_MS

    def on_failed(self, now_ms: int, delay_ms: int) -> None:
        """Schedule the next fetch after the delay, at most `LONGEST_ABSENCE_MS`, despite earlier requests."""
        self._wanted_ms = self._floor_ms = now_ms + min(delay_ms, LONGEST_ABSENCE_MS)
