"""Traffic by topic, which a dispatcher reports to the status process once a second.

A report may be lost; only the totals over all topics are exact, in the counters of the slab. Once there are MAX_TOPICS
topics, further ones are summed together, under an empty topic name.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_TOPICS", "TrafficEvent", "TrafficSums"]

MAX_TOPICS: Final = 5000
"""The maximum number of topics with separate sums, because clients may invent names."""


class TrafficEvent(msgspec.Struct, tag=True):
    """The numbers of messages of a topic that a broker acknowledged, and of error responses for the topic.

    `size` is the sum of the messages' keys, values and headers, in bytes. `delays` has the number of messages in each
    latency bucket, by the index of the bucket in `BOUNDS_MS` (`telemetry/latency_histogram.py`). `last_error` is empty
    if there was no error.
    """

    topic: bytes
    messages: int
    size: int
    delays: dict[int, int]
    errors: int = 0
    last_error: str = ""


Delivered = tuple[int, int, int, dict[int, int]]
"""Acknowledged messages of a topic: their number, their size, the sum of their latencies in ms, and their `delays` as
in `TrafficEvent`."""


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
        """Add the acknowledged messages of topics.

        The caller must not use the `delays` afterwards, because this method may keep and modify them.
        """
        topics = self._topics
        for topic, (message_count, size, _waited_ms, delays) in delivered:
            if topic not in topics and len(topics) < MAX_TOPICS:  # the usual case if there are many topics
                topics[topic] = TrafficEvent(topic, message_count, size, delays)
                continue
            sums = self._sums_of(topic)
            sums.messages += message_count
            sums.size += size
            for bucket, bucket_count in delays.items():
                sums.delays[bucket] = sums.delays.get(bucket, 0) + bucket_count

    def add_error(self, topic: bytes, error: str) -> None:
        """Count an error response of a broker."""
        sums = self._sums_of(topic)
        sums.errors += 1
        sums.last_error = error

    def events(self) -> list[TrafficEvent]:
        return list(self._topics.values())

    def clear(self) -> None:
        self._topics.clear()
