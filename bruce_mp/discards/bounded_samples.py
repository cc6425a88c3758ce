"""Sums and samples of discards, of bounded size.

Clients choose topic names and samples, so without a bound they could fill the memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.discards.events import SenderEvent
    from bruce_mp.errors import DiscardReason

__all__ = ["MAX_ENTRIES", "MAX_SAMPLES", "CountedTimeRange", "RecentSamples", "add_sender", "bounded_entry"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_ENTRIES: Final = 1000
"""Maximum number of entries of a table: a process' sums by kind of discard, or a report's topics. Further keys share
one entry."""
MAX_SAMPLES: Final = 25
"""Maximum number of samples of one reason."""
MAX_SENDERS: Final = 25
"""Maximum number of entries (sender and reason) in a table of senders."""


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
    """Add the count of `event` to the entry of its reason and sender, and make the entry the newest.

    In a table of MAX_SENDERS entries, a new entry replaces the oldest.
    """
    key = (event.reason, event.pid, event.uid)
    earlier = senders.pop(key, None)
    if earlier is None and len(senders) >= MAX_SENDERS:
        del senders[next(iter(senders))]
    senders[key] = event if earlier is None else replace(event, count=earlier.count + event.count)


def bounded_entry(table: dict[_Key, _Value], key: _Key, shared_key: _Key, create: Callable[[], _Value]) -> _Value:
    """Return the value of `key`, created if it is missing, and make it the newest.

    In a table of MAX_ENTRIES, the value of `shared_key` serves for each missing key.
    """
    value = table.pop(key, None)
    if value is None and len(table) >= MAX_ENTRIES:
        key = shared_key
        value = table.pop(key, None)
    table[key] = value = create() if value is None else value
    return value
