"""Record the intent and the outcome of each task in the ledger, so that a repeated task sends nothing twice.

Before a task sends the end frame of its attempt, it stores the *intent* to complete the attempt. After the daemon's
answer it stores the *outcome* in the same file. A repeated task adopts the outcome; if it finds only the intent, it
asks the daemon (`repeated_task.py`). The files of a batch are in `LEDGER/_tasks/QUERY/BATCH`; Spark's readers ignore
directories with an underscore.
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

from bruce_mp.spark.encode import byte_sizes
from bruce_mp.spark.errors import TaskError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_atomically
from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from bruce_mp.spark.encode import Rows

__all__ = ["RowsDigest", "TaskEntry", "TaskLedger"]


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """The intent to complete an attempt or, if `is_done` is True, the attempt's outcome.

    `digest` is the text of the `RowsDigest` of the task's rows, `address` the path or `host:port` of the daemon's
    socket, and `time_ms` the time of the entry in ms since the epoch.
    """

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
        """Return the latest entry about any attempt of the same task; None if there is none.

        Raise TaskError if the entry is damaged.
        """
        system, root = self._open_batch(attempt)
        path = f"{root}/{attempt.partition}.json"
        try:
            with system.open_input_stream(path) as file:
                content = file.readall()
        except FileNotFoundError:
            return None
        try:
            return _decode(json.loads(content))
        except ValueError as error:  # for example empty after a power failure, from release 1.0.0
            raise TaskError(
                f"It is unknown whether Kafka has the messages of task {attempt.task}: the ledger's file {path} is "
                f"damaged ({error}). Delete this file to send the task's rows, which may duplicate its messages."
            ) from error

    def store(self, entry: TaskEntry, *, replaces: bool = True) -> None:
        """Store an entry, and replace the task's earlier entry.

        If `replaces` is False, raise FileExistsError if there is an earlier entry, where `write_atomically` can.
        """
        system, root = self._open_batch(entry.result.attempt)
        path = f"{root}/{entry.result.attempt.partition}.json"
        write_atomically(system, path, [json.dumps(_encode(entry)).encode()], replaces=replaces)

    def remove(self, query: str, before_batch: int | None = None) -> None:
        """Remove the entries of a query's batches before `before_batch`; None: of all its batches."""
        system, root = open_directory(f"{self._uri}/_tasks/{query}")
        if before_batch is None:
            system.delete_dir(root)
            return
        for entry_info in system.get_file_info(FileSelector(root)):
            if entry_info.type is FileType.Directory and int(entry_info.base_name) < before_batch:
                system.delete_dir(entry_info.path)

    def _open_batch(self, attempt: TaskAttempt) -> tuple[FileSystem, str]:
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
"""The multiplier of Fibonacci hashing: an odd number with evenly spread bits."""
_SHIFT: Final = np.uint64(29)
"""Moves the high bits of a product, which are the best mixed ones, to low bits."""

HashArray = np.ndarray[Any, np.dtype[np.uint64]]


class RowsDigest:
    """A digest of a task's rows, which shows if a repeated task has the same rows.

    The digest does not depend on the order of the rows, because after a shuffle Spark repeats them in another order. It
    has three parts: the number of rows; the sum of a hash of each row's value, key and topic column; and the sum, over
    the rows with headers, of a hash that includes the headers. Digests of release 1.0.0 lack the last part. Partition
    keys and timestamps are left out, because a repeated task may compute other ones, for example from the current time.
    """

    def __init__(self) -> None:
        self._row_count = 0
        self._rows_sum = 0
        self._headers_sum = 0

    def update(self, rows: Rows) -> None:
        """Add the values, keys, topics and headers of a batch."""
        columns = [column for column in (rows.value, rows.key, rows.topic) if column is not None]
        hashes = _mix(_checksums(columns), columns)
        self._row_count += rows.count
        self._rows_sum = (self._rows_sum + int(hashes.sum(dtype=np.uint64))) % 2**64
        if rows.headers is not None:
            hashes = _mix(hashes ^ _checksums([rows.headers]), [rows.headers])
            hashes[byte_sizes(rows.headers) == 0] = 0  # rows without headers count as if there were no column
            self._headers_sum = (self._headers_sum + int(hashes.sum(dtype=np.uint64))) % 2**64

    def has_rows_of(self, earlier: str) -> bool:
        """Return True if the values, keys and topics are those of the digest `earlier`."""
        return earlier.split("-")[:2] == str(self).split("-")[:2]

    def has_headers_of(self, earlier: str) -> bool:
        """Return True if the headers are those of the digest `earlier`, or if `earlier` lacks this part."""
        return earlier.split("-")[2:] in ([], str(self).split("-")[2:])

    def __str__(self) -> str:
        return f"{self._row_count}-{self._rows_sum:016x}-{self._headers_sum:016x}"


def _mix(hashes: HashArray, columns: list[pa.Array]) -> HashArray:
    """Mix the sizes of the columns' values into the hashes, because joined bytes do not show where a value ends."""
    for column in columns:
        hashes = (hashes + byte_sizes(column, null=-1).astype(np.uint64)) * _FACTOR
        hashes ^= hashes >> _SHIFT
    return hashes


def _checksums(columns: list[pa.Array]) -> HashArray:
    """Return for each row a checksum of the joined bytes of all columns."""
    separator = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(*columns, separator, null_handling="replace", null_replacement=b"")
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(joined) + 1).tolist()
    view = memoryview(data or b"")
    return np.fromiter((crc32(view[start:end]) for start, end in pairwise(bounds)), np.uint64, len(joined))
