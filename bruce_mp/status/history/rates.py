"""History of the daemon's counters: a sample per second for a minute, and one per 10 s for the latencies of an hour.

The main thread samples; the HTTP threads read. The memory is bounded, and the history ends with the process;
`history_recorder` keeps a longer one. Counting held messages in the slab each second is too expensive, so their number
here is a difference of counters: received minus delivered minus discarded.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.status.history.history_file import StepAmounts
from bruce_mp.status.history.windows import HOUR_MS, MINUTE_MS, Window, increases, minute_start_ms, per_s
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.latency_histogram import percentile, read_latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["CounterSample", "Interval", "Latency", "RateHistory", "Series", "series_of"]


class CounterSample(NamedTuple):
    """Counter sample taken at `at_ms`: `discarded` by reason, `latencies` by latency bucket."""

    at_ms: int
    delivered: int
    discarded: tuple[int, ...]
    latencies: tuple[int, ...]
    received: int
    accepts_failed: int

    @property
    def held(self) -> int:
        return max(0, self.received - self.delivered - sum(self.discarded))

    def since(self, before: CounterSample) -> StepAmounts:
        latencies = increases(self.latencies, before.latencies)
        return StepAmounts(
            (self.at_ms - before.at_ms) / 1000,
            self.received - before.received,
            self.delivered - before.delivered,
            sum(increases(self.discarded, before.discarded)),
            self.held,
            percentile(latencies, 0.5),
            percentile(latencies, 0.99),
        )


class Latency(msgspec.Struct, frozen=True):
    """Latency percentiles in ms, from receipt to acknowledgement, over `messages` messages."""

    messages: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class Interval(NamedTuple):
    """Activity within an interval of `ms`: rates per second, and latency."""

    ms: int
    received: float
    delivered: float
    discarded: float
    latency: Latency


class Series(msgspec.Struct, frozen=True):
    """Columns of equal length, the oldest sample first.

    A row covers the interval that ended `age_s` ago and began at the previous sample. Rates are messages per second;
    `held` is the value at the end of the interval. `p50_ms` and `p99_ms` are None for an interval without deliveries.
    """

    step_s: int
    span_s: int
    age_s: list[float]
    received: list[float]
    delivered: list[float]
    discarded: list[float]
    held: list[int]
    p50_ms: list[float | None]
    p99_ms: list[float | None]


class RateHistory:
    """Counter samples of the last minute and hour.

    `wall_now_ms` is the wall-clock time at construction. All other times are in ms on a monotonic clock.
    """

    def __init__(self, slab: Slab, wall_now_ms: int) -> None:
        self._slab = slab
        self._lock = Lock()
        self._minute: Window[CounterSample] = Window(1000, MINUTE_MS)
        self._hour: Window[CounterSample] = Window(10_000, HOUR_MS)
        self.since = wall_now_ms // 1000
        """Start of the history, in seconds since the epoch."""

    def sample(self, now_ms: int) -> None:
        reading = self.read(now_ms)
        with self._lock:
            self._minute.add(reading)
            self._hour.add(reading)

    def read(self, now_ms: int) -> CounterSample:
        """Read all counters, MsgReceived after the settled ones, so that no more seem settled than received."""
        return CounterSample(
            now_ms,
            counter_total(self._slab, Counter.MsgDelivered),
            tuple(counter_total(self._slab, discarded(reason)) for reason in DiscardReason),
            tuple(read_latencies(self._slab)[0]),
            counter_total(self._slab, Counter.MsgReceived),
            counter_total(self._slab, Counter.AcceptExhausted),
        )

    def accepts_failed_in_last_minute(self) -> int:
        """Return how often processes had no descriptor or memory for a connection in the last minute."""
        now = counter_total(self._slab, Counter.AcceptExhausted)
        with self._lock:
            before = self._minute.first
        return now - before.accepts_failed if before else 0

    def last_minute(self, now_ms: int) -> Interval:
        now = self.read(now_ms)
        with self._lock:
            before = self._minute.first_since(minute_start_ms(now_ms))
        return _interval_between(before or now, now)  # empty without an earlier sample

    def last_hour(self, now_ms: int) -> Interval:
        now = self.read(now_ms)
        with self._lock:
            before = self._hour.first
        return _interval_between(before or now, now)

    def minute(self, now_ms: int) -> Series:
        with self._lock:
            pairs = list(self._minute.pairs())
        rows = [(round((now_ms - end.at_ms) / 1000, 1), end.since(start)) for start, end in pairs]
        return series_of(self._minute.step_ms // 1000, self._minute.span_ms // 1000, rows)


def _interval_between(before: CounterSample, now: CounterSample) -> Interval:
    ms = now.at_ms - before.at_ms
    latencies = increases(now.latencies, before.latencies)
    return Interval(
        ms,
        per_s(now.received - before.received, ms),
        per_s(now.delivered - before.delivered, ms),
        per_s(sum(increases(now.discarded, before.discarded)), ms),
        Latency(sum(latencies), *(percentile(latencies, quantile) for quantile in (0.5, 0.9, 0.99))),
    )


def series_of(step_s: int, span_s: int, rows: Sequence[tuple[float, StepAmounts]]) -> Series:
    """Return the columns of the rows (age in s, amounts), the oldest first."""
    return Series(
        step_s=step_s,
        span_s=span_s,
        age_s=[age_s for age_s, _ in rows],
        received=[round(each.received / each.seconds, 2) for _, each in rows],
        delivered=[round(each.delivered / each.seconds, 2) for _, each in rows],
        discarded=[round(each.discarded / each.seconds, 2) for _, each in rows],
        held=[each.held for _, each in rows],
        p50_ms=[each.p50_ms for _, each in rows],
        p99_ms=[each.p99_ms for _, each in rows],
    )
