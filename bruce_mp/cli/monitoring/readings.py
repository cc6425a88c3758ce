"""Readings of a daemon's status pages for `bruce monitor`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.status.pages.held import HeldPage
from bruce_mp.status.pages.processes import ProcessesPage
from bruce_mp.telemetry.books import Books, balance_line

if TYPE_CHECKING:
    from bruce_mp.cli.status_client import StatusClient
    from bruce_mp.status.pages.health import HealthPage

__all__ = ["Readings", "read_daemon"]

MAX_BOOK_READINGS: Final = 5
PAUSE_S: Final = 0.1
"""Pause before another reading of books that changed during the last one."""


class Readings(msgspec.Struct, frozen=True):
    """The pages that checks need, and the counters by name."""

    books: Books
    held: HeldPage
    processes: ProcessesPage
    health: HealthPage
    counters: dict[str, int]

    @property
    def summary(self) -> str:
        """Return the first line that `bruce monitor` prints if no check finds a fault."""
        return balance_line(self.books)


class _CounterLine(msgspec.Struct):
    name: str
    value: int


class _CountersPage(msgspec.Struct):
    counters: list[_CounterLine]


def read_daemon(client: StatusClient) -> Readings:
    """Read all pages. Raise UnreadableError if the daemon does not return one of them."""
    return Readings(
        processes=client.get("processes", ProcessesPage),
        health=client.get_health(),
        held=client.get("held", HeldPage),
        counters={line.name: line.value for line in client.get("counters", _CountersPage).counters},
        books=_read_books(client),
    )


def _read_books(client: StatusClient) -> Books:
    """Return a consistent reading of the books, or else the last of `MAX_BOOK_READINGS`."""
    books = client.get("books", Books)
    for _ in range(MAX_BOOK_READINGS - 1):
        if books.consistent:
            break
        time.sleep(PAUSE_S)
        books = client.get("books", Books)
    return books
