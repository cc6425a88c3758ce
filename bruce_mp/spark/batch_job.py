"""Run the tasks of a write, and commit or abort it; independent of the API through which Spark calls it."""

from __future__ import annotations

import gc
import logging
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from pyspark import TaskContext

from bruce_mp.spark.errors import OptionError, TaskError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from pyarrow import RecordBatch

    from bruce_mp.spark.options import SinkOptions
    from bruce_mp.spark.task_ledger import TaskLedger

__all__ = ["BatchJob", "check_complete", "exempt_modules_from_collection", "merge_ledger", "run_in_task", "task_ledger"]

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_TIME_ZONE: Final = "spark.sql.session.timeZone"
NO_BATCH: Final = -1
_JOBS_BETWEEN_MERGES: Final = 64
log = logging.getLogger(__name__)


class BatchJob:
    """One batch job. An id created on the driver, or the option `runId`, names it in stamps and ledger."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = options.run_id or str(uuid4())

    def run(self, batches: Iterator[RecordBatch]) -> TaskResult:
        """Run one task, in the task."""
        return run_in_task(self._options, batches, self._job)

    def commit(self, results: Iterable[TaskResult]) -> None:
        """Write the ledger rows of all tasks."""
        ledger, run = self._options.ledger, self._options.run_id
        if ledger is None:
            return
        write_ledger(ledger, results, name=self._job if run is None else f"run-{run}")
        self._remove_tasks()
        if run is None and UUID(self._job).int % _JOBS_BETWEEN_MERGES == 0:
            merge_ledger(ledger)

    def abort(self) -> None:
        """Keep delivered messages, which cannot be withdrawn; they have no ledger row."""
        self._remove_tasks()

    def _remove_tasks(self) -> None:
        """Remove the entries of the job's tasks, unless another run of the job may follow."""
        if self._options.is_exactly_once and self._options.run_id is None:
            task_ledger(self._options).remove(self._job)


def run_in_task(options: SinkOptions, batches: Iterator[RecordBatch], job: str | None) -> TaskResult:
    """Send the rows of the current task of a batch job, or of a streaming query if `job` is None."""
    from bruce_mp.spark.task import run_task  # noqa: PLC0415 - Arrow and numpy: only where tasks run

    exempt_modules_from_collection()
    context = TaskContext.get()
    if context is None:
        raise OptionError("The data source 'bruce' can be written only by Spark's tasks.")
    query = job or context.getLocalProperty(_QUERY) or "unknown"
    batch = NO_BATCH if job else int(context.getLocalProperty(_BATCH) or NO_BATCH)
    attempt = TaskAttempt(query, batch, context.partitionId(), context.attemptNumber())
    return run_task(options, attempt, check_complete(batches), context.getLocalProperty(_TIME_ZONE))


@cache
def exempt_modules_from_collection() -> None:
    """Exempt all present objects from garbage collection, once in a process.

    A worker of Spark collects garbage after each task and each commit. Visiting the objects of Arrow, numpy and PySpark
    takes as long as to encode 500,000 rows.
    """
    gc.freeze()  # `gc.get_freeze_count()` would visit all exempted objects, and so cost more than it saves


def check_complete(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield all batches.  Raise `TaskError` after the last one if Spark truncated the input.

    When a task's input fails in the JVM, or the task is killed, Spark closes the Arrow stream to the Python worker as
    if it had ended.  A sink that trusted this end would complete its attempt with a part of the rows.  After a complete
    stream Spark writes a mark; after a failed one the worker's connection ends.
    """
    yield from batches
    connection = _worker_input()
    if connection is not None and not connection.peek(1):  # the worker itself reads the mark later
        raise TaskError(
            "Spark ended the rows of this task early, because the task failed elsewhere or was killed. The task does "
            "not complete its attempt."
        )


def _worker_input() -> Any:
    """Return the file from which this Python worker reads Spark's data; None if it is not a file that can peek."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - PySpark does not expose this file
    while frame is not None:
        file = frame.f_locals.get("infile")
        if frame.f_code.co_name == "main" and hasattr(file, "peek"):
            return file
        frame = frame.f_back
    return None


def task_ledger(options: SinkOptions) -> TaskLedger:
    """Return the entries of tasks in the ledger of these options."""
    from bruce_mp.spark.task_ledger import TaskLedger  # noqa: PLC0415 - Arrow, which this module must not import

    return TaskLedger(options.ledger or "")


def merge_ledger(ledger: str) -> None:
    """Merge the ledger's small files, and only log an error: the commit is done, and the next merge tries it again."""
    from bruce_mp.spark import ledger_files  # noqa: PLC0415 - Arrow, as above

    try:
        ledger_files.merge_ledger(ledger)
    except OSError as error:
        log.warning("The files of the ledger %s could not be merged: %s", ledger, error)
