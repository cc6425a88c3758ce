"""Detect the input of a task that Spark truncated because the task failed.

When a task's input fails in the JVM, or the task is killed, Spark closes the Arrow stream to the Python worker as if
it had ended.  A sink that trusted this end would complete its attempt with a part of the rows.  After a complete
stream Spark writes a mark; after a failed one the worker's connection ends.  This module only peeks at the mark,
because the worker reads it later.

Separate because it depends on internals of PySpark, and the data source only on its interface.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bruce_mp.spark.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pyarrow import RecordBatch

__all__ = ["check_complete"]


def check_complete(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield all batches.  Raise `TaskError` after the last one if Spark truncated the input."""
    yield from batches
    connection = _worker_input()
    if connection is not None and not connection.peek(1):
        raise TaskError(
            "Spark ended the rows of this task early, because the task failed elsewhere or was killed. The task does "
            "not complete its attempt."
        )


def _worker_input() -> Any:
    """Return the file from which this Python worker reads Spark's data; None if it is not file."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - PySpark does not expose this file
    while frame is not None:
        file = frame.f_locals.get("infile")
        if frame.f_code.co_name == "main" and hasattr(file, "peek"):
            return file
        frame = frame.f_back
    return None
