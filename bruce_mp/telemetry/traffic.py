"""Traffic by topic, which a dispatcher reports to the status process once a second.

A report may be lost, so the sums by topic may be too low; the counters in the slab have exact totals over all topics.
Once there are MAX_TOPICS topics, all further topics share one sum, under an empty topic name.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_TOPICS", "TrafficEvent", "TrafficSums"]

MAX_TOPICS: Final = 5000
"""The maximum number of topics that have a sum; it limits the memory, because clients may invent topic names."""


class TrafficEvent(msgspec.Struct, tag=True):
    """The number of messages of a topic that a broker acknowledged, and the number of error responses for the topic.

    `byte_count` is the size of the keys, values and headers of the messages. `latency_counts` has the number of
    messages in each latency bucket, by the index of the bucket (`telemetry/latency_histogram.py`). `errors` is the
    number of error responses; `last_error` is the name of the last error, or empty if there was none.
    """

    topic: bytes
    message_count: int
    byte_count: int
    latency_counts: dict[int, int]
    errors: int = 0
    last_error: str = ""


Delivered = tuple[int, int, int, dict[int, int]]
"""Acknowledged messages of a topic: their number, their size in bytes, the sum of their latencies in ms, and their
`latency_counts` as in `TrafficEvent`."""


class TrafficSums:
    """Sums by topic since the last `clear`."""

    def __init__(self) -> None:
        self._topics: dict[bytes, TrafficEvent] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def _sums_of(self, topic: bytes) -> TrafficEvent:
        sums = self._topics.get(topic)
        if sums is None:
            if len(self._topics) >= MAX_TOPICS:
                topic = b""
            sums = self._topics.setdefault(topic, TrafficEvent(topic, 0, 0, {}))
        return sums

    def add_delivered(self, delivered: "Iterable[tuple[bytes, Delivered]]") -> None:
        """Add the acknowledged messages of topics. The caller must not use their `latency_counts` afterwards."""
        topics = self._topics
        for topic, (message_count, byte_count, _waited_ms, latency_counts) in delivered:
            if topic not in topics and len(topics) < MAX_TOPICS:  # the usual case if there are many topics
                topics[topic] = TrafficEvent(topic, message_count, byte_count, latency_counts)  # may be modified later
                continue
            sums = self._sums_of(topic)
            sums.message_count += message_count
            sums.byte_count += byte_count
            for bucket, bucket_count in latency_counts.items():
                sums.latency_counts[bucket] = sums.latency_counts.get(bucket, 0) + bucket_count

    def add_error(self, topic: bytes, error: str) -> None:
        """Count an error response; `error` is the name of its error."""
        sums = self._sums_of(topic)
        sums.errors += 1
        sums.last_error = error

    def events(self) -> list[TrafficEvent]:
        return list(self._topics.values())

    def clear(self) -> None:
        self._topics.clear()
