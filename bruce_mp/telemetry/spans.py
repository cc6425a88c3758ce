"""Sums and samples that do not grow with what clients make up: shared by who notes discards and who reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_TOPICS", "RECENT", "Recent", "Span", "entry"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_TOPICS: Final = 1000
"""Kinds of discards in one flush, and topics in one report."""
RECENT: Final = 25
"""Samples of a kind."""


class Recent:
    """The most recently seen distinct entries, at most `limit`."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int = RECENT) -> None:
        self._entries: dict[bytes, None] = {}
        self._limit = limit

    def see(self, entry: bytes) -> None:
        """Note an entry as the newest."""
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


class Span:
    """How many messages, and the range of their client timestamps in ms."""

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


def entry(table: dict[_Key, _Value], key: _Key, rest: _Key, make: Callable[[], _Value]) -> _Value:
    """The value of `key`, which becomes the newest; in a table that is full a new key shares that of `rest`."""
    value = table.pop(key, None)
    if value is None and len(table) >= MAX_TOPICS:
        key = rest
        value = table.pop(key, None)
    table[key] = value = make() if value is None else value
    return value
