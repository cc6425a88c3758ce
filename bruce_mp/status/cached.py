"""Cache for slow readings: counting the messages in a full slab of many GB takes seconds.

A slow reading stays cached for `VALIDITY_FACTOR` times its duration, so readings take at most a quarter of the time. A
quick reading stays cached for `min_valid_s`, by default not at all.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Cached"]

SLOW_S: Final = 0.5
"""A reading that takes at least this time is slow."""
VALIDITY_FACTOR: Final = 3

_Reading = TypeVar("_Reading")


class Cached(Generic[_Reading]):
    """Cache of the result of `read`, for several threads. `clock` is monotonic, in seconds."""

    def __init__(
        self, read: Callable[[], _Reading], clock: Callable[[], float] = time.monotonic, *, min_valid_s: float = 0.0
    ) -> None:
        self._read = read
        self._min_valid_s = min_valid_s
        self._clock = clock
        self._lock = Lock()
        self._last: _Reading | None = None
        self._valid_until = 0.0

    def __call__(self) -> _Reading:
        """Return the cached or a new reading. While another thread reads, return the previous reading.

        If no reading has ended yet, wait for the first.
        """
        last = self._last
        if not self._lock.acquire(blocking=last is None):
            assert last is not None
            return last
        try:
            started = self._clock()
            if self._last is None or started >= self._valid_until:
                self._last = self._read()
                now = self._clock()
                duration = now - started
                self._valid_until = now + (VALIDITY_FACTOR * duration if duration >= SLOW_S else self._min_valid_s)
            return self._last
        finally:
            self._lock.release()
