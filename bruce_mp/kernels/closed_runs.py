"""Closed runs of an input that wait for their publication to the router.

The lingers of all lanes end on common ticks.  So one wake-up of the input, and one frame to the router, serves all
topics.

Both variants of `Lanes` use this module, because it works per run and not per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.runs import Segment

__all__ = ["LEEWAY_MS", "MAX_CLOSED_BYTES", "ClosedRuns", "tick_after"]

LEEWAY_MS: Final = 4
"""The longest time by which an input publishes before a tick, so that a late wake-up does not delay a run."""
MAX_CLOSED_BYTES: Final = 4 << 20
"""Size from which the closed runs are published before their tick; an input fills as much in about 5 ms."""
_SLAB_DIVISOR: Final = 16
"""In a small slab, the size of the slab divided by this number takes the place of MAX_CLOSED_BYTES."""
_NEVER_MS: Final = 1 << 62


class ClosedRuns:
    """The closed runs in order.  Times are in ms of the steady clock."""

    def __init__(self, slab_bytes: int) -> None:
        self._max_bytes = min(MAX_CLOSED_BYTES, slab_bytes // _SLAB_DIVISOR)
        self._bytes = 0
        self.segments: list[Segment] = []
        self.publish_ms = _NEVER_MS
        """Time at which the input must publish these runs; 0 = now."""

    def add(self, segment: Segment, due_ms: int) -> None:
        """Add a run that must be published at `due_ms`; 0 = now."""
        self.segments.append(segment)
        self._bytes += segment.payload + segment.records * lay.RECORD_HEADER
        self.publish_ms = min(self.publish_ms, due_ms if self._bytes < self._max_bytes else 0)

    def request_publish(self) -> None:
        """Make these runs due for publication now."""
        if self.segments:
            self.publish_ms = 0

    def drain(self) -> list[Segment]:
        segments, self.segments = self.segments, []
        self._bytes, self.publish_ms = 0, _NEVER_MS
        return segments


def tick_after(now_ms: int, linger_ms: int) -> int:
    """Return the first tick after `now_ms`: a multiple of `linger_ms`."""
    return (now_ms // linger_ms + 1) * linger_ms
