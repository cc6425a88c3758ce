"""Write the ledger: how many messages each task attempt sent, and the daemon's answer about them.

The audit compares the ledger with Kafka. It has one row for each topic and minute of a task attempt. A commit writes
all its rows into one new file of JSON lines, and then gives the file its final name. So no reader sees a part of a
commit. If Spark repeats the commit of a micro-batch after a restart, the new file replaces the old one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyarrow.fs import FileSystem

__all__ = ["MINUTE_MS", "TaskAttempt", "TaskResult", "is_written", "write_atomically", "write_ledger"]

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The identity of one attempt of Spark to run a task.

    Unless the option `fence` is false, the messages of the attempt are a fenced attempt: the daemon delivers them only
    after the attempt's end. `query` is the id of the streaming query or batch job, `batch` the number of the
    micro-batch (-1 for batch jobs), and `attempt` the number that Spark gives the attempt.
    """

    query: str
    batch: int
    partition: int
    attempt: int

    @property
    def task(self) -> str:
        """Return the name of the task, which is the same for all its attempts."""
        return f"{self.query}/{self.batch}/{self.partition}"

    @property
    def author(self) -> str:
        """Return the name of the attempt, which the stamps of its messages contain."""
        return f"{self.task}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The numbers of messages of one attempt, and their outcome.

    `rows` has the number of messages by topic and minute (the minute's start in ms since the epoch). `delivered` and
    `discarded` (by reason) are the numbers in the daemon's answer for the whole attempt. `delivered` is None unless
    `acks` is `delivered` and the answer has a number. `discarded` is empty if the daemon did not answer. `dead_letters`
    is the number of bad rows.
    """

    attempt: TaskAttempt
    host: str
    rows: Mapping[tuple[str, int], int]
    acks: str
    stamped: bool = False
    delivered: int | None = None
    discarded: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0

    @property
    def message_count(self) -> int:
        return sum(self.rows.values())


def write_ledger(uri: str, results: Iterable[TaskResult], *, name: str | None = None) -> None:
    """Write the rows of a commit, if it has any, as the file `name`.json (None: a random name) into directory `uri`."""
    lines = _lines(results)
    if lines:
        system, root = open_directory(uri)
        write_atomically(system, f"{root}/{name or uuid4().hex}.json", lines)


def is_written(uri: str, results: Iterable[TaskResult], *, name: str) -> bool:
    """Return True if the ledger has a file `name`.json with exactly the rows of this commit, which has rows."""
    lines = _lines(results)
    system, root = open_directory(uri)
    try:
        with system.open_input_stream(f"{root}/{name}.json") as file:
            return bool(lines) and sorted(file.readall().splitlines(keepends=True)) == sorted(lines)
    except FileNotFoundError:
        return False


def write_atomically(system: FileSystem, path: str, parts: Iterable[bytes], *, replaces: bool = True) -> None:
    """Write a file under a temporary name, and rename it to `path`; this replaces an earlier file.

    On a local file system, also write it to disk: after a power failure, a renamed file could be empty. If `replaces`
    is False, raise FileExistsError if there is an earlier file, but only on a local file system with hard links. An
    error, also one of the iterator `parts`, removes the temporary file.
    """
    temporary, is_local = f"{path}.{uuid4().hex}.part", system.type_name == "local"
    try:
        with system.open_output_stream(temporary) as file:
            for part in parts:
                file.write(part)
        if is_local:
            _sync(temporary)
        if replaces or not is_local or not _link(temporary, path):
            system.move(temporary, path)
    except Exception:
        with suppress(OSError):
            system.delete_file(temporary)
        raise
    if is_local:
        with suppress(OSError):  # some network file systems cannot sync a directory
            _sync(str(Path(path).parent))


def _link(temporary: str, path: str) -> bool:
    """Give the file the name `path`, and remove its temporary name; return False if it cannot have two names.

    Raise FileExistsError. No other operation of a shared file system gives a complete file a name that must be new.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        return False
    Path(temporary).unlink()
    return True


def _sync(path: str) -> None:
    """Write a local file, or the names in a local directory, to disk. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(results: Iterable[TaskResult]) -> list[bytes]:
    return [f"{json.dumps(row)}\n".encode() for result in results for row in _rows(result)]


def _rows(result: TaskResult) -> list[dict[str, Any]]:
    sender = {**asdict(result.attempt), "host": result.host, "acks": result.acks, "stamped": result.stamped}
    shared = {**sender, "attempt_rows": result.message_count}
    outcome = {"delivered": result.delivered, "discarded": dict(result.discarded), "dead_letters": result.dead_letters}
    return [
        {**shared, "topic": topic, "minute": minute, "rows": rows, **outcome}
        for (topic, minute), rows in sorted(result.rows.items())
    ]
