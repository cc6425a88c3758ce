"""Partitions with a retriable error as their last response, for the status page.  Bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.telemetry.broker_status import MOST_LISTED, PartitionError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PartitionErrors"]


class PartitionErrors:
    """The last error responses; `now_ms` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._found: dict[tuple[bytes, int], PartitionError] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def record(self, topic: bytes, partition: int, error: str) -> None:
        """Record a partition's error; repetitions of the same error keep the time of the first."""
        known = self._found.get((topic, partition))
        if known is not None and known.error == error:
            return
        if known is None and len(self._found) >= MOST_LISTED:
            return
        self._found[topic, partition] = PartitionError(topic, partition, error, self._now_ms())

    def clear(self, topic: bytes, partition: int) -> None:
        """Remove a partition after a good response."""
        self._found.pop((topic, partition), None)

    def listed(self) -> tuple[PartitionError, ...]:
        """Return all recorded partitions."""
        return tuple(self._found.values())
