"""Last reports of dispatchers and router about brokers: the event loop stores them, and HTTP threads read them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus
from bruce_mp.telemetry.stalls import OldestMessageTimes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.broker_status import PartitionError
    from bruce_mp.telemetry.stalls import PartitionStall

__all__ = ["BrokerStatusStore", "ClusterReport"]

STALE_MS: Final = 10_000
"""Age at which a report is ignored. Processes report once a second, so the sender is dead or stopped."""
MAX_REASONS: Final = 1000
"""Limit of the partitions with a remembered last error, because a cluster may pause any number at once."""
STALL_SHOWN_MS: Final = 2_500
"""Time for which a stall is shown after its last report, as a partition between two processes is in no report."""


class ClusterReport(NamedTuple):
    """Current reports: `brokers` by dispatcher slot; `router` is None without a recent report.

    `reasons` holds the last error of each partition, and keeps it after the dispatcher hands the partition back.
    `stalls` is sorted by age, the oldest first.
    """

    brokers: dict[int, BrokerStatus]
    router: RouterStatus | None
    reasons: dict[tuple[bytes, int], str]
    stalls: tuple[PartitionStall, ...] = ()


class BrokerStatusStore:
    """Last report of each dispatcher slot and of the router. `now_ms` is the steady clock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._brokers: dict[int, tuple[int, BrokerStatus]] = {}
        self._router: tuple[int, RouterStatus] | None = None
        """Time of receipt and report, as in `_brokers`."""
        self._reasons: dict[tuple[bytes, int], str] = {}
        self._stalls: dict[tuple[int | None, bytes, int], tuple[int, PartitionStall]] = {}
        """Time and content of the last report, by dispatcher slot (None for the router), topic and partition."""
        self._stall_times: OldestMessageTimes[tuple[bytes, int]] = OldestMessageTimes()

    def record(self, reports: Iterable[BrokerStatus | RouterStatus], now_ms: int) -> None:
        with self._lock:
            for status in reports:
                self._record_stalls(None if isinstance(status, RouterStatus) else status.slot, status.stalls, now_ms)
                if isinstance(status, RouterStatus):
                    self._router = (now_ms, status)
                else:
                    self._brokers[status.slot] = (now_ms, status)
                    self._record_reasons(status.partition_errors)

    def _record_stalls(self, slot: int | None, stalls: Iterable[PartitionStall], now_ms: int) -> None:
        for stall in stalls:
            # A partition that has moved to another process keeps the start that the former process reported.
            since_ms = self._stall_times.observe((stall.topic, stall.partition), stall.oldest, stall.since_ms, now_ms)
            self._stalls[slot, stall.topic, stall.partition] = (
                now_ms,
                msgspec.structs.replace(stall, since_ms=since_ms),
            )
        self._stall_times.expire(now_ms)
        self._stalls = {
            key: (at_ms, stall) for key, (at_ms, stall) in self._stalls.items() if now_ms - at_ms < STALL_SHOWN_MS
        }

    def _record_reasons(self, errors: Iterable[PartitionError]) -> None:
        for each in errors:
            self._reasons[each.topic, each.partition] = each.error
        while len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def latest(self, now_ms: int) -> ClusterReport:
        """Return the reports that are younger than `STALE_MS`."""
        with self._lock:
            brokers = {slot: status for slot, (at_ms, status) in self._brokers.items() if now_ms - at_ms < STALE_MS}
            router = self._router[1] if self._router is not None and now_ms - self._router[0] < STALE_MS else None
            stalls = (stall for at_ms, stall in self._stalls.values() if now_ms - at_ms < STALL_SHOWN_MS)
            return ClusterReport(brokers, router, dict(self._reasons), _merge_stalls(stalls))


def _merge_stalls(stalls: Iterable[PartitionStall]) -> tuple[PartitionStall, ...]:
    """Return one stall for each partition, with the earliest start and the largest number of messages.

    Two processes may hold messages of a partition, or report the same ones in turn, so a sum could count some twice.
    """
    merged: dict[tuple[bytes, int], PartitionStall] = {}
    for stall in sorted(stalls, key=lambda stall: stall.since_ms):
        first = merged.setdefault((stall.topic, stall.partition), stall)
        if stall.messages > first.messages:
            merged[stall.topic, stall.partition] = msgspec.structs.replace(first, messages=stall.messages)
    return tuple(merged.values())
