"""Keeps a task below a number of records per second."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Pace"]

_BURSTS_PER_SECOND: Final = 10
_NO_LIMIT: Final = 2**31


class Pace:
    """`wait(n)` returns when n more records may go; without a rate at once.

    Time that the task spent elsewhere is not made up for by a burst: each wait counts from the last.
    """

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()

    @property
    def burst(self) -> int:
        """Records that should go at once at most."""
        return _NO_LIMIT if self._per_second is None else max(1, self._per_second // _BURSTS_PER_SECOND)

    def wait(self, records: int) -> None:
        """Sleep until `records` may go."""
        if self._per_second is None:
            return
        now = time.monotonic()
        time.sleep(max(0.0, self._free_at - now))
        self._free_at = max(self._free_at, now) + records / self._per_second
