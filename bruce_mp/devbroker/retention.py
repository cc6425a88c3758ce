"""The bound on memory: all partitions together hold so many bytes, and the oldest batches go first.

A batch is charged with its bytes and with what the objects around it cost, so that a million tiny batches are bounded
too.  Trimming frees a sixteenth of the limit at once: a log pays for the removal of its head once per trim instead of
once per batch.  A log that was operated upon (a batch dropped on command, the topic deleted) may have fewer batches
than this order believes; it then has nothing to give, and the next in the order is asked.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Protocol

__all__ = ["Retained", "Retention"]

OVERHEAD: Final = 320  # the objects around a batch: measured 250 to 310 bytes on CPython 3.11
TRIM_SHARE: Final = 16


class Retained(Protocol):
    """A log that can give up its oldest batches."""

    def drop_oldest(self, count: int) -> int:
        """Forget up to `count` batches, tell `Retention.release` of each; returns how many there were."""


class Retention:
    """The order of all batches over all partitions, and the sum of what they cost."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.dropped = 0
        self._order: deque[tuple[Retained, int]] = deque()

    def charge(self, log: Retained, size: int) -> None:
        """`log` appended a batch of `size` bytes; may call `drop_oldest` of any log, this one included."""
        self.held += size + OVERHEAD
        self._order.append((log, size + OVERHEAD))
        if self.held > self.limit:
            self._trim()

    def release(self, size: int) -> None:
        """A batch of `size` bytes is gone, for whatever reason."""
        self.held -= size + OVERHEAD

    def _trim(self) -> None:
        target = self.limit - self.limit // TRIM_SHARE
        while self.held > target and self._order:
            for log, count in self._take(self.held - target).items():
                self.dropped += log.drop_oldest(count)

    def _take(self, wanted: int) -> Counter[Retained]:
        """How many batches each log should give up so that `wanted` bytes are freed."""
        victims: Counter[Retained] = Counter()
        while wanted > 0 and self._order:
            log, cost = self._order.popleft()
            victims[log] += 1
            wanted -= cost
        return victims
