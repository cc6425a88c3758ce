"""Losses of the last minute and hour: discarded messages by reason, and copies that were not written.

The samples are in the slab, so they survive a restart of the status process or of the daemon. They are in the status
process' row at `layout.ROW_STATUS_LOSSES`, where the rows of other processes have the messages of a transaction; the
status process has no such transactions. The time of a sample is on the kernel's monotonic clock, which neither a
restart of a process nor a change of the wall clock affects.

The sampling thread writes, and HTTP threads read. The thread clears the time of a sample before it writes the counts,
and stores the new time after them. So no reader uses a sample that is written only in part, not even after a crash.
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
"""Size of a sample in 64-bit integers: its time and at most 31 counts."""
_LOST_COPIES: Final = 0
"""Index of the number of lost copies in the counts of a sample. The index of a discard count is the reason's number."""
_REASONS: Final = tuple(DiscardReason)
_RING_SAMPLES: Final = 62
"""Number of samples in a ring: 60 for the steps of its span, one before them, and the one in progress."""


class _Ring(NamedTuple):
    """A ring buffer with a sample for each `step_ms` of the last `span_ms`. It begins at `Slab.longs[start_index]`."""

    start_index: int
    step_ms: int
    span_ms: int


class LossHistory:
    """Counts of losses over the last minute and hour. `now_ms` is the kernel's monotonic clock."""

    def __init__(self, slab: Slab, now_ms: Callable[[], int]) -> None:
        self._slab = slab
        self._now_ms = now_ms
        index = (slab.row_at(lay.ROW_STATUS) + lay.ROW_STATUS_LOSSES) >> 3
        self._minute = _Ring(index, 1000, MINUTE_MS)
        self._hour = _Ring(index + _RING_SAMPLES * _SAMPLE_LONGS, 60_000, HOUR_MS)
        for index in (*self._sample_indexes(self._minute), *self._sample_indexes(self._hour)):
            if slab.longs[index] > now_ms():  # from before a boot, at which the clock began at 0 again
                slab.longs[index] = 0

    @staticmethod
    def _sample_indexes(ring: _Ring) -> range:
        return range(ring.start_index, ring.start_index + _RING_SAMPLES * _SAMPLE_LONGS, _SAMPLE_LONGS)

    def sample(self) -> None:
        """Store the present counts in each ring that has no sample for the present step yet."""
        now_ms, longs = self._now_ms(), self._slab.longs
        for ring in (self._minute, self._hour):
            index = ring.start_index + now_ms // ring.step_ms % _RING_SAMPLES * _SAMPLE_LONGS
            if not longs[index] or longs[index] // ring.step_ms != now_ms // ring.step_ms:
                counts = self._read_counts()
                longs[index] = 0
                longs[index + 1 : index + 1 + len(counts)] = counts
                longs[index] = now_ms

    def _read_counts(self) -> array[int]:
        counts = array("Q", bytes(8 * (_SAMPLE_LONGS - 1)))
        counts[_LOST_COPIES] = counter_total(self._slab, Counter.MsgCopyLost)
        for reason in _REASONS:
            counts[reason] = counter_total(self._slab, discarded(reason))
        return counts

    def _increases(self, ring: _Ring) -> list[int]:
        """Return the increase of each count since the oldest sample within the ring's span; 0 if there is no sample."""
        now, now_ms, longs = self._read_counts(), self._now_ms(), self._slab.longs
        samples = ((longs[index], index) for index in self._sample_indexes(ring))
        in_window = [(at_ms, index) for at_ms, index in samples if at_ms and 0 <= now_ms - at_ms <= ring.span_ms]
        if not in_window:
            return [0] * len(now)
        _, oldest_index = min(in_window)
        before = longs[oldest_index + 1 : oldest_index + 1 + len(now)].tolist()
        return [count - earlier for count, earlier in zip(now, before, strict=True)]

    def last_minute(self) -> dict[DiscardReason, int]:
        """Return the number of messages discarded in the last minute for each reason that occurred."""
        return _by_reason(self._increases(self._minute))

    def last_hour(self) -> dict[DiscardReason, int]:
        """Return the number of messages discarded in the last hour for each reason that occurred."""
        return _by_reason(self._increases(self._hour))

    def copies_lost_in_last_hour(self) -> int:
        """Return the number of copies of messages that were lost in the last hour."""
        return self._increases(self._hour)[_LOST_COPIES]


def _by_reason(increases: list[int]) -> dict[DiscardReason, int]:
    return {reason: count for reason in _REASONS if (count := increases[reason]) > 0}


assert max(_REASONS) + 1 < _SAMPLE_LONGS
assert lay.ROW_STATUS_LOSSES + 2 * _RING_SAMPLES * _SAMPLE_LONGS * 8 <= lay.ROW_STATUS_REPORT
