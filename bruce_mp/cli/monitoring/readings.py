"""Readings of a daemon's status pages for `bruce monitor`, and the state file with the counters of the last run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import BruceError
from bruce_mp.status.pages.held import HeldPage
from bruce_mp.status.pages.processes import ProcessesPage
from bruce_mp.telemetry.books import Books

if TYPE_CHECKING:
    from bruce_mp.cli.status_client import StatusClient
    from bruce_mp.status.pages.health import HealthPage

__all__ = ["MonitorState", "Readings", "StateError", "load_state", "read_daemon", "save_state"]

MAX_BOOK_READINGS: Final = 5
RETRY_PAUSE_S: Final = 0.1
"""Pause before a reading of the books is repeated because they changed during the reading."""


class Readings(msgspec.Struct, frozen=True):
    """The status pages that the checks need, and the daemon's counters by name."""

    books: Books
    held: HeldPage
    processes: ProcessesPage
    health: HealthPage
    counters: dict[str, int]


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
    """Read the books until a reading is consistent, at most `MAX_BOOK_READINGS` times. Return the last reading."""
    books = client.get("books", Books)
    for _ in range(MAX_BOOK_READINGS - 1):
        if books.consistent:
            break
        time.sleep(RETRY_PAUSE_S)
        books = client.get("books", Books)
    return books


# --- the state file --------------------------------------------------------------------------------------------------


class StateError(BruceError):
    """Failure to read or write the state file."""


class MonitorState(msgspec.Struct, frozen=True):
    """The content of the state file: the counters, and the time `now` of the run, in seconds since the epoch."""

    now: int
    counters: dict[str, int]

    def increase_of(self, counters: dict[str, int], name: str) -> int:
        """Return the increase of the counter `name` from this state to `counters`."""
        count, previous_count = counters.get(name, 0), self.counters.get(name, 0)
        # A counter is lower than before only if it began at 0 again, with a new slab.
        return count if count < previous_count else count - previous_count


def load_state(path: Path) -> MonitorState | None:
    """Read the state file, or return None if there is none. Raise StateError for an unreadable file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MonitorState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"The state file {path} cannot be read: {error.strerror}. Allow the monitor's user to read it, or give "
            "another --state."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"{path} is not a state file of bruce monitor. Remove it, or give another --state.") from error


def save_state(path: Path, readings: Readings) -> None:
    """Replace the state file atomically, so that a kill leaves a whole file. Raise StateError."""
    state = MonitorState(readings.held.now, readings.counters)
    temporary = Path(f"{path}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(state))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StateError(
            f"The state file {path} cannot be written: {error.strerror}. Allow the monitor's user to write to its "
            "directory, or give another --state."
        ) from error
