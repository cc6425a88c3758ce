"""The timestamps of records: the client's timestamp, or the arrival time if the client's lies outside of a window.

The input decides once and stores the timestamp in the record, so a record batch that is sent again has the same bytes.
The config gives a topic one of two policies with a window.  *Clamping* (policy "clamp") counts the timestamps that it
replaces, and a client may exempt messages from it.  Policy "arrival" has a window that replaces every timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.parse import Item

__all__ = ["ReplacedCounts", "ReplacedTimestamps", "TimestampWindow", "TimestampWindows", "replace_timestamps"]

MAX_TOPICS: Final = 64
"""Number of topics that `ReplacedCounts` counts separately; further topics share one count, with an empty name."""


class TimestampWindow(NamedTuple):
    """The ms by which a timestamp may precede or follow the arrival of its message.

    `is_clamp` is True for the policy "clamp", False for "arrival".
    """

    before_ms: int
    after_ms: int
    is_clamp: bool


class ReplacedTimestamps(NamedTuple):
    """A topic, and the number `messages` of its messages with replaced timestamps.

    `timestamp` and `arrival` are the original timestamp and the arrival number of the first of these messages.
    """

    topic: bytes
    timestamp: int
    arrival: int
    messages: int

    def plus(self, message_count: int) -> ReplacedTimestamps:
        """Return a copy with a count that is larger by `message_count`."""
        return self._replace(messages=self.messages + message_count)


class ReplacedCounts:
    """Counts the timestamps that clamping replaced, by topic."""

    def __init__(self) -> None:
        self._counts: dict[bytes, ReplacedTimestamps] = {}

    def add(self, topic: bytes, timestamp: int, arrival: int, message_count: int) -> None:
        """Count messages of a topic; `timestamp` and `arrival` are those of the first of these messages."""
        if topic not in self._counts and len(self._counts) >= MAX_TOPICS:
            topic = b""
        counted = self._counts.get(topic, ReplacedTimestamps(topic, timestamp, arrival, 0))
        self._counts[topic] = counted.plus(message_count)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def drain(self) -> list[ReplacedTimestamps]:
        """Return and clear all counts."""
        counts, self._counts = self._counts, {}
        return list(counts.values())


TimestampWindows = Callable[[bytes], TimestampWindow | None]
"""A function that returns the window of a topic; None = the topic admits any timestamp."""


def replace_timestamps(items: list[Item], window: TimestampWindow, arrived_ms: int) -> tuple[list[Item], list[Item]]:
    """Return all items, with the timestamps to store, and the items with replaced timestamps in their original form."""
    earliest, latest = arrived_ms - window.before_ms, arrived_ms + window.after_ms
    outside = [item for item in items if not earliest <= item[1] <= latest]  # item[1] is the timestamp
    if not outside:
        return items, []
    return [item if earliest <= item[1] <= latest else (item[0], arrived_ms, *item[2:]) for item in items], outside
