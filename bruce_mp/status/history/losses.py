"""Losses of the last minute and hour: discarded messages by reason, and copies that were not written.

The samples are in the slab, so they survive a restart of the status process or of the daemon. The status process
settles no messages, so in its row the samples take the place of the redo record's segments. A sample's
time is on the kernel's monotonic clock, which all processes of a boot share, and which no change of the wall clock
affects.

The sampling thread writes, and HTTP threads read. A sample's time is cleared before its counts are written, and stored
after them, so that neither a reader nor a crash uses half a sample.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.status.history.windows import HOUR_MS, MINUTE_MS
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.slab.file import Slab

__all__ = ["LossHistory"]

_SAMPLE_LONGS: Final = 32
"""Longs of a sample: its time and at most 31 counts."""
_LOST_COPIES: Final = 0
"""Index of the lost copies in the counts of a sample; the index of a reason's discards is its number."""
_REASONS: Final = tuple(DiscardReason)
_RING_SAMPLES: Final = 62
"""Samples of a ring: 60 for the steps of its window, one before them, and one that is being written."""


class _Ring(NamedTuple):
    """Samples of the last `span_ms`, one for each `step_ms`, from index `start` of the slab's 64-bit integers."""

    start: int
    step_ms: int
    span_ms: int


class LossHistory:
    """Counts of losses over the last minute and hour. `now_ms` is the kernel's monotonic clock in ms."""

    def __init__(self, slab: Slab, now_ms: Callable[[], int]) -> None:
        self._slab = slab
        self._now_ms = now_ms
        start = (slab.row_at(lay.ROW_STATUS) + lay.ROW_STATUS_LOSSES) >> 3
        self._minute = _Ring(start, 1000, MINUTE_MS)
        self._hour = _Ring(start + _RING_SAMPLES * _SAMPLE_LONGS, 60_000, HOUR_MS)
        for at in (*self._sample_offsets(self._minute), *self._sample_offsets(self._hour)):
            if slab.longs[at] > now_ms():  # the machine was started again, and its clock began at 0
                slab.longs[at] = 0

    @staticmethod
    def _sample_offsets(ring: _Ring) -> range:
        return range(ring.start, ring.start + _RING_SAMPLES * _SAMPLE_LONGS, _SAMPLE_LONGS)

    def sample(self) -> None:
        """Store the counts, unless the present step has a sample."""
        now_ms = self._now_ms()
        for ring in (self._minute, self._hour):
            at = ring.start + now_ms // ring.step_ms % _RING_SAMPLES * _SAMPLE_LONGS
            if not self._slab.longs[at] or self._slab.longs[at] // ring.step_ms != now_ms // ring.step_ms:
                counts = self._read_counts()
                self._slab.longs[at] = 0
                self._slab.longs[at + 1 : at + 1 + len(counts)] = counts
                self._slab.longs[at] = now_ms

    def _read_counts(self) -> array[int]:
        counts = array("Q", bytes(8 * (_SAMPLE_LONGS - 1)))
        counts[_LOST_COPIES] = counter_total(self._slab, Counter.MsgCopyLost)
        for reason in _REASONS:
            counts[reason] = counter_total(self._slab, discarded(reason))
        return counts

    def _increases(self, ring: _Ring) -> list[int]:
        """Return the increase of each count since the oldest sample of the window; all 0 without a sample."""
        now, now_ms, longs = self._read_counts(), self._now_ms(), self._slab.longs
        samples = ((longs[at], at) for at in self._sample_offsets(ring))
        in_window = [(ms, at) for ms, at in samples if ms and 0 <= now_ms - ms <= ring.span_ms]
        if not in_window:
            return [0] * len(now)
        _, oldest = min(in_window)
        before = longs[oldest + 1 : oldest + 1 + len(now)].tolist()
        return [count - earlier for count, earlier in zip(now, before, strict=True)]

    def last_minute(self) -> dict[DiscardReason, int]:
        """Return the discards of the last minute by reason, without reasons that did not occur."""
        return _by_reason(self._increases(self._minute))

    def last_hour(self) -> dict[DiscardReason, int]:
        """Return the discards of the last hour by reason, without reasons that did not occur."""
        return _by_reason(self._increases(self._hour))

    def copies_lost_in_last_hour(self) -> int:
        """Return the number of copies that were not written in the last hour. Their files stay incomplete."""
        return self._increases(self._hour)[_LOST_COPIES]


def _by_reason(increases: list[int]) -> dict[DiscardReason, int]:
    return {reason: count for reason in _REASONS if (count := increases[reason]) > 0}


assert max(_REASONS) + 1 < _SAMPLE_LONGS
assert lay.ROW_STATUS_LOSSES + 2 * _RING_SAMPLES * _SAMPLE_LONGS * 8 <= lay.ROW_BYTES
