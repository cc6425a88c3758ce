"""Memory limit over all partitions: the oldest batches are removed first.

A batch is charged with its bytes and the cost of its Python objects, so the limit also holds for a million tiny
batches. A log has fewer batches than the queue here lists if its topic was deleted, or the command `drop_batch`
removed one; the trim then continues with the next entries.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Protocol

__all__ = ["Retained", "Retention"]

OVERHEAD: Final = 320  # cost of the objects of a batch: measured 250 to 310 bytes on CPython 3.11
TRIM_DIVISOR: Final = 16  # a trim frees the limit divided by this number, so that not each batch trims


class Retained(Protocol):
    """Log that can remove its oldest batches."""

    def drop_oldest(self, count: int) -> int:
        """Remove up to `count` batches, call `Retention.release` for each, and return the number removed."""


class Retention:
    """Queue of all batches over all partitions, with their total cost."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0
        """The bytes of all batches, with `OVERHEAD` for each."""
        self.dropped = 0  # batches
        self._order: deque[tuple[Retained, int]] = deque()
        """Log and cost of each batch, the oldest first."""

    def charge(self, log: Retained, size: int) -> None:
        """Charge a batch of `size` bytes that `log` appended.

        This may call `drop_oldest` of any log, including `log`.
        """
        self.held += size + OVERHEAD
        self._order.append((log, size + OVERHEAD))
        if self.held > self.limit:
            self._trim()

    def release(self, size: int) -> None:
        """Release the charge of a removed batch of `size` bytes."""
        self.held -= size + OVERHEAD

    def _trim(self) -> None:
        target = self.limit - self.limit // TRIM_DIVISOR
        while self.held > target and self._order:
            for log, count in self._oldest(self.held - target).items():
                self.dropped += log.drop_oldest(count)

    def _oldest(self, bytes_to_free: int) -> Counter[Retained]:
        """Take the oldest batches, of `bytes_to_free` bytes, from the queue. Return their number for each log."""
        counts: Counter[Retained] = Counter()
        while bytes_to_free > 0 and self._order:
            log, cost = self._order.popleft()
            counts[log] += 1
            bytes_to_free -= cost
        return counts
