"""Adaptive compression: earlier results of a topic decide if its next batch is compressed.

Compressed, encrypted or random data does not get smaller, and each trial costs time.  So a topic whose last batches
did not shrink rests: several batches go out uncompressed, then one is tried.  After each failed trial the next rest is
twice as long.  A rest also ends by time, so that a quiet topic does not rest for days.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CompressionTrials"]

BAD_IN_A_ROW: Final = 5
WORTH_PERCENT: Final = 90
"""A batch that keeps more than this share of its size does not justify the time."""
FIRST_REST: Final = 16
LONGEST_REST: Final = 1024
REST_S: Final = 60.0


class CompressionTrials:
    """The trials of one topic.  `now` is in seconds of a monotonic clock."""

    __slots__ = ("_bad", "_left", "_rest", "_wake_at")

    def __init__(self) -> None:
        self._bad = 0
        self._rest = FIRST_REST
        self._left = 0
        self._wake_at = 0.0

    @property
    def is_resting(self) -> bool:
        """True if the last batches did not shrink enough."""
        return self._bad >= BAD_IN_A_ROW

    def is_due(self, now: float) -> bool:
        """Return True if the next batch is to be compressed; call once for each batch."""
        if self._left and now < self._wake_at:
            self._left -= 1
            return False
        self._left = 0
        return True

    def tried(self, plain: int, packed: int, now: float) -> None:
        """Record the compression of a batch from `plain` to `packed` bytes."""
        if packed * 100 <= plain * WORTH_PERCENT:
            self._bad, self._rest = 0, FIRST_REST
            return
        self._bad += 1
        if self.is_resting:
            self._left, self._wake_at = self._rest, now + REST_S
            self._rest = min(2 * self._rest, LONGEST_REST)
