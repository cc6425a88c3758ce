"""Windows of recent counter samples, and the computation of rates that all histories share."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HOUR_MS", "MINUTE_MS", "STEP_MS", "Window", "increases", "minute_ago_ms", "per_s"]

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
STEP_MS: Final = 10_000
"""Length of the steps in which the traffic of a topic is summed; `minute_ago_ms` returns the start of a step."""
_JITTER_MS: Final = 500
"""A sample may come this much before it is due, because the timer that triggers samples has jitter."""


class Timestamped(Protocol):
    """Any value with a timestamp in ms on a monotonic clock."""

    @property
    def at_ms(self) -> int: ...


_Sample = TypeVar("_Sample", bound=Timestamped)


class Window(Generic[_Sample]):
    """Samples within the last `span_ms`, at least `step_ms` apart."""

    def __init__(self, step_ms: int, span_ms: int) -> None:
        self.step_ms = step_ms
        self.span_ms = span_ms
        self._samples: deque[_Sample] = deque(maxlen=span_ms // step_ms + 1)

    def is_due(self, now_ms: int) -> bool:
        return not self._samples or now_ms - self._samples[-1].at_ms >= self.step_ms - _JITTER_MS

    def add_if_due(self, sample: _Sample) -> None:
        """Keep the sample if `step_ms` have passed since the last one, and drop the samples older than `span_ms`."""
        if self.is_due(sample.at_ms):
            self._samples.append(sample)
        while sample.at_ms - self._samples[0].at_ms > self.span_ms:
            self._samples.popleft()

    @property
    def first(self) -> _Sample | None:
        """The oldest sample, or None if there is no sample."""
        return self._samples[0] if self._samples else None

    def first_since(self, start_ms: int) -> _Sample | None:
        """Return the oldest sample that was taken at `start_ms` or later, or None if there is none."""
        return next((sample for sample in self._samples if sample.at_ms >= start_ms), None)

    def pairs(self) -> Iterator[tuple[_Sample, _Sample]]:
        """Yield each pair of consecutive samples, the oldest first."""
        return pairwise(self._samples)


def minute_ago_ms(now_ms: int) -> int:
    """Return the time at which "the last minute" began: 50 to 60 s ago, a multiple of `STEP_MS`.

    All histories use this start, so the rates of the topics add up to the daemon's rate.
    """
    return (now_ms // STEP_MS - MINUTE_MS // STEP_MS + 1) * STEP_MS


def increases(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """Return the increase of each counter between two readings of the same counters."""
    return tuple(later - earlier for later, earlier in zip(now, before, strict=True))


def per_s(amount: int, interval_ms: int) -> float:
    """Return a rate per second, or 0 for an empty interval."""
    return round(1000 * amount / interval_ms, 2) if interval_ms > 0 else 0.0
