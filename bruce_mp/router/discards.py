"""Discards by the router: settled in the slab, counted and reported, all of it or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.slab.layout import State
from bruce_mp.telemetry.counters import discarded

if TYPE_CHECKING:
    from bruce_mp.errors import DiscardReason
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.counters import Counter
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["Discards"]

_AT_ONCE: Final = 1000
_SAMPLE: Final = 256


class Discards:
    """Discards segments on behalf of one process."""

    def __init__(self, slab: Slab, row: Row, reporter: DiscardReporter) -> None:
        self._slab = slab
        self._row = row
        self._reporter = reporter

    def settle(self, segments: list[Segment], reason: DiscardReason, topic: bytes, counter: Counter) -> None:
        """Discard segments that are ours."""
        for start in range(0, len(segments), _AT_ONCE):
            some = segments[start : start + _AT_ONCE]
            for segment in some:
                self._report(segment, reason, topic)
            records = sum(segment.records for segment in some)
            self._row.settle(some, State.DISCARDED, reason, {discarded(reason): records, counter: records})

    def _report(self, segment: Segment, reason: DiscardReason, topic: bytes) -> None:
        span = kernels.time_span(self._slab, segment)
        sample = kernels.sample(self._slab, segment, _SAMPLE)
        self._reporter.note(
            reason,
            topic=topic,
            timestamp=span.earliest,
            max_timestamp=span.latest,
            sample=sample,
            count=segment.records,
        )
