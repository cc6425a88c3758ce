"""Limit the rate of a task."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["TaskRate"]

_BURSTS_PER_SECOND: Final = 10
_NO_LIMIT: Final = 2**31


class TaskRate:
    """A limit on records per second: `wait(n)` returns when n more may be sent, at once without a rate.

    No burst follows other work of the task: each wait counts from the last one.
    """

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()

    @property
    def burst(self) -> int:
        """Return the most records to send together."""
        return _NO_LIMIT if self._per_second is None else max(1, self._per_second // _BURSTS_PER_SECOND)

    def wait(self, records: int) -> None:
        """Sleep until `records` may be sent."""
        if self._per_second is None:
            return
        now = time.monotonic()
        time.sleep(max(0.0, self._free_at - now))
        self._free_at = max(self._free_at, now) + records / self._per_second
