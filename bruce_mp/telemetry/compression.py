"""Gain and cost of compression by topic and codec, summed in each dispatcher and again in the status process.

A dispatcher reports the sums since its last report; the sums of the status process cover its lifetime. Both tables are
bounded: the empty topic name collects the topics beyond the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.events import CompressionEvent

__all__ = ["MAX_TOPICS", "CompressionSums"]

MAX_TOPICS: Final = 1000


class CompressionSums:
    """Compression events summed by topic and codec."""

    def __init__(self) -> None:
        self._sums: dict[tuple[bytes, str], CompressionEvent] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, event: CompressionEvent) -> None:
        if (event.topic, event.codec) not in self._sums and len(self._sums) >= MAX_TOPICS:
            event = replace(event, topic=b"")
        before = self._sums.get((event.topic, event.codec))
        self._sums[event.topic, event.codec] = event if before is None else before.plus(event)

    def add_all(self, events: Iterable[CompressionEvent]) -> None:
        for event in events:
            self.add(event)

    def events(self) -> list[CompressionEvent]:
        """Return the sums, sorted by topic and codec."""
        return [self._sums[key] for key in sorted(self._sums)]

    def clear(self) -> None:
        self._sums.clear()
