"""Last reports of dispatchers and router about brokers: the loop stores them, and HTTP threads read them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.broker_status import PartitionError

__all__ = ["BrokerStatusStore", "ClusterReport"]

STALE_MS: Final = 10_000
"""Age at which a report is ignored. Processes report once a second, so the sender is dead or stopped."""
MAX_REASONS: Final = 1000


class ClusterReport(NamedTuple):
    """Current reports: `brokers` by dispatcher slot; `router` is None without a recent report.

    `reasons` holds the last error of each partition, and keeps it after the dispatcher hands the partition back.
    """

    brokers: dict[int, BrokerStatus]
    router: RouterStatus | None
    reasons: dict[tuple[bytes, int], str]


class BrokerStatusStore:
    """Last report of each dispatcher slot and of the router. `now_ms` is the steady clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._brokers: dict[int, tuple[int, BrokerStatus]] = {}
        self._router: tuple[int, RouterStatus] | None = None
        self._reasons: dict[tuple[bytes, int], str] = {}

    def record(self, reports: Iterable[BrokerStatus | RouterStatus], now_ms: int) -> None:
        """Store reports as of `now_ms`."""
        with self._lock:
            for status in reports:
                if isinstance(status, RouterStatus):
                    self._router = (now_ms, status)
                else:
                    self._brokers[status.slot] = (now_ms, status)
                    self._record_reasons(status.troubles)

    def _record_reasons(self, troubles: Iterable[PartitionError]) -> None:
        for trouble in troubles:
            self._reasons[trouble.topic, trouble.partition] = trouble.error
        while len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def latest(self, now_ms: int) -> ClusterReport:
        """Return the reports that are younger than `STALE_MS`."""
        with self._lock:
            brokers = {slot: status for slot, (at_ms, status) in self._brokers.items() if now_ms - at_ms < STALE_MS}
            router = self._router
            fresh = router is not None and now_ms - router[0] < STALE_MS
            return ClusterReport(brokers, router[1] if router is not None and fresh else None, dict(self._reasons))
