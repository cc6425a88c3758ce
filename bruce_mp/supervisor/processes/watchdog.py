"""Watchdog: finds live processes that stop changing their heartbeat, a number that each changes about every second.

The supervisor kills these processes: a kill loses no messages, while a hung process blocks the partitions of a broker,
or all messages. A pause of the whole machine does not count: after a long gap between two checks, every heartbeat
counts as just changed.

Separate because the watchdog needs only heartbeats and the time, and no processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["HUNG_BOOT_S", "HUNG_S", "Watchdog"]

HUNG_S: float = 60.0
"""Longest time without a heartbeat for running processes. No known task blocks a process for more than 2 s."""
HUNG_BOOT_S: float = 600.0
"""Longest boot: a process stores no heartbeat until it is ready, and may read a large slab before."""
MAX_CHECK_GAP_S: Final = 5.0
"""A longer gap between two checks proves that the supervisor itself was stopped, because it checks once a second."""

Instance = TypeVar("Instance", bound="Hashable")


class Watchdog(Generic[Instance]):
    """Finds the processes that have not changed their heartbeat for `limit_s` seconds.

    An `Instance` identifies one process; after a restart there is a new instance.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_changes: dict[Instance, tuple[int, float]] = {}
        """The heartbeat of each process at the last check, and the time when a check first found this heartbeat."""
        self._last_check = 0.0

    def find_hung(self, heartbeats: Mapping[Instance, int], now: float) -> list[Instance]:
        """Return the hung processes.

        `heartbeats` has the present heartbeat of each live process, a number in any unit. `now` is in seconds of a
        monotonic clock.
        """
        changes_before = self._last_changes if now - self._last_check <= MAX_CHECK_GAP_S else {}
        self._last_check = now
        self._last_changes = {}
        for instance, heartbeat in heartbeats.items():
            heartbeat_before, same_since = changes_before.get(instance, (heartbeat, now))
            self._last_changes[instance] = (heartbeat, same_since if heartbeat == heartbeat_before else now)
        return [
            instance for instance, (_, same_since) in self._last_changes.items() if now - same_since > self._limit_s
        ]
