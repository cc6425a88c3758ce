"""Readings that take long are not made for everybody who asks.

To count what a slab of many GB holds takes seconds, and monitors ask again and again, most of all while it is full.  A
reading that took long is shown for a while, so that reading takes a bounded share of the time; one that was quick is
made anew each time.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sampled"]

QUICK_S: Final = 0.5
REST: Final = 3
"""A slow reading is shown for so many times as long as it took."""

_Reading = TypeVar("_Reading")


class Sampled(Generic[_Reading]):
    """What `read` says, or said not long ago: up to `least_s` after it was quick, longer after it was slow.

    May be asked by several threads; `clock` is monotonic, in seconds.
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
        """The reading.  While somebody else reads, the one before; who comes first waits."""
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
