"""Closed runs of an input that the router does not know yet, and the tick by which it must.

The lingers of all lanes end on ticks.  So one wake-up of the input, and one frame to the router, serves all topics.

Separate because both variants of the lanes use it, and it works per run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.runs import Segment

__all__ = ["MOST_CLOSED_BYTES", "ClosedRuns", "tick_after"]

MOST_CLOSED_BYTES: Final = 4 << 20
"""Closed runs with more memory wait for no tick: some milliseconds at full load; in a small slab, a 16th of it."""
_SLAB_PART: Final = 16
_NEVER: Final = 1 << 62


class ClosedRuns:
    """The closed runs in order.  Times are on the clock of `Lanes.ingest`."""

    def __init__(self, slab_bytes: int) -> None:
        self._most_bytes = min(MOST_CLOSED_BYTES, slab_bytes // _SLAB_PART)
        self._bytes = 0
        self.segments: list[Segment] = []
        self.publish_ms = _NEVER
        """The time by which the router must know of these runs; 0 = now."""

    def add(self, segment: Segment, due_ms: int) -> None:
        """Add a run that was due at `due_ms`, 0 = at once."""
        self.segments.append(segment)
        self._bytes += segment.payload + segment.records * lay.RECORD_HEADER
        self.publish_ms = min(self.publish_ms, due_ms if self._bytes < self._most_bytes else 0)

    def publish_now(self) -> None:
        """Make the router know of these runs now."""
        if self.segments:
            self.publish_ms = 0

    def drain(self) -> list[Segment]:
        """Return and remove all runs."""
        segments, self.segments = self.segments, []
        self._bytes, self.publish_ms = 0, _NEVER
        return segments


def tick_after(now_ms: int, linger_ms: int) -> int:
    """Return the next tick of a linger: a multiple of it, at most `linger_ms` later."""
    return (now_ms // linger_ms + 1) * linger_ms
