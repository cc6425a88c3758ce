"""`bruce check`: verify that a daemon accounts for every message that it received.

The daemon's books balance if received = delivered + discarded + held.

Exit status: 0 if the books balance, 3 if they do not, 4 if no consistent reading of the books succeeded.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.cli.options import command_parser
from bruce_mp.cli.status_client import UnreadableError, add_address, status_client
from bruce_mp.errors import ExitCode
from bruce_mp.status.pages.health import health_lines
from bruce_mp.telemetry.books import Books, balance_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.cli.status_client import StatusClient

__all__ = ["main"]

TIMEOUT_S: Final = 5.0
"""Time limit for all readings. A reading is repeated if traffic changed the books during the reading, or if the daemon
did not respond, because its status process may be restarting."""
RETRY_PAUSE_S: Final = 0.1
"""Pause before the next reading."""


def main(argv: Sequence[str]) -> int:
    """Print the balance, then the problems and warnings of `/healthz`. Only the balance affects the exit status."""
    description = "Check that a daemon's books balance: received = delivered + discarded + held messages."
    parser = command_parser("check", description, __doc__)
    add_address(parser)
    client = status_client(parser.parse_args(argv))
    books = _read_books(client)
    print(balance_line(books), flush=True)  # so that it precedes the lines on standard error even in a shared pipe
    for line in health_lines(client.get_health()):
        print(line, file=sys.stderr)
    return ExitCode.OK if books.balanced else ExitCode.PROBLEMS_FOUND


def _read_books(client: StatusClient) -> Books:
    """Return a consistent reading of the books. Raise UnreadableError after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            books = client.get("books", Books)
            if books.consistent:
                return books
            text = "The books changed during each reading; try again with less traffic."
            failure = UnreadableError(f"{text} Last seen: {balance_line(books)}")
        except UnreadableError as error:
            failure = error
        if time.monotonic() >= deadline:
            raise failure
        time.sleep(RETRY_PAUSE_S)
