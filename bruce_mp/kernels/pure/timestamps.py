"""The timestamps of records: the client's timestamp, or the arrival time if the client's lies outside of a window.

The input process stores the resulting timestamp in the record, so a record batch that is sent again has the same bytes.
The config can give a topic one of three policies.  Policy "client" has no window.  Policy "clamp" (*clamping*) counts
the timestamps that it replaces; a client may exempt messages from clamping.  Policy "arrival" replaces every timestamp:
its window contains only the arrival time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.parse import ParsedMessage

__all__ = ["ReplacementCounts", "TimestampWindow", "TopicReplacements", "WindowOfTopic", "replace_timestamps"]

MAX_TOPICS: Final = 64
"""Maximum number of topics in `ReplacementCounts`; further topics share one entry, with an empty name."""


class TimestampWindow(NamedTuple):
    """How many milliseconds a timestamp may lie before or after the arrival of its message.

    `is_clamp` is True for the policy "clamp", False for "arrival".
    """

    before_ms: int
    after_ms: int
    is_clamp: bool


class TopicReplacements(NamedTuple):
    """The number of messages of a topic with replaced timestamps.

    `timestamp` is the client's timestamp of the earliest of these messages, `arrival` is its arrival number.
    """

    topic: bytes
    timestamp: int
    arrival: int
    message_count: int

    def plus(self, message_count: int) -> TopicReplacements:
        """Return a copy with `message_count` more messages."""
        return self._replace(message_count=self.message_count + message_count)


class ReplacementCounts:
    """Counts the timestamps that clamping replaced, by topic."""

    def __init__(self) -> None:
        self._counts: dict[bytes, TopicReplacements] = {}

    def add(self, topic: bytes, timestamp: int, arrival: int, message_count: int) -> None:
        """Count messages of a topic; `timestamp` and `arrival` belong to the earliest of these messages."""
        if topic not in self._counts and len(self._counts) >= MAX_TOPICS:
            topic = b""
        counted = self._counts.get(topic, TopicReplacements(topic, timestamp, arrival, 0))
        self._counts[topic] = counted.plus(message_count)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def drain(self) -> list[TopicReplacements]:
        """Return and clear all counts."""
        counts, self._counts = self._counts, {}
        return list(counts.values())


WindowOfTopic = Callable[[bytes], TimestampWindow | None]
"""A function that returns the window of a topic; the result None admits any timestamp."""


def replace_timestamps(
    messages: list[ParsedMessage], window: TimestampWindow, arrived_ms: int
) -> tuple[list[ParsedMessage], list[ParsedMessage]]:
    """Return all messages, with the timestamps to store, and the originals of messages with replaced timestamps."""
    earliest, latest = arrived_ms - window.before_ms, arrived_ms + window.after_ms
    originals = [each for each in messages if not earliest <= each[1] <= latest]  # each[1] is the timestamp
    if not originals:
        return messages, []
    return [
        message if earliest <= message[1] <= latest else (message[0], arrived_ms, *message[2:]) for message in messages
    ], originals
