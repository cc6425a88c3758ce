"""The state file of `bruce replay`: a SQLite file that identifies each line that a replay sent or was about to send.

A *group* is a set of lines with messages that a replay sends together. A replay stores a group before it sends the
first message, and confirms the group when the daemon has answered for all messages. If a kill leaves a group
unconfirmed, the group is in doubt: its messages may be in Kafka or not.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from bruce_mp.errors import BruceError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

__all__ = ["LineKey", "ReplayState", "ReplayStateError", "UnconfirmedGroup"]

# Users keep these files, so tables and columns keep their old names: "chunk" means a group, and the column "address"
# holds `UnconfirmedGroup.daemon`.
_CREATE_TABLES: Final = (
    """create table chunks(
        name text primary key, address text not null, started_ms integer not null,
        confirmed integer not null default 0)""",
    "create table lines(hash blob, number integer, chunk text not null, primary key (hash, number)) without rowid",
)
_COLUMNS_QUERY: Final = """
    select entry.name, field.name from sqlite_master entry join pragma_table_info(entry.name) field
    where entry.type = 'table' and entry.name not like 'sqlite_%'
"""
_COLUMNS: Final = {
    *(("chunks", name) for name in ("name", "address", "started_ms", "confirmed")),
    *(("lines", name) for name in ("hash", "number", "chunk")),
}
"""The pairs of table and column in a state file, as the query `_COLUMNS_QUERY` returns them."""


class ReplayStateError(BruceError):
    """The state file cannot be opened, read or written; the text names the file and the reason."""


class LineKey(NamedTuple):
    """The identity of a line: its hash, and its number, from 1, among the equal lines of its discard log."""

    hash: bytes
    number: int


class UnconfirmedGroup(NamedTuple):
    """A group that is not confirmed; `started_ms` is the time when it was first sent, in ms since the epoch."""

    name: str
    daemon: str
    """The `ReplayDaemon.identity` of the daemon that the group was sent to."""
    started_ms: int


class ReplayState:
    """The open state file of one `bruce replay`.

    The constructor raises ReplayStateError, also if the file is no state file or another replay has it open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = _open(path)
        except sqlite3.Error as error:
            raise ReplayStateError(f"The state file {path} {_explain(error)}") from error
        except OSError as error:
            raise ReplayStateError(f"{path} cannot be created: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        if isinstance(error, sqlite3.Error):
            raise ReplayStateError(f"The state file {self._path} {_explain(error)}") from error

    def contains(self, key: LineKey) -> bool:
        with closing(self._database.execute("select 1 from lines where hash = ? and number = ?", key)) as found:
            return found.fetchone() is not None

    def begin(self, group: UnconfirmedGroup, keys: Iterable[LineKey]) -> None:
        """Store a group before its messages are sent."""
        self._database.execute("begin")
        self._database.execute("insert into chunks(name, address, started_ms) values (?, ?, ?)", group)
        self._database.executemany("insert into lines values (?, ?, ?)", ((*key, group.name) for key in keys))
        self._database.execute("commit")

    def confirm(self, name: str) -> None:
        """Record that no message of the group needs to be sent again."""
        self._database.execute("update chunks set confirmed = 1 where name = ?", (name,))

    def remove(self, name: str) -> None:
        """Remove a group, so that its lines count as not sent."""
        self._database.execute("begin")
        self._database.execute("delete from lines where chunk = ?", (name,))
        self._database.execute("delete from chunks where name = ?", (name,))
        self._database.execute("commit")

    def keys_of(self, name: str) -> list[LineKey]:
        rows = self._database.execute("select hash, number from lines where chunk = ?", (name,))
        return [LineKey(*row) for row in rows.fetchall()]

    def unconfirmed_groups(self) -> list[UnconfirmedGroup]:
        rows = self._database.execute("select name, address, started_ms from chunks where not confirmed")
        return [UnconfirmedGroup(*row) for row in rows.fetchall()]


def _open(path: Path) -> sqlite3.Connection:
    """Open and lock the file, and create it if necessary. Raise sqlite3.Error or ReplayStateError."""
    with ExitStack() as stack:
        if path.is_file() and not path.stat().st_size:
            raise ReplayStateError(
                f"{path} is empty, such as after a power failure. Restore it from a backup, because a new --state "
                "would send all lines again. If no replay has used it, remove it."
            )
        database = stack.enter_context(closing(sqlite3.connect(path, timeout=0, isolation_level=None)))
        database.execute("pragma locking_mode=exclusive")
        database.execute("begin exclusive")
        columns = set(database.execute(_COLUMNS_QUERY))
        if columns and columns != _COLUMNS:
            raise ReplayStateError(f"{path} is not the state of a replay. Give another --state.")
        for statement in () if columns else _CREATE_TABLES:
            database.execute(statement)
        database.execute("commit")
        stack.pop_all()  # from here on, the caller closes the database
        return database


def _explain(error: sqlite3.Error) -> str:
    """Return what is wrong with a state file, and the remedy."""
    name = getattr(error, "sqlite_errorname", "")  # errors that do not come from the SQLite library have none
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "is in use by another replay. Wait until that replay ends."
    if name.startswith("SQLITE_CORRUPT"):
        return (
            f"is damaged: {error}. Restore it from a backup. Without a backup, give a new --state, but only with "
            "files that were never replayed, because all lines of the files are sent again."
        )
    if name.startswith("SQLITE_NOTADB"):
        return (
            f"is not the state of a replay, or damaged at its start: {error}. If it was the state of a replay, restore "
            "it from a backup, because a new --state would send all lines again. Otherwise give another file."
        )
    return (
        f"cannot be read or written: {error}. Make room on its disk, or allow this user to write to the file and its "
        "directory; a new --state would send all lines again."
    )
