"""Traffic by topic, which a dispatcher reports to the status process once a second.

A report may be lost, so the sums by topic may be too low; the counters in the slab have exact totals over all topics.
Once there are MAX_TOPICS topics, all further topics share one sum, under an empty topic name.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from itertools import starmap
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_TOPICS", "DeliveredMessages", "TrafficEvent", "TrafficSums"]

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


class DeliveredMessages(Protocol):
    """Sums over the acknowledged messages of each topic since the last `clear`, such as `kernels.Deliveries`."""

    def __len__(self) -> int:
        """Return the number of topics."""

    def sums(self) -> "Sequence[tuple[bytes, int, int, dict[int, int]]]":
        """Return the first four fields of a `TrafficEvent` for each topic."""

    def clear(self) -> None:
        """Begin again."""


class TrafficSums:
    """Sums by topic since the last `clear`; `delivered` has those of the acknowledged messages."""

    def __init__(self, delivered: DeliveredMessages) -> None:
        self._delivered = delivered
        self._errors: dict[bytes, tuple[int, str]] = {}
        """The number of error responses of each topic, and the last error."""

    def __bool__(self) -> bool:
        return bool(self._errors or self._delivered)

    def add_error(self, topic: bytes, error: str) -> None:
        """Count an error response; `error` is the name of its error."""
        if topic not in self._errors and len(self._errors) >= MAX_TOPICS:
            topic = b""
        count, _ = self._errors.get(topic, (0, ""))
        self._errors[topic] = (count + 1, error)

    def events(self) -> list[TrafficEvent]:
        events = list(starmap(TrafficEvent, self._delivered.sums()))
        if not self._errors:
            return events
        errors = dict(self._errors)
        for event in events:
            event.errors, event.last_error = errors.pop(event.topic, (0, ""))
        return events + [TrafficEvent(topic, 0, 0, {}, *error) for topic, error in errors.items()]

    def clear(self) -> None:
        self._delivered.clear()
        self._errors.clear()
