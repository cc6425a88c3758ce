"""Message counts of the last hour, day and month, of the daemon and by topic, in a file that outlives restarts.

SQLite keeps the file usable if the writer is killed. Each period is divided into steps, and a write adds the new counts
to the present step of each period. `MAX_BYTES` limits the file, because clients may invent topics; when the file is
full, old steps are removed to make room for a new one. The file is not synced; if a power failure damages it, a new
file replaces it.

The clock of the host may be wrong for a time. So a period keeps a limited number of steps instead of removing steps by
age: if there are too many, it removes the steps farthest from the present time, in the past or in the future. While the
clock is wrong, each new step displaces at most one correct step. When the clock is right again, the steps with wrong
times are removed first.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "PERIODS",
    "READ_TIMEOUT_S",
    "WHOLE",
    "HistoryError",
    "HistoryFile",
    "HistoryPeriod",
    "StepAmounts",
    "fault_of",
    "merge_amounts",
    "step_start",
]

log = logging.getLogger(__name__)
MAX_BYTES: Final = 64 << 20
"""Limit of the file's size. The history of 100 topics takes about 5 MiB."""
WHOLE: Final = b""
"""The key of the whole daemon, in place of a topic."""
_PAGE_BYTES: Final = 4096
_LAYOUT: Final = 1
"""Version of the table's columns; a table of another version is replaced."""
READ_TIMEOUT_S: Final = 2.0
"""Longest wait of a reader for a write."""
_KEPT_RATIOS: Final = (1.0, 0.75, 0.5, 0.25)
"""Ratio of the steps that a write keeps. If the file is full, the next smaller ratio is tried until a new step fits."""


class HistoryPeriod(NamedTuple):
    """The last `length_s` seconds, in steps of `step_s`."""

    step_s: int
    length_s: int


PERIODS: Final[Mapping[str, HistoryPeriod]] = {
    "hour": HistoryPeriod(60, 3600),
    "day": HistoryPeriod(300, 24 * 3600),
    "month": HistoryPeriod(7200, 30 * 24 * 3600),
}


class HistoryError(BruceError):
    """The file cannot be read at the moment."""


class StepAmounts(NamedTuple):
    """Numbers of messages in a step, or in the part of it that was counted, which lasted `seconds`.

    `held` is the number at the end of that time. The latency percentiles are the highest of all minutes, or None if
    nothing was delivered.
    """

    seconds: float
    received: int
    delivered: int
    discarded: int
    held: int
    p50_ms: float | None
    p99_ms: float | None


def merge_amounts(earlier: StepAmounts, later: StepAmounts) -> StepAmounts:
    """Merge the amounts of two consecutive parts of a step, in the same way as the SQL statement `_ADD`."""
    return StepAmounts(
        earlier.seconds + later.seconds,
        earlier.received + later.received,
        earlier.delivered + later.delivered,
        earlier.discarded + later.discarded,
        later.held,
        _max_latency(earlier.p50_ms, later.p50_ms),
        _max_latency(earlier.p99_ms, later.p99_ms),
    )


def _max_latency(one_ms: float | None, other_ms: float | None) -> float | None:
    return max((ms for ms in (one_ms, other_ms) if ms is not None), default=None)


_CREATE: Final = """
    CREATE TABLE steps (
        step_s INTEGER, at INTEGER, topic BLOB, seconds REAL, received INTEGER, delivered INTEGER, discarded INTEGER,
        held INTEGER, p50_ms REAL, p99_ms REAL, PRIMARY KEY (step_s, at, topic)
    ) WITHOUT ROWID
"""
_STARTS: Final = """
    WITH RECURSIVE starts(at) AS (
        SELECT max(at) FROM steps WHERE step_s = :step
        UNION ALL
        SELECT (SELECT max(at) FROM steps WHERE step_s = :step AND at < starts.at) FROM starts WHERE at NOT NULL
    ) SELECT at FROM starts WHERE at NOT NULL
"""
"""Read the starts of a period's steps, the latest first.

The recursion looks up the next earlier start in the primary key, so it does not read the rows of all topics.
"""
_REMOVE: Final = "DELETE FROM steps WHERE step_s = ? AND at = ?"
_ADD: Final = """
    INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
        seconds = seconds + excluded.seconds, received = received + excluded.received,
        delivered = delivered + excluded.delivered, discarded = discarded + excluded.discarded, held = excluded.held,
        p50_ms = max(coalesce(p50_ms, excluded.p50_ms), coalesce(excluded.p50_ms, p50_ms)),
        p99_ms = max(coalesce(p99_ms, excluded.p99_ms), coalesce(excluded.p99_ms, p99_ms))
"""
"""Each `coalesce` replaces a null by the other value, because SQLite's `max` of a value and null is null."""
_READ: Final = """
    SELECT at, seconds, received, delivered, discarded, held, p50_ms, p99_ms FROM steps
    WHERE step_s = ? AND at BETWEEN ? AND ? AND topic = ? ORDER BY at
"""


_UNUSABLE: Final = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY_DBMOVED"})
"""Errors of SQLite after which only a new file helps. SQLITE_READONLY_DBMOVED: the file was removed or renamed."""
_FAULTS: Final = {
    "SQLITE_BUSY": "it is being written",
    "SQLITE_CANTOPEN": "there is no permission, or no directory",
    "SQLITE_CORRUPT": "its contents are damaged",
    "SQLITE_FULL": "its disk or the file is full",
    "SQLITE_NOTADB": "another program wrote it",
    "SQLITE_READONLY_DBMOVED": "it was removed or renamed",
    "SQLITE_READONLY": "there is no permission to write",
}


def fault_of(error: sqlite3.Error) -> str:
    """Return a clause that tells the operator what is wrong with the file."""
    name: str = getattr(error, "sqlite_errorname", "")  # may extend a name of `_FAULTS`, such as SQLITE_BUSY_SNAPSHOT
    return next((text for start, text in _FAULTS.items() if name.startswith(start)), f"SQLite reports {name or error}")


class HistoryFile:
    """The file at `path`, for one writing thread and any number of reading threads. Times are seconds since the epoch.

    The constructor raises OSError or sqlite3.Error if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            raise  # a missing directory or permission
        except sqlite3.DatabaseError as error:
            self._remove_unusable(error)
            return self._connect()

    def _remove_unusable(self, error: sqlite3.Error) -> None:
        log.warning("The history %s cannot be used, and a new one replaces it: %s.", self._path, fault_of(error))
        for path in (self._path, self._path.with_name(f"{self._path.name}-journal")):
            path.unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA max_page_count = {MAX_BYTES // _PAGE_BYTES}")
            connection.execute("PRAGMA synchronous = OFF")
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
            with connection:
                if layout != _LAYOUT:
                    connection.execute("DROP TABLE IF EXISTS steps")
                    connection.execute(_CREATE)
                    connection.execute(f"PRAGMA user_version = {_LAYOUT}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self._writer.close()

    def add(self, now_s: int, amounts: Mapping[bytes, StepAmounts]) -> None:
        """Add the amounts by topic (or `WHOLE`), counted until `now_s`, to the present step of each period.

        Raise OSError or sqlite3.Error.
        """
        try:
            self._add_or_shrink(now_s, amounts)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") not in _UNUSABLE:
                raise
            self._remove_unusable(error)
            unusable, self._writer = self._writer, self._connect()  # if it fails, the next `add` tries again
            unusable.close()
            self._add_or_shrink(now_s, amounts)

    def _add_or_shrink(self, now_s: int, amounts: Mapping[bytes, StepAmounts]) -> None:
        """Add the amounts. While the file is full, try again with the next ratio of kept steps."""
        for kept_ratio in _KEPT_RATIOS:
            try:
                with self._writer:
                    self._write(now_s, amounts, kept_ratio)
            except sqlite3.OperationalError as error:
                if kept_ratio == _KEPT_RATIOS[-1] or error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
            else:
                return

    def _write(self, now_s: int, amounts: Mapping[bytes, StepAmounts], kept_ratio: float) -> None:
        for step_s, length_s in PERIODS.values():
            starts = [start for (start,) in self._writer.execute(_STARTS, {"step": step_s})]
            starts.sort(key=lambda start: (abs(now_s - start), start))  # the nearest to the present time first
            kept_count = min(length_s // step_s, max(1, int(len(starts) * kept_ratio)))
            self._writer.executemany(_REMOVE, ((step_s, start) for start in starts[kept_count:]))
            start = step_start(now_s, step_s)
            self._writer.executemany(_ADD, ((step_s, start, topic, *each) for topic, each in amounts.items()))

    def read(self, period: HistoryPeriod, topic: bytes, now_s: int) -> dict[int, StepAmounts]:
        """Return the amounts of a topic in a period's steps by the start of the step, the oldest step first.

        Raise HistoryError.
        """
        try:
            uri = f"{self._path.as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, timeout=READ_TIMEOUT_S, uri=True)) as reader:
                rows: Iterable[tuple[int, *tuple[float, ...]]] = reader.execute(
                    _READ, (period.step_s, now_s - period.length_s, now_s, topic)
                )
                return {start: StepAmounts._make(amounts) for start, *amounts in rows}
        except sqlite3.Error as error:
            raise HistoryError(f"The history cannot be read now: {fault_of(error)}. Ask again.") from error


def step_start(now_s: int, step_s: int) -> int:
    """Return the start of the step that contains `now_s`. A time at which one step ends belongs to that step."""
    return (now_s - 1) // step_s * step_s
