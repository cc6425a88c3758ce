"""History of each broker's traffic over the last minute and hour: messages, errors and latencies.

The main thread samples the dispatchers' counters; the HTTP threads read the history. The number of dispatcher slots
bounds the memory.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.slab import layout as lay
from bruce_mp.status.history.windows import HOUR_MS, MINUTE_MS, Window, increases, minute_start_ms, per_s
from bruce_mp.status.pages.brokers import dispatcher_slots
from bruce_mp.telemetry.books import row_counters
from bruce_mp.telemetry.counters import UNKNOWN_RESPONSES, Counter, response_counter
from bruce_mp.telemetry.latency_histogram import BUCKETS, percentile

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["BrokerHistory", "BrokerTraffic"]

_NO_ERROR: Final = response_counter(0)
_RESPONSES: Final = slice(response_counter(-1), UNKNOWN_RESPONSES + 1)
"""The counters of the responses by error code, from the lowest code to the unknown ones."""


class _BrokerSample(NamedTuple):
    at_ms: int
    delivered: int
    errors: int
    delays: tuple[int, ...]


class BrokerTraffic(NamedTuple):
    """Traffic of one broker: messages acknowledged per second, latency percentiles in ms, and error responses.

    `trend` holds one rate per minute, the oldest first.
    """

    delivered: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors_minute: int = 0
    errors_hour: int = 0
    trend: tuple[float, ...] = ()


class _SlotSamples:
    """Samples of one dispatcher slot while it serves the same broker."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.minute: Window[_BrokerSample] = Window(1000, MINUTE_MS)
        self.hour: Window[_BrokerSample] = Window(60_000, HOUR_MS)


class BrokerHistory:
    """Counter samples by dispatcher slot. Times are in ms on a monotonic clock."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._lock = Lock()
        self._slots: dict[int, _SlotSamples] = {}
        self._since_ms: int | None = None

    def sample(self, now_ms: int) -> None:
        """Sample the counters of all dispatchers that are due for a sample."""
        with self._lock:
            self._since_ms = now_ms if self._since_ms is None else self._since_ms
            current = {slot: node for node, slot in dispatcher_slots(self._slab)}
            self._slots = {slot: self._samples_of(slot, node) for slot, node in current.items()}
            for slot, samples in self._slots.items():
                if samples.minute.is_due(now_ms):
                    reading = self._read(slot, now_ms)
                    samples.minute.add(reading)
                    samples.hour.add(reading)

    def _samples_of(self, slot: int, node: int) -> _SlotSamples:
        samples = self._slots.get(slot)
        return samples if samples is not None and samples.node == node else _SlotSamples(node)

    def _read(self, slot: int, now_ms: int) -> _BrokerSample:
        counters = row_counters(self._slab, lay.ROW_FIRST_DISPATCHER + slot)
        return _BrokerSample(
            now_ms,
            counters[Counter.MsgDelivered],
            sum(counters[_RESPONSES]) - counters[_NO_ERROR],
            tuple(counters[Counter.AckDelayFirst : Counter.AckDelayFirst + BUCKETS]),
        )

    def traffic(self, slot: int | None, now_ms: int) -> BrokerTraffic:
        """Return the traffic of a dispatcher slot, empty for None and for a slot without a dispatcher."""
        with self._lock:
            if slot is None or (samples := self._slots.get(slot)) is None or self._since_ms is None:
                return BrokerTraffic()
            since_ms = max(self._since_ms, minute_start_ms(now_ms))
            return _traffic(samples, self._read(slot, now_ms), since_ms)


def _traffic(samples: _SlotSamples, now: _BrokerSample, since_ms: int) -> BrokerTraffic:
    """Summarize the minute from `since_ms` on, and the hour. Time of the minute without a dispatcher counts as idle."""
    minute_ago = samples.minute.first_since(since_ms) or now
    hour_ago = samples.hour.first or now
    buckets = increases(now.delays, minute_ago.delays)
    return BrokerTraffic(
        per_s(now.delivered - minute_ago.delivered, now.at_ms - since_ms),
        percentile(buckets, 0.5),
        percentile(buckets, 0.99),
        now.errors - minute_ago.errors,
        now.errors - hour_ago.errors,
        tuple(
            per_s(later.delivered - earlier.delivered, later.at_ms - earlier.at_ms)
            for earlier, later in samples.hour.pairs()
        ),
    )
