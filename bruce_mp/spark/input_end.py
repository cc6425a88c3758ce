"""Whether the rows of a task came to their end, or Spark stopped them because the task failed.

When the input of a task fails in the JVM, or the task is killed, Spark closes the Arrow stream to the Python worker as
if it had ended: a sink that believes this completes its attempt with a part of the rows.  Behind a stream that is
complete Spark writes a mark, and behind any other nothing: the worker's connection ends.  The mark is only looked at
here; the worker reads it later.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from bruce_mp.spark.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pyarrow import RecordBatch

__all__ = ["until_the_end"]


def until_the_end(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Give all batches.  Raises `TaskError` behind the last one if Spark stopped them."""
    yield from batches
    connection = _connection_of_worker()
    if connection is not None and not connection.peek(1):
        raise TaskError(
            "Spark stopped the rows of this task before their end, because it failed elsewhere or was killed: its "
            "attempt is not completed."
        )


def _connection_of_worker() -> Any:
    """The file from which this Python worker reads what Spark sends; None if it is not found."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - PySpark hands the file to nobody
    while frame is not None:
        found = frame.f_locals.get("infile")
        if frame.f_code.co_name == "main" and hasattr(found, "peek"):
            return found
        frame = frame.f_back
    return None
