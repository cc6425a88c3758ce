"""`bruce check`: verify that a daemon accounts for every message that it received.

Exit status: 0 if the books balance, 3 if they do not, 4 if no consistent reading of the books succeeded.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.status_client import UnreadableError, add_address, status_client
from bruce_mp.errors import ExitCode
from bruce_mp.status.pages.health import health_lines
from bruce_mp.telemetry.books import Books, balance_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.cli.status_client import StatusClient

__all__ = ["main"]

TIMEOUT_S: Final = 5.0
"""Time in which changing books have to give one consistent reading."""
RETRY_S: Final = 0.1
"""Pause before the next reading."""


def main(argv: Sequence[str]) -> int:
    """Print the balance, and problems and warnings of the health on standard error; only the books set the status."""
    statuses = "Exit status: 0 if they do, 3 if they do not, 4 if no consistent reading succeeded."
    description = "Check that a daemon's books balance."
    parser = ArgumentParser(prog="bruce check", description=description, epilog=statuses)
    add_address(parser)
    pages = status_client(parser.parse_args(argv))
    books = _read_consistent(pages)
    print(balance_line(books))
    for line in health_lines(pages.get_health()):
        print(line, file=sys.stderr)
    return ExitCode.OK if books.balanced else ExitCode.UNBALANCED


def _read_consistent(pages: StatusClient) -> Books:
    """Read the books until a reading is consistent. Raise UnreadableError after 5 s."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return _read(pages)
        except UnreadableError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_S)


def _read(pages: StatusClient) -> Books:
    books = pages.get("books", Books)
    if not books.consistent:
        raise UnreadableError(
            f"The books changed during each reading; try again with less traffic. Last seen: {balance_line(books)}"
        )
    return books
