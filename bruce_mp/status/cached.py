"""Cache for slow readings.

Counting the messages in a slab of many GB takes seconds, and monitors poll most often when the slab is full. A slow
reading stays cached for a multiple of its duration, which bounds the share of time spent reading. A quick one is
repeated for each request.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Cached"]

QUICK_S: Final = 0.5
REST: Final = 3
"""A slow reading stays valid for this multiple of its duration."""

_Reading = TypeVar("_Reading")


class Cached(Generic[_Reading]):
    """Result of `read`, cached for `least_s` after a quick reading and longer after a slow one.

    Several threads may call it. `clock` is monotonic, in seconds.
    """

    def __init__(
        self, read: Callable[[], _Reading], clock: Callable[[], float] = time.monotonic, *, least_s: float = 0.0
    ) -> None:
        self._read = read
        self._least_s = least_s
        self._clock = clock
        self._lock = Lock()
        self._last: _Reading | None = None
        self._until = 0.0

    def __call__(self) -> _Reading:
        """Return the reading.

        While another thread reads, return the previous reading. The first reading blocks all callers.
        """
        last = self._last
        if not self._lock.acquire(blocking=last is None):
            assert last is not None
            return last
        try:
            if self._last is None or self._clock() >= self._until:
                self._last = self._read_anew()
            return self._last
        finally:
            self._lock.release()

    def _read_anew(self) -> _Reading:
        begun = self._clock()
        reading = self._read()
        now = self._clock()
        took = now - begun
        self._until = now + (REST * took if took >= QUICK_S else self._least_s)
        return reading
