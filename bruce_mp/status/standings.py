"""What dispatchers and the router last said of brokers: taken in by the loop, read by the threads that answer."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.telemetry.standings import BrokerStanding, RouterStanding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.standings import PartitionTrouble

__all__ = ["Heard", "Standings"]

STALE_MS: Final = 10_000
"""What was said so long ago says nothing: who says it once a second is dead, or stopped."""
MOST_REASONS: Final = 1000


class Heard(NamedTuple):
    """What is known now.  `brokers` by slot; `router` is None if it said nothing lately.

    `reasons` has the last error of partitions, also after their dispatcher handed them back.
    """

    brokers: dict[int, BrokerStanding]
    router: RouterStanding | None
    reasons: dict[tuple[bytes, int], str]


class Standings:
    """See the module's text.  `now_ms` is the wall clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._brokers: dict[int, tuple[int, BrokerStanding]] = {}
        self._router: tuple[int, RouterStanding] | None = None
        self._reasons: dict[tuple[bytes, int], str] = {}

    def take(self, standings: Iterable[BrokerStanding | RouterStanding], now_ms: int) -> None:
        """Take in what was said."""
        with self._lock:
            for standing in standings:
                if isinstance(standing, RouterStanding):
                    self._router = (now_ms, standing)
                else:
                    self._brokers[standing.slot] = (now_ms, standing)
                    self._note_reasons(standing.troubles)

    def _note_reasons(self, troubles: Iterable[PartitionTrouble]) -> None:
        for trouble in troubles:
            self._reasons[trouble.topic, trouble.partition] = trouble.error
        while len(self._reasons) > MOST_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def heard(self, now_ms: int) -> Heard:
        """What was said lately."""
        with self._lock:
            brokers = {slot: said for slot, (at_ms, said) in self._brokers.items() if now_ms - at_ms < STALE_MS}
            router = self._router
            fresh = router is not None and now_ms - router[0] < STALE_MS
            return Heard(brokers, router[1] if router is not None and fresh else None, dict(self._reasons))
