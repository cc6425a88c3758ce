"""Sums and samples of bounded size, for discard events and reports, because clients control their contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_SAMPLES", "MAX_TOPICS", "CountedTimeRange", "RecentSamples", "bounded_entry"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_TOPICS: Final = 1000
"""Maximum number of discard kinds in one flush, and of topics in one report, besides the shared entries of the rest."""
MAX_SAMPLES: Final = 25
"""Maximum number of samples of one kind."""


class RecentSamples:
    """The last distinct entries, at most `limit`."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int = MAX_SAMPLES) -> None:
        self._entries: dict[bytes, None] = {}
        self._limit = limit

    def add(self, entry: bytes) -> None:
        """Add an entry as the newest."""
        self._entries.pop(entry, None)
        self._entries[entry] = None
        if len(self._entries) > self._limit:
            del self._entries[next(iter(self._entries))]

    @property
    def oldest_first(self) -> tuple[bytes, ...]:
        return tuple(self._entries)

    @property
    def newest_first(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._entries))


class CountedTimeRange:
    """Number of messages, and the range of their client timestamps in ms."""

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


def bounded_entry(table: dict[_Key, _Value], key: _Key, shared_key: _Key, create: Callable[[], _Value]) -> _Value:
    """Return or create the value of `key` and make it the newest. In a full table, new keys use `shared_key`."""
    value = table.pop(key, None)
    if value is None and len(table) >= MAX_TOPICS:
        key = shared_key
        value = table.pop(key, None)
    table[key] = value = create() if value is None else value
    return value
