"""Sums and samples of discards, of bounded size.

Clients choose the contents, for example topic names, so without a bound they could fill the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.discards.events import SenderEvent
    from bruce_mp.errors import DiscardReason

__all__ = ["MAX_SAMPLES", "MAX_TOPICS", "CountedTimeRange", "RecentSamples", "add_sender", "bounded_entry"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_TOPICS: Final = 1000
"""Maximum number of kinds of discards that a process sums between two flushes, and of topics in one report. A shared
entry has the sum of the rest."""
MAX_SAMPLES: Final = 25
"""Maximum number of samples of one kind."""


class RecentSamples:
    """The last MAX_SAMPLES distinct samples."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[bytes, None] = {}

    def add(self, sample: bytes) -> None:
        self._entries.pop(sample, None)  # so that the sample becomes the newest
        self._entries[sample] = None
        if len(self._entries) > MAX_SAMPLES:
            del self._entries[next(iter(self._entries))]

    @property
    def oldest_first(self) -> tuple[bytes, ...]:
        return tuple(self._entries)

    @property
    def newest_first(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._entries))


class CountedTimeRange:
    """A number of messages, with the range of their client timestamps in ms."""

    __slots__ = ("count", "max_timestamp", "min_timestamp")

    def __init__(self) -> None:
        self.count = 0
        self.min_timestamp = self.max_timestamp = 0

    def add(self, count: int, min_timestamp: int, max_timestamp: int) -> None:
        if self.count:
            min_timestamp = min(min_timestamp, self.min_timestamp)
            max_timestamp = max(max_timestamp, self.max_timestamp)
        self.count += count
        self.min_timestamp, self.max_timestamp = min_timestamp, max_timestamp


def add_sender(senders: dict[tuple[DiscardReason, int, int], SenderEvent], event: SenderEvent) -> None:
    """Add the count of `event` to its sender's entry, and make the entry the newest.

    If there are MAX_SAMPLES senders already, a new one replaces the oldest.
    """
    key = (event.reason, event.pid, event.uid)
    before = senders.pop(key, None)
    if before is None and len(senders) >= MAX_SAMPLES:
        del senders[next(iter(senders))]
    senders[key] = event if before is None else replace(event, count=before.count + event.count)


def bounded_entry(table: dict[_Key, _Value], key: _Key, shared_key: _Key, create: Callable[[], _Value]) -> _Value:
    """Return or create the value of `key`, and make it the newest. In a full table, new keys share one value."""
    value = table.pop(key, None)
    if value is None and len(table) >= MAX_TOPICS:
        key = shared_key
        value = table.pop(key, None)
    table[key] = value = create() if value is None else value
    return value
