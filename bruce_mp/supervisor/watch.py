"""Who hangs: lives, and has given no sign of life for long.

Nothing is lost by killing a process, and a broker's partitions, or all messages, wait as long as it hangs.  But a
process is not blamed for a pause of the whole machine: if we were not there ourselves, the time begins anew.

Times in seconds of a monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["HUNG_BOOT_S", "HUNG_S", "Watch"]

HUNG_S: float = 60.0
"""Signs of life come every second, and the longest piece of work that we know takes two."""
HUNG_BOOT_S: float = 600.0
"""Who boots gives no sign of life until it is ready, and may have a large slab to walk first."""
AWAY_S: Final = 5.0
"""We look once a second; after a longer time we were stopped as well."""

Life = TypeVar("Life", bound="Hashable")


class Watch(Generic[Life]):
    """Remembers the last signs of life."""

    def __init__(self, hung_s: float) -> None:
        self._hung_s = hung_s
        self._seen: dict[Life, tuple[int, float]] = {}
        self._looked_at = 0.0

    def hung(self, beats: Mapping[Life, int], now: float) -> list[Life]:
        """Those of the processes that hang; `beats` has the last sign of life of each, whatever its unit."""
        before = self._seen if now - self._looked_at <= AWAY_S else {}
        self._looked_at = now
        self._seen = {life: _since(before.get(life), beat, now) for life, beat in beats.items()}
        return [life for life, (_, since) in self._seen.items() if now - since > self._hung_s]


def _since(seen: tuple[int, float] | None, beat: int, now: float) -> tuple[int, float]:
    return seen if seen is not None and seen[0] == beat else (beat, now)
