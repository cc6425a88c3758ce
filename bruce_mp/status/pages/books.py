"""The page `/books`: the balance of all messages.

Separate because each page has its own module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.status.pages.header import Page, read_header

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.telemetry.books import Books

__all__ = ["BooksPage", "books_page"]


class BooksPage(Page, frozen=True, kw_only=True):
    """JSON of `/books`: received = delivered + all discarded + all held, if `consistent`.

    `checked` is the time of the last check of the books in ms, 0 before the first; `unaccounted` is the number of
    messages by which records and counts differed.
    """

    received: int
    delivered: int
    discarded: dict[str, int]
    held: dict[str, int]
    possible_duplicates: int
    consistent: bool
    checked: int
    unaccounted: int


def books_page(slab: Slab, books: Books, now_ms: int) -> BooksPage:
    """Build the page from a reading of the books."""
    return BooksPage(**read_header(slab, now_ms), **msgspec.structs.asdict(books))
