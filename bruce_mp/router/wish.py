"""When metadata should be fetched next: the earliest wish of anybody, but never before the floor."""

from __future__ import annotations

from typing import Final

__all__ = ["MetadataWish"]

SPACING_MS: Final = 100
"""Between the beginnings of two fetches: a flood of messages for unknown topics must not become a flood of requests."""

LONGEST_ABSENCE_MS: Final = 5_000
"""Between two tries while no broker answers: after an outage of hours messages should flow again within seconds."""


class MetadataWish:
    """Times in ms on one clock."""

    def __init__(self) -> None:
        self._wanted_ms: int | None = 0
        self._floor_ms = 0

    @property
    def due_ms(self) -> int | None:
        """When to fetch; None = nobody waits for it."""
        return None if self._wanted_ms is None else max(self._wanted_ms, self._floor_ms)

    def want(self, at_ms: int) -> None:
        """Fetch at this time at the latest."""
        if self._wanted_ms is None or at_ms < self._wanted_ms:
            self._wanted_ms = at_ms

    def want_at_once(self, now_ms: int) -> None:
        """Fetch now, even if no broker answered a moment ago: others are asked, or in another way."""
        self._wanted_ms = self._floor_ms = now_ms

    def begun(self, now_ms: int) -> None:
        """A fetch begins; wishes from now on are for the next."""
        self._wanted_ms = None
        self._floor_ms = now_ms + SPACING_MS

    def failed(self, now_ms: int, delay_ms: int) -> None:
        """No broker answered: ask again after the delay, or sooner if that is long, whatever is wished."""
        self._wanted_ms = self._floor_ms = now_ms + min(delay_ms, LONGEST_ABSENCE_MS)
