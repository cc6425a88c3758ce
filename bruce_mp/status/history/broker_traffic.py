"""History of each broker's traffic over the last minute and hour: messages, errors and latencies.

The main thread samples the counters in the dispatchers' process rows; the HTTP threads read the history. The number of
dispatcher slots is fixed, so the memory is bounded.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.status.history.windows import HOUR_MS, MINUTE_MS, Window, increases, minute_ago_ms, per_s
from bruce_mp.status.pages.brokers import dispatcher_slots
from bruce_mp.telemetry.books import row_counters
from bruce_mp.telemetry.counters import UNKNOWN_RESPONSES, Counter, response_counter
from bruce_mp.telemetry.latency_histogram import BUCKET_COUNT, percentile

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["BrokerHistory", "BrokerTraffic"]

_NO_ERROR: Final = response_counter(0)
_RESPONSES: Final = slice(response_counter(-1), UNKNOWN_RESPONSES + 1)
"""The counters of responses: one for each error code from -1, and one for all unknown codes."""


class _BrokerSample(NamedTuple):
    """Counters of a dispatcher at `at_ms`: delivered messages, error responses, and the histogram of latencies."""

    at_ms: int
    delivered: int
    errors: int
    latency_buckets: tuple[int, ...]


class BrokerTraffic(NamedTuple):
    """Traffic of one broker.

    In the last minute: the messages acknowledged per second, latency percentiles (None without messages), and the
    number of error responses. In the last hour: the number of error responses, and in `trend` the messages acknowledged
    per second in each minute, the oldest minute first.
    """

    delivered_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors_minute: int = 0
    errors_hour: int = 0
    trend: tuple[float, ...] = ()


class _SlotSamples:
    """Samples of a dispatcher slot, from the time when its dispatcher began to serve the broker `node`."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.minute: Window[_BrokerSample] = Window(step_ms=1000, span_ms=MINUTE_MS)
        self.hour: Window[_BrokerSample] = Window(step_ms=60_000, span_ms=HOUR_MS)


class BrokerHistory:
    """Counter samples by dispatcher slot. Times are in ms on a monotonic clock."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._lock = Lock()
        self._slots: dict[int, _SlotSamples] = {}
        self._first_sample_ms: int | None = None

    def sample(self, now_ms: int) -> None:
        """Sample the counters of each dispatcher if the last sample is old enough."""
        with self._lock:
            self._first_sample_ms = now_ms if self._first_sample_ms is None else self._first_sample_ms
            self._slots = {slot: self._samples_of(slot, node) for node, slot in dispatcher_slots(self._slab)}
            for slot, samples in self._slots.items():
                if samples.minute.is_due(now_ms):
                    reading = self._read(slot, now_ms)
                    samples.minute.add_if_due(reading)
                    samples.hour.add_if_due(reading)

    def _samples_of(self, slot: int, node: int) -> _SlotSamples:
        samples = self._slots.get(slot)
        return samples if samples is not None and samples.node == node else _SlotSamples(node)

    def _read(self, slot: int, now_ms: int) -> _BrokerSample:
        counters = row_counters(self._slab, lay.ROW_FIRST_DISPATCHER + slot)
        return _BrokerSample(
            now_ms,
            counters[Counter.MsgDelivered],
            sum(counters[_RESPONSES]) - counters[_NO_ERROR],
            tuple(counters[Counter.AckDelayFirst : Counter.AckDelayFirst + BUCKET_COUNT]),
        )

    def traffic(self, slot: int | None, now_ms: int) -> BrokerTraffic:
        """Return the traffic of a dispatcher slot, or no traffic if `slot` is None or has no dispatcher."""
        with self._lock:
            if slot is None or (samples := self._slots.get(slot)) is None or self._first_sample_ms is None:
                return BrokerTraffic()
            minute_start_ms = max(self._first_sample_ms, minute_ago_ms(now_ms))
            return _traffic(samples, self._read(slot, now_ms), minute_start_ms)


def _traffic(samples: _SlotSamples, now: _BrokerSample, minute_start_ms: int) -> BrokerTraffic:
    """Summarize the time since `minute_start_ms`, and the last hour.

    `minute_start_ms` is a minute ago, or the time of the history's first sample if that is later.  If the dispatcher
    started after `minute_start_ms`, the time before its start counts as time without traffic.
    """
    minute_ago = samples.minute.first_since(minute_start_ms) or now
    hour_ago = samples.hour.first or now
    buckets = increases(now.latency_buckets, minute_ago.latency_buckets)
    return BrokerTraffic(
        per_s(now.delivered - minute_ago.delivered, now.at_ms - minute_start_ms),
        percentile(buckets, 0.5),
        percentile(buckets, 0.99),
        now.errors - minute_ago.errors,
        now.errors - hour_ago.errors,
        tuple(
            per_s(later.delivered - earlier.delivered, later.at_ms - earlier.at_ms)
            for earlier, later in samples.hour.pairs()
        ),
    )
