"""Watchdog: finds live processes without a heartbeat.

The supervisor kills them: a kill loses no messages, while a hung process blocks a broker's partitions or all messages.
A pause of the whole machine does not count: after a gap between two checks, all measurements start again.

Separate because it needs only heartbeats and the time, and no processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["HUNG_BOOT_S", "HUNG_S", "Watchdog"]

HUNG_S: float = 60.0
"""Limit for running processes. Heartbeats come every second; no known task blocks a process for more than 2 s."""
HUNG_BOOT_S: float = 600.0
"""Limit for booting processes: they have no heartbeat until they are ready, and may walk a large slab first."""
MAX_CHECK_GAP_S: Final = 5.0
"""Gap between two checks that proves that the supervisor itself was stopped; it checks once a second."""

Instance = TypeVar("Instance", bound="Hashable")


class Watchdog(Generic[Instance]):
    """Last heartbeats of processes, with the time of their last change in seconds of a monotonic clock."""

    def __init__(self, hung_s: float) -> None:
        self._hung_s = hung_s
        self._seen: dict[Instance, tuple[int, float]] = {}
        self._checked_at = 0.0

    def find_hung(self, heartbeats: Mapping[Instance, int], now: float) -> list[Instance]:
        """Return the hung processes. `heartbeats` has the last heartbeat of each live one, in any unit."""
        before = self._seen if now - self._checked_at <= MAX_CHECK_GAP_S else {}
        self._checked_at = now
        self._seen = {}
        for instance, heartbeat in heartbeats.items():
            last, since = before.get(instance, (heartbeat, now))
            self._seen[instance] = (heartbeat, since if heartbeat == last else now)
        return [instance for instance, (_, since) in self._seen.items() if now - since > self._hung_s]
