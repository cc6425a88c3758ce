"""Record the intent and the outcome of each task in the ledger, so that a repeated task sends nothing twice.

A task stores its intent before the end frame of its attempt, and its outcome after the daemon's answer.  A later run of
the task finds either.  A known outcome is its result; an intent without an outcome is a question to the daemon (see
`repeated_task.py`).  The entries of a batch are in `LEDGER/_tasks/QUERY/BATCH`, which Spark's readers ignore.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType

from bruce_mp.spark.encode import lengths
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_whole
from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from bruce_mp.spark.encode import Rows

__all__ = ["RowsDigest", "TaskEntry", "TaskLedger"]


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """The intent of an attempt to end, or its outcome.  `address` is the socket of its daemon."""

    result: TaskResult
    digest: str
    address: str
    time_ms: int
    is_done: bool


class TaskLedger:
    """The entries of tasks in the ledger `uri`."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def find(self, attempt: TaskAttempt) -> TaskEntry | None:
        """Return the entry of an earlier attempt of the same task."""
        system, root = self._batch(attempt)
        try:
            with system.open_input_stream(f"{root}/{attempt.partition}.json") as file:
                return _decode(json.loads(file.readall()))
        except FileNotFoundError:
            return None

    def store(self, entry: TaskEntry) -> None:
        """Store an entry in place of the task's earlier one."""
        system, root = self._batch(entry.result.attempt)
        write_whole(system, f"{root}/{entry.result.attempt.partition}.json", [json.dumps(_encode(entry)).encode()])

    def remove(self, query: str, before: int | None = None) -> None:
        """Remove the entries of a query's batches before `before`, or of all of them."""
        system, root = open_directory(f"{self._uri}/_tasks/{query}")
        if before is None:
            system.delete_dir(root)
            return
        for found in system.get_file_info(FileSelector(root)):
            if found.type is FileType.Directory and int(found.base_name) < before:
                system.delete_dir(found.path)

    def _batch(self, attempt: TaskAttempt) -> tuple[FileSystem, str]:
        return open_directory(f"{self._uri}/_tasks/{attempt.query}/{attempt.batch}")


def _encode(entry: TaskEntry) -> dict[str, Any]:
    rows = [[topic, minute, count] for (topic, minute), count in entry.result.rows.items()]
    return {**asdict(entry), "result": {**asdict(entry.result), "rows": rows}}


def _decode(stored: dict[str, Any]) -> TaskEntry:
    result = stored.pop("result")
    attempt, rows = TaskAttempt(**result.pop("attempt")), result.pop("rows")
    counts = {(topic, minute): count for topic, minute, count in rows}
    return TaskEntry(TaskResult(attempt=attempt, rows=counts, **result), **stored)


_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Odd, with its bits spread evenly: the multiplier of Fibonacci hashing."""
_SHIFT: Final = np.uint64(29)


class RowsDigest:
    """A digest of a task's rows in any order, which shows if a repeated task has the same rows.

    After a shuffle, Spark repeats a task's rows in another order.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def update(self, rows: Rows) -> None:
        """Add the rows of a batch."""
        columns = [column for column in (rows.value, rows.key, rows.topic) if column is not None]
        hashes = _checksums(columns)
        for column in columns:
            hashes = (hashes + lengths(column, null=-1).astype(np.uint64)) * _FACTOR
            hashes ^= hashes >> _SHIFT
        self._rows += rows.count
        self._sum = (self._sum + int(hashes.sum(dtype=np.uint64))) % 2**64

    def __str__(self) -> str:
        return f"{self._rows}-{self._sum:016x}"


def _checksums(columns: list[pa.Array]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return a checksum of each row's contents."""
    empty = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(*columns, empty, null_handling="replace", null_replacement=b"")
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32, len(joined) + 1).tolist()
    view = memoryview(data or b"")
    return np.fromiter((crc32(view[start:end]) for start, end in pairwise(ends)), np.uint64, len(joined))
