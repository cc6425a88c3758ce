"""What compression brings and what it costs, by topic and codec: added up in the dispatchers, and again in status.

A dispatcher tells status what came since it last told; status's sums are as old as its process.  They are bounded: of
too many topics the rest goes under no topic.
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
    """Sums of events of the same topic and codec."""

    def __init__(self) -> None:
        self._sums: dict[tuple[bytes, str], CompressionEvent] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, event: CompressionEvent) -> None:
        """Add an event to those of its kind."""
        if (event.topic, event.codec) not in self._sums and len(self._sums) >= MAX_TOPICS:
            event = replace(event, topic=b"")
        before = self._sums.get((event.topic, event.codec))
        self._sums[event.topic, event.codec] = event if before is None else before.plus(event)

    def add_all(self, events: Iterable[CompressionEvent]) -> None:
        """Add events."""
        for event in events:
            self.add(event)

    def rows(self) -> list[CompressionEvent]:
        """The sums, by topic and codec."""
        return [self._sums[key] for key in sorted(self._sums)]

    def clear(self) -> None:
        """Begin anew."""
        self._sums.clear()
