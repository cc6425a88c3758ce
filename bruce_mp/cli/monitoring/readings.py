"""Readings of a daemon's status pages for `bruce monitor`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bruce_mp.status.pages.held import HeldPage
from bruce_mp.status.pages.processes import ProcessesPage
from bruce_mp.telemetry.books import Books, balance_line

if TYPE_CHECKING:
    from bruce_mp.cli.status_client import StatusClient
    from bruce_mp.status.pages.health import HealthPage

__all__ = ["Readings", "read_daemon"]

TRIES: Final = 5
PAUSE_S: Final = 0.1
"""Number of readings of books that change, and the pause between two of them."""


class Readings(msgspec.Struct, frozen=True):
    """The pages that checks need, and the counters by name."""

    books: Books
    held: HeldPage
    processes: ProcessesPage
    health: HealthPage
    counters: dict[str, int]

    @property
    def summary(self) -> str:
        """Return the first line of a check without faults."""
        return balance_line(self.books)


class _Counter(msgspec.Struct):
    name: str
    value: int


class _Counters(msgspec.Struct):
    counters: list[_Counter]


def read_daemon(pages: StatusClient) -> Readings:
    """Read all pages. Raise UnreadableError if the daemon does not return one of them."""
    read: dict[str, Any] = {
        "processes": pages.get("processes", ProcessesPage),
        "health": pages.get_health(),
        "held": pages.get("held", HeldPage),
        "counters": {line.name: line.value for line in pages.get("counters", _Counters).counters},
        "books": _books(pages),
    }
    return Readings(**read)


def _books(pages: StatusClient) -> Books:
    """Read the books, and retry a few times for a consistent reading."""
    for _ in range(TRIES - 1):
        books = pages.get("books", Books)
        if books.consistent:
            return books
        time.sleep(PAUSE_S)
    return pages.get("books", Books)
