"""Watchdog: detects live processes without a heartbeat.

Killing a process loses nothing, while a hung one blocks a broker's partitions or all messages. A pause of the whole
machine must not count: if the supervisor itself was stopped, the measurement starts again.

Times are in seconds of a monotonic clock.

Separate because it is pure: it compares heartbeats with the time, and knows no process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["HUNG_BOOT_S", "HUNG_S", "Watchdog"]

HUNG_S: float = 60.0
"""Limit for running processes. Heartbeats come every second, and the longest known piece of work takes two."""
HUNG_BOOT_S: float = 600.0
"""Limit for booting processes: they have no heartbeat until they are ready, and may walk a large slab first."""
AWAY_S: Final = 5.0
"""Gap between two checks that shows a stopped supervisor; it checks once a second."""

Life = TypeVar("Life", bound="Hashable")


class Watchdog(Generic[Life]):
    """Last heartbeats of all processes, with the time of their last change."""

    def __init__(self, hung_s: float) -> None:
        self._hung_s = hung_s
        self._seen: dict[Life, tuple[int, float]] = {}
        self._looked_at = 0.0

    def hung(self, beats: Mapping[Life, int], now: float) -> list[Life]:
        """Return the hung processes. `beats` has the last heartbeat of each, in any unit."""
        before = self._seen if now - self._looked_at <= AWAY_S else {}
        self._looked_at = now
        self._seen = {life: _since(before.get(life), beat, now) for life, beat in beats.items()}
        return [life for life, (_, since) in self._seen.items() if now - since > self._hung_s]


def _since(seen: tuple[int, float] | None, beat: int, now: float) -> tuple[int, float]:
    return seen if seen is not None and seen[0] == beat else (beat, now)
