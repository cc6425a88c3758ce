"""Closed runs of an input that wait for their publication to the router.

A lane collects messages in its open *run*.  The lane closes the run when its chunk is full, or when the run has waited
for its topic's *linger*.  A closed run gets no further messages.  The lingers of all lanes end at common *ticks*.  So
the input wakes up once, and sends one frame to the router, for the runs of all topics.

Both variants of `Lanes` use this module, because it works per run and not per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.slab import layout as lay

if TYPE_CHECKING:
    from bruce_mp.slab.runs import Segment

__all__ = ["LEEWAY_MS", "MAX_CLOSED_BYTES", "ClosedRuns", "tick_after"]

LEEWAY_MS: Final = 4
"""An input plans to wake up this long before a tick, so that a late wake-up still publishes the runs by the tick."""
MAX_CLOSED_BYTES: Final = 4 << 20
"""Closed runs of this total size are published at once, before their tick.  A busy input fills them in about 5 ms."""
_SLAB_DIVISOR: Final = 16
"""In a small slab, the slab's size divided by this number is the limit instead of MAX_CLOSED_BYTES."""
_NEVER_MS: Final = 1 << 62
"""The value of `publish_ms` if there is no closed run."""


class ClosedRuns:
    """The closed runs in the order of closing.  Times are in ms of the steady clock."""

    def __init__(self, slab_bytes: int) -> None:
        self._max_bytes = min(MAX_CLOSED_BYTES, slab_bytes // _SLAB_DIVISOR)
        self._closed_bytes = 0
        self.segments: list[Segment] = []
        self.publish_ms = _NEVER_MS
        """Time at which the input must publish all closed runs; 0 = at once."""

    def add(self, segment: Segment, due_ms: int) -> None:
        """Add a run that must be published at the time `due_ms`; 0 = at once."""
        self.segments.append(segment)
        self._closed_bytes += segment.payload + segment.records * lay.RECORD_HEADER
        self.publish_ms = min(self.publish_ms, due_ms if self._closed_bytes < self._max_bytes else 0)

    def request_publish(self) -> None:
        """Make all closed runs due for publication now."""
        if self.segments:
            self.publish_ms = 0

    def drain(self) -> list[Segment]:
        """Return the closed runs, and forget them."""
        segments, self.segments = self.segments, []
        self._closed_bytes, self.publish_ms = 0, _NEVER_MS
        return segments


def tick_after(now_ms: int, linger_ms: int) -> int:
    """Return the first tick after `now_ms`.  The ticks of a linger are the multiples of `linger_ms`."""
    return (now_ms // linger_ms + 1) * linger_ms
