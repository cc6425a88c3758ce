"""Bounded window of timestamped counter samples: at least one step apart, none older than its length."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from bruce_mp.telemetry.latency_histogram import percentile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HOUR_MS", "MINUTE_MS", "STEP_MS", "Window", "increases", "latency_ms", "minute_start_ms", "per_s"]

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
STEP_MS: Final = 10_000
"""Resolution of the start of the last minute."""
_JITTER_MS: Final = 500
"""Tolerance for the timer, which samples once a second with some jitter."""


class Timestamped(Protocol):
    """Any value with a timestamp in ms on a monotonic clock."""

    @property
    def at_ms(self) -> int: ...


_Reading = TypeVar("_Reading", bound=Timestamped)


class Window(Generic[_Reading]):
    """Samples within the last `span_ms`, at least `step_ms` apart."""

    def __init__(self, step_ms: int, span_ms: int) -> None:
        self.step_ms = step_ms
        self.span_ms = span_ms
        self._readings: deque[_Reading] = deque(maxlen=span_ms // step_ms + 1)

    def is_due(self, now_ms: int) -> bool:
        return not self._readings or now_ms - self._readings[-1].at_ms >= self.step_ms - _JITTER_MS

    def add(self, reading: _Reading) -> None:
        """Keep a sample if one is due, and drop the expired ones."""
        if self.is_due(reading.at_ms):
            self._readings.append(reading)
        while reading.at_ms - self._readings[0].at_ms > self.span_ms:
            self._readings.popleft()

    @property
    def first(self) -> _Reading | None:
        """The oldest reading; None before the first."""
        return self._readings[0] if self._readings else None

    def first_since(self, start_ms: int) -> _Reading | None:
        """Return the oldest reading of at least this time; None without one."""
        return next((reading for reading in self._readings if reading.at_ms >= start_ms), None)

    def pairs(self) -> Iterator[tuple[_Reading, _Reading]]:
        """Yield each pair of consecutive samples, the oldest first."""
        return pairwise(self._readings)


def minute_start_ms(now_ms: int) -> int:
    """Return the start of the last minute for all rates and latencies, so that those of topics add up to the total.

    It is 50 to 60 s ago, because the traffic of topics is counted in steps of 10 s.
    """
    return (now_ms // STEP_MS - MINUTE_MS // STEP_MS + 1) * STEP_MS


def increases(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """Return the increase of each counter."""
    return tuple(one - other for one, other in zip(now, before, strict=True))


def per_s(messages: int, ms: int) -> float:
    """Return a rate per second, or 0 for an empty interval."""
    return round(1000 * messages / ms, 2) if ms > 0 else 0.0


def latency_ms(delays: Sequence[int], share: float) -> float | None:
    """Return the latency percentile, or None without messages."""
    delay = percentile(delays, share)
    return None if delay is None else round(delay, 2)
