"""Traffic of each topic over the last minute: messages, bytes, latencies and errors, as dispatchers report them.

The event loop adds the dispatchers' events, and HTTP threads read the sums. The minute is divided into steps of 10 s.
The memory is bounded: if a table of `MAX_TOPICS` topics needs room for another topic, it drops the topics without
traffic in the last minute; if there are none, an entry with an empty name sums all further topics.
"""

from __future__ import annotations

from array import array
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.status.history.windows import STEP_MS, minute_ago_ms, per_s
from bruce_mp.telemetry.latency_histogram import BUCKET_COUNT, percentile
from bruce_mp.telemetry.traffic import MAX_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.telemetry.traffic import TrafficEvent

__all__ = ["TopicTraffic", "TrafficTable"]

_FIRST_BUCKET: Final = 3
"""Index of the first latency bucket in the sums of a step; indexes 0 to 2 are messages, bytes and errors."""
_EMPTY_SUMS: Final = array("q", bytes(8 * (_FIRST_BUCKET + BUCKET_COUNT)))


class TopicTraffic(NamedTuple):
    """Traffic of a topic in the last minute.

    The rates count messages and bytes that brokers acknowledged; `errors` counts error responses. `last_error`, which
    came at `last_error_ms` of the table's clock, may be older than a minute. If no error has come, it is empty.
    """

    delivered_per_s: float = 0.0
    bytes_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0
    last_error: str = ""
    last_error_ms: int = 0


class _TopicWindow:
    __slots__ = ("last_error", "last_error_ms", "steps")

    def __init__(self) -> None:
        self.steps: list[tuple[int, array[int]]] = []
        """(number, sums) of each step with traffic, the oldest first. The number is `now_ms // STEP_MS`."""
        self.last_error = ""
        self.last_error_ms = 0

    def add(self, event: TrafficEvent, now_ms: int) -> None:
        step = now_ms // STEP_MS
        if not self.steps or self.steps[-1][0] != step:
            self.expire(now_ms)  # `by_topic` also expires steps, but it runs only when a client reads a page
            self.steps.append((step, _EMPTY_SUMS[:]))
        sums = self.steps[-1][1]
        for index, amount in enumerate((event.message_count, event.byte_count, event.errors)):
            sums[index] += amount
        for bucket, message_count in event.latency_counts.items():
            sums[_FIRST_BUCKET + bucket] += message_count
        if event.last_error:
            self.last_error, self.last_error_ms = event.last_error, now_ms

    def expire(self, now_ms: int) -> None:
        """Remove the steps that began before the last minute."""
        while self.steps and self.steps[0][0] * STEP_MS < minute_ago_ms(now_ms):
            del self.steps[0]

    def summarize(self, now_ms: int, table_start_ms: int) -> TopicTraffic:
        """Sum the steps. The rates are averages since the start of the last minute, or since a later table start."""
        columns = zip(_EMPTY_SUMS, *(sums for _, sums in self.steps), strict=True)
        message_count, byte_count, errors, *buckets = map(sum, columns)
        interval_ms = now_ms - max(table_start_ms, minute_ago_ms(now_ms))
        return TopicTraffic(
            per_s(message_count, interval_ms),
            per_s(byte_count, interval_ms),
            percentile(buckets, 0.5),
            percentile(buckets, 0.99),
            errors,
            self.last_error,
            self.last_error_ms,
        )


class TrafficTable:
    """Table of the traffic by topic. Times are in ms on a monotonic clock; the table starts at `now_ms`."""

    def __init__(self, now_ms: int) -> None:
        self._lock = Lock()
        self._topics: dict[bytes, _TopicWindow] = {}
        self._start_ms = now_ms
        self._last_removal_ms = now_ms

    def record(self, events: Iterable[TrafficEvent], now_ms: int) -> None:
        with self._lock:
            for event in events:
                self._window_of(event.topic, now_ms).add(event, now_ms)

    def _window_of(self, topic: bytes, now_ms: int) -> _TopicWindow:
        window = self._topics.get(topic)
        if window is None:
            self._remove_idle(now_ms)
            if len(self._topics) >= MAX_TOPICS:
                topic = b""
            window = self._topics.setdefault(topic, _TopicWindow())
        return window

    def _remove_idle(self, now_ms: int) -> None:
        """Remove the topics without traffic in the last minute if the table is full. Do so at most once per step."""
        if len(self._topics) < MAX_TOPICS or now_ms - self._last_removal_ms < STEP_MS:
            return
        self._last_removal_ms = now_ms
        for window in self._topics.values():
            window.expire(now_ms)
        self._topics = {topic: window for topic, window in self._topics.items() if window.steps}

    def by_topic(self, now_ms: int) -> dict[bytes, TopicTraffic]:
        """Return the traffic of each topic; the empty name stands for the sum of the topics beyond `MAX_TOPICS`."""
        with self._lock:
            for window in self._topics.values():
                window.expire(now_ms)
            return {topic: window.summarize(now_ms, self._start_ms) for topic, window in self._topics.items()}
