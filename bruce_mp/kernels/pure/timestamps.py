"""The timestamps that records get: the client's, or the arrival time where the client's lies outside of a window.

The record keeps one timestamp.  Every later process reads that one, so a batch that is sent again has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.kernels.pure.parse import Item

__all__ = ["MAX_TOPICS", "ReplacedTimestamps", "TimestampWindow", "Windows", "replace_timestamps"]

MAX_TOPICS: Final = 64
"""Topics that are told apart; further ones share the entry of the empty name."""


class TimestampWindow(NamedTuple):
    """How many ms before and after the arrival of its message a timestamp may lie.

    With `is_clamp` replaced timestamps are counted, and a client that marks its timestamps as explicit keeps them.
    """

    before_ms: int
    after_ms: int
    is_clamp: bool


class ReplacedTimestamps(NamedTuple):
    """`messages` of a topic got the arrival time; of the first one the client's timestamp and arrival number."""

    topic: bytes
    timestamp: int
    arrival: int
    messages: int

    def plus(self, messages: int) -> ReplacedTimestamps:
        """Return these and so many more."""
        return self._replace(messages=self.messages + messages)


Windows = Callable[[bytes], TimestampWindow | None]
"""The window of a topic; None: any timestamp will do."""


def replace_timestamps(items: list[Item], window: TimestampWindow, arrived_ms: int) -> tuple[list[Item], list[Item]]:
    """Return the items with the timestamps that their records get, and those that were outside of the window."""
    earliest, latest = arrived_ms - window.before_ms, arrived_ms + window.after_ms
    outside = [item for item in items if not earliest <= item[1] <= latest]
    if not outside:
        return items, []
    return [item if earliest <= item[1] <= latest else (item[0], arrived_ms, *item[2:]) for item in items], outside
