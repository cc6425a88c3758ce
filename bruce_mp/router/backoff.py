"""Randomised exponential back-off for pauses (behaviour, "Delay", of the reference).

The first pause of a window costs only the minimum.  Inside a window the base starts at `initial` and doubles at each
pause, up to `max_double` times.  Each delay is drawn from 0.5 to 1.5 times the base; the time since the end of the last
delay is subtracted.  A window lasts initial * 2^(max_double + 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["PauseBackoff"]


class PauseBackoff:
    """The back-off of one scope; times in milliseconds on one clock."""

    def __init__(self, initial_ms: int, max_double: int, minimum_ms: int, rng: random.Random) -> None:
        self.apply_config(initial_ms, max_double, minimum_ms)
        self._rng = rng
        self._window_ends_ms: int | None = None
        self._doubled = 0
        self._last_end_ms = 0

    def apply_config(self, initial_ms: int, max_double: int, minimum_ms: int) -> None:
        """Replace the parameters; a window that has begun keeps its end."""
        self._initial_ms = initial_ms
        self._max_double = max_double
        self._minimum_ms = minimum_ms

    def next_delay_ms(self, now_ms: int) -> int:
        """Return the delay before the next attempt, and count this pause."""
        delay = max(self._minimum_ms, self._backoff(now_ms))
        self._last_end_ms = now_ms + delay
        return delay

    def _backoff(self, now_ms: int) -> int:
        if self._window_ends_ms is None or now_ms >= self._window_ends_ms:
            self._window_ends_ms = now_ms + (self._initial_ms << (self._max_double + 2))
            self._doubled = 0
            return 0
        base = self._initial_ms << min(self._doubled, self._max_double)
        self._doubled = min(self._doubled + 1, self._max_double)
        drawn = int(base * self._rng.uniform(0.5, 1.5))
        return max(0, drawn - (now_ms - self._last_end_ms))
