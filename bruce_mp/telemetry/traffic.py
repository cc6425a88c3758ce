"""Traffic by topic, which a dispatcher reports to the status process once a second.

The slab's counters have the exact totals over all topics; a report by topic may be lost. The empty topic name collects
the topics beyond MAX_TOPICS.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_TOPICS", "TrafficEvent", "TrafficSums"]

MAX_TOPICS: Final = 5000
"""Limit of topics with separate sums, because clients may invent names."""


class TrafficEvent(msgspec.Struct, tag=True):
    """Messages of a topic that a broker acknowledged, and error responses for the topic.

    `size` sums the bytes of keys, values and headers. `delays` counts the messages of each latency bucket: the
    index in `BOUNDS_MS` of `telemetry/latency_histogram.py`. `last_error` is empty without an error.
    """

    topic: bytes
    messages: int
    size: int
    delays: dict[int, int]
    errors: int = 0
    last_error: str = ""


Delivered = tuple[int, int, int, dict[int, int]]
"""Acknowledged messages of a topic: their number, size, sum of latencies in ms, and `delays` as in `TrafficEvent`."""


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

        The caller gives up the mappings, which this method may keep and modify.
        """
        topics = self._topics
        for topic, (messages, size, _waited_ms, delays) in delivered:
            if topic not in topics and len(topics) < MAX_TOPICS:  # the usual case if there are many topics
                topics[topic] = TrafficEvent(topic, messages, size, delays)
                continue
            sums = self._sums_of(topic)
            sums.messages += messages
            sums.size += size
            for bucket, in_bucket in delays.items():
                sums.delays[bucket] = sums.delays.get(bucket, 0) + in_bucket

    def add_error(self, topic: bytes, error: str) -> None:
        """Count an error response of a broker."""
        sums = self._sums_of(topic)
        sums.errors += 1
        sums.last_error = error

    def events(self) -> list[TrafficEvent]:
        return list(self._topics.values())

    def clear(self) -> None:
        self._topics.clear()
