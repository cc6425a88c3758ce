"""Write the ledger: the messages that each task attempt sent, and the daemon's answer about them.

The ledger is the "sent" side of the audit. It has one row for each topic and minute of a task attempt. A commit writes
all its rows into one new file of JSON lines, which appears whole or not at all. So no reader sees half a commit, and
two drivers never share a file. A commit that Spark repeats after a restart has the same name and replaces the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyarrow.fs import FileSystem

__all__ = ["MINUTE_MS", "TaskAttempt", "TaskResult", "write_ledger", "write_whole"]

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The identity of a task attempt.

    `query` is the id of the streaming query or batch job; `batch` is -1 for batch jobs.
    """

    query: str
    batch: int
    partition: int
    attempt: int

    @property
    def task(self) -> str:
        """Return the name of the task, which all its attempts share."""
        return f"{self.query}/{self.batch}/{self.partition}"

    @property
    def writer(self) -> str:
        """Return the name of the writer in the stamp."""
        return f"{self.task}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The messages of one attempt and their outcome.

    `rows` counts the messages by topic and minute (ms since the epoch of its start). `delivered` and `discarded` are
    the daemon's answer for the whole attempt: None unless `acks` is `delivered`, and empty without an answer.
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
    def total(self) -> int:
        return sum(self.rows.values())


def write_ledger(uri: str, commits: Iterable[TaskResult], *, name: str | None = None) -> str | None:
    """Write the rows of a commit as one file into the directory `uri`; return its path, or None without rows."""
    rows = [row for commit in commits for row in _rows(commit)]
    if not rows:
        return None
    system, root = open_directory(uri)
    final = f"{root}/{name or uuid4().hex}.json"
    write_whole(system, final, [f"{json.dumps(row)}\n".encode() for row in rows])
    return final


def write_whole(system: FileSystem, path: str, parts: Iterable[bytes]) -> None:
    """Write a file that appears whole or not at all, in place of an earlier one."""
    part = f"{path}.{uuid4().hex}.part"
    with system.open_output_stream(part) as file:
        for data in parts:
            file.write(data)
    system.move(part, path)


def _rows(sent: TaskResult) -> list[dict[str, Any]]:
    shared = {
        **asdict(sent.attempt),
        "host": sent.host,
        "acks": sent.acks,
        "stamped": sent.stamped,
        "attempt_rows": sent.total,
    }
    outcome = {"delivered": sent.delivered, "discarded": dict(sent.discarded), "dead_letters": sent.dead_letters}
    return [
        {**shared, "topic": topic, "minute": minute, "rows": rows, **outcome}
        for (topic, minute), rows in sorted(sent.rows.items())
    ]
