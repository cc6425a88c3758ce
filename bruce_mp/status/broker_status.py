"""The last report of each dispatcher and of the router; the event loop stores them, and HTTP threads read them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus
from bruce_mp.telemetry.stalls import StallStarts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.broker_status import PartitionError
    from bruce_mp.telemetry.stalls import PartitionStall

__all__ = ["BrokerStatusStore", "ClusterReport"]

STALE_MS: Final = 10_000
"""Age at which a report is ignored. Processes report once a second, so the sender of an older report has ended."""
MAX_ERRORS: Final = 1000
"""Maximum number of partitions with a remembered last error; it limits the memory."""
STALL_SHOWN_MS: Final = 2_500
"""How long a stall is shown after its last report.

This is longer than the interval of the reports, because no process reports a stall while the stalled messages move
between the router and a dispatcher.
"""


class ClusterReport(NamedTuple):
    """The recent reports: `brokers` has the reports of the dispatchers by slot, and `router` the report of the router.

    If the router's report is too old, `router` is None. `last_errors` maps (topic, partition) to the last error of the
    partition, even after the dispatcher has handed back the partition. `stalls` begins with the longest stall.
    """

    brokers: dict[int, BrokerStatus]
    router: RouterStatus | None
    last_errors: dict[tuple[bytes, int], str]
    stalls: tuple[PartitionStall, ...] = ()


class BrokerStatusStore:
    """Store of the reports, for several threads. `now_ms` is the present time of the steady clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._brokers: dict[int, tuple[int, BrokerStatus]] = {}
        """(time of receipt, report) of each dispatcher slot."""
        self._router: tuple[int, RouterStatus] | None = None
        """(time of receipt, report) of the router."""
        self._last_errors: dict[tuple[bytes, int], str] = {}
        self._stalls: dict[tuple[int | None, bytes, int], tuple[int, PartitionStall]] = {}
        """(time of receipt, last report) of a stall, by dispatcher slot (None for the router), topic and partition."""
        self._stall_starts: StallStarts[tuple[bytes, int]] = StallStarts()
        """The start of the stall of each (topic, partition), which several processes may report one after the other."""

    def record(self, reports: Iterable[BrokerStatus | RouterStatus], now_ms: int) -> None:
        with self._lock:
            for status in reports:
                self._record_stalls(None if isinstance(status, RouterStatus) else status.slot, status.stalls, now_ms)
                if isinstance(status, RouterStatus):
                    self._router = (now_ms, status)
                else:
                    self._brokers[status.slot] = (now_ms, status)
                    self._record_errors(status.partition_errors)

    def _record_stalls(self, slot: int | None, stalls: Iterable[PartitionStall], now_ms: int) -> None:
        for stall in stalls:
            # If the messages have moved to another process, the stall keeps the start that the first process reported.
            key = (stall.topic, stall.partition)
            since_ms = self._stall_starts.observe(key, stall.oldest_message, stall.since_ms, now_ms)
            self._stalls[slot, *key] = (now_ms, msgspec.structs.replace(stall, since_ms=since_ms))
        self._stall_starts.expire(now_ms)
        self._stalls = {
            key: (at_ms, stall) for key, (at_ms, stall) in self._stalls.items() if now_ms - at_ms < STALL_SHOWN_MS
        }

    def _record_errors(self, errors: Iterable[PartitionError]) -> None:
        for each in errors:
            key = each.topic, each.partition
            self._last_errors.pop(key, None)  # moves a known key to the end: the loop below drops the first keys
            self._last_errors[key] = each.error
        while len(self._last_errors) > MAX_ERRORS:
            del self._last_errors[next(iter(self._last_errors))]

    def latest(self, now_ms: int) -> ClusterReport:
        """Return the reports younger than `STALE_MS`, and the stalls that were reported within `STALL_SHOWN_MS`."""
        with self._lock:
            brokers = {slot: status for slot, (at_ms, status) in self._brokers.items() if now_ms - at_ms < STALE_MS}
            router = self._router[1] if self._router is not None and now_ms - self._router[0] < STALE_MS else None
            stalls = (stall for at_ms, stall in self._stalls.values() if now_ms - at_ms < STALL_SHOWN_MS)
            return ClusterReport(brokers, router, dict(self._last_errors), _merge_stalls(stalls))


def _merge_stalls(stalls: Iterable[PartitionStall]) -> tuple[PartitionStall, ...]:
    """Return one stall for each partition, with the earliest start and the largest number of messages.

    The numbers are not added, because two processes may report the same messages one after the other.
    """
    merged: dict[tuple[bytes, int], PartitionStall] = {}
    for stall in sorted(stalls, key=lambda stall: stall.since_ms):
        first = merged.setdefault((stall.topic, stall.partition), stall)
        if stall.message_count > first.message_count:
            merged[stall.topic, stall.partition] = msgspec.structs.replace(first, message_count=stall.message_count)
    return tuple(merged.values())
