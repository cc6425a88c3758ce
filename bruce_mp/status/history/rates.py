"""History of the daemon's counters: one sample a second over the last minute, and one every 10 s over the last hour.

The main thread samples; the HTTP threads read. The history ends with the process; `history_recorder` keeps a longer
history in a file. To count the held messages in the slab each second is too expensive, so their number here is a
difference of counters: received minus delivered minus discarded.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.status.history.history_file import StepAmounts
from bruce_mp.status.history.windows import HOUR_MS, MINUTE_MS, Window, increases, minute_ago_ms, per_s
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.latency_histogram import percentile, read_latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["CounterSample", "Interval", "Latency", "RateHistory", "Series", "series_of"]


class CounterSample(NamedTuple):
    """The daemon's counters at `at_ms` of a monotonic clock.

    `discarded` holds one count per discard reason, and `latency_buckets` one count per bucket of the latency histogram.
    `failed_accept_count` is how often a process had no descriptor or memory for a connection.
    """

    at_ms: int
    delivered: int
    discarded: tuple[int, ...]
    latency_buckets: tuple[int, ...]
    received: int
    failed_accept_count: int

    @property
    def held(self) -> int:
        return max(0, self.received - self.delivered - sum(self.discarded))

    def amounts_since(self, before: CounterSample) -> StepAmounts:
        """Return the amounts between the earlier sample `before` and this one."""
        latency_buckets = increases(self.latency_buckets, before.latency_buckets)
        return StepAmounts(
            (self.at_ms - before.at_ms) / 1000,
            self.received - before.received,
            self.delivered - before.delivered,
            sum(increases(self.discarded, before.discarded)),
            self.held,
            percentile(latency_buckets, 0.5),
            percentile(latency_buckets, 0.99),
        )


class Latency(msgspec.Struct, frozen=True):
    """Latency percentiles in ms, from receipt to acknowledgement, over `messages` messages."""

    messages: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class Interval(NamedTuple):
    """Rates and latency of the messages within an interval."""

    duration_ms: int
    received_per_s: float
    delivered_per_s: float
    discarded_per_s: float
    latency: Latency


class Series(msgspec.Struct, frozen=True):
    """Data of a chart over the last `span_s`, in intervals of about `step_s`.

    The lists have one item for each interval, the oldest interval first. An interval ended `age_s` ago and began at the
    end of the previous one. `received`, `delivered` and `discarded` are messages per second; `held` is the number at
    the end of the interval. The latency percentiles are None for an interval without deliveries.
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

    `wall_now_ms` is the present time of the wall clock. Each `now_ms` is the present time of a monotonic clock.
    """

    def __init__(self, slab: Slab, wall_now_ms: int) -> None:
        self._slab = slab
        self._lock = Lock()
        self._minute: Window[CounterSample] = Window(step_ms=1000, span_ms=MINUTE_MS)
        self._hour: Window[CounterSample] = Window(step_ms=10_000, span_ms=HOUR_MS)
        self.start_s = wall_now_ms // 1000
        """Start of the history, in seconds since the epoch."""

    def sample(self, now_ms: int) -> None:
        reading = self.read(now_ms)
        with self._lock:
            self._minute.add_if_due(reading)
            self._hour.add_if_due(reading)

    def read(self, now_ms: int) -> CounterSample:
        """Read all counters, and MsgReceived last of the books, so that no message seems settled but not received."""
        return CounterSample(
            now_ms,
            counter_total(self._slab, Counter.MsgDelivered),
            tuple(counter_total(self._slab, discarded(reason)) for reason in DiscardReason),
            tuple(read_latencies(self._slab)[0]),
            counter_total(self._slab, Counter.MsgReceived),
            counter_total(self._slab, Counter.AcceptExhausted),
        )

    def accepts_failed_in_last_minute(self) -> int:
        """Return how often in the last minute a process had no descriptor or memory for a connection."""
        now = counter_total(self._slab, Counter.AcceptExhausted)
        with self._lock:
            before = self._minute.first
        return now - before.failed_accept_count if before else 0

    def last_minute(self, now_ms: int) -> Interval:
        now = self.read(now_ms)
        with self._lock:
            before = self._minute.first_since(minute_ago_ms(now_ms))
        return _interval_between(before or now, now)  # an interval of 0 ms if there is no earlier sample

    def last_hour(self, now_ms: int) -> Interval:
        now = self.read(now_ms)
        with self._lock:
            before = self._hour.first
        return _interval_between(before or now, now)

    def minute_series(self, now_ms: int) -> Series:
        with self._lock:
            pairs = list(self._minute.pairs())
        rows = [(round((now_ms - end.at_ms) / 1000, 1), end.amounts_since(start)) for start, end in pairs]
        return series_of(self._minute.step_ms // 1000, self._minute.span_ms // 1000, rows)


def _interval_between(before: CounterSample, now: CounterSample) -> Interval:
    ms = now.at_ms - before.at_ms
    latency_buckets = increases(now.latency_buckets, before.latency_buckets)
    return Interval(
        ms,
        per_s(now.received - before.received, ms),
        per_s(now.delivered - before.delivered, ms),
        per_s(sum(increases(now.discarded, before.discarded)), ms),
        Latency(sum(latency_buckets), *(percentile(latency_buckets, quantile) for quantile in (0.5, 0.9, 0.99))),
    )


def series_of(step_s: int, span_s: int, rows: Sequence[tuple[float, StepAmounts]]) -> Series:
    """Build a series from `rows`, (age in s, amounts) of each interval, the oldest interval first."""
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
