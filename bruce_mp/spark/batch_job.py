"""Run the tasks of a batch job, and commit or abort the job; run the tasks of streaming queries, too.

`source.py` and `dataframe_writer.py` use `BatchJob` in two different APIs of Spark.
"""

from __future__ import annotations

import gc
import logging
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from pyspark import TaskContext

from bruce_mp.spark import ledger_files
from bruce_mp.spark.errors import OptionError, TaskError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, is_written, write_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from pyarrow import RecordBatch

    from bruce_mp.spark.options import SinkOptions
    from bruce_mp.spark.task_ledger import TaskLedger

__all__ = ["BatchJob", "freeze_garbage_collector", "open_task_ledger", "run_in_task", "try_merge_ledger"]

# Local properties that Spark sets in each task.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_TIME_ZONE: Final = "spark.sql.session.timeZone"
NO_BATCH: Final = -1
"""The batch number of batch jobs, in place of the number of a micro-batch."""
_JOBS_BETWEEN_MERGES: Final = 64
"""Of so many batch jobs without a `runId`, one merges the ledger's files, on average."""
_REPEATED_RUN: Final = (
    "The run %s was complete before: this job sent nothing. To send its rows again, use another runId."
)
log = logging.getLogger(__name__)


class BatchJob:
    """One batch job, created on the driver.

    Its id, which stamps and ledger contain, is the option `runId` or, without this option, a random UUID.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = options.run_id or str(uuid4())

    def run(self, batches: Iterator[RecordBatch]) -> TaskResult:
        """Send the rows of the current task, on an executor."""
        return run_in_task(self._options, batches, self._id)

    def commit(self, results: Iterable[TaskResult]) -> None:
        """Write the results of all tasks into the ledger, if there is one."""
        ledger, run_id = self._options.ledger, self._options.run_id
        if ledger is None:
            return
        results = list(results)
        file_name = ledger_files.job_file_name(self._id) if run_id is None else f"run-{run_id}"
        if run_id is not None and is_written(ledger, results, name=file_name):
            log.warning(_REPEATED_RUN, run_id)
        write_ledger(ledger, results, name=file_name)
        self._remove_task_entries()
        # Drivers share no counter of jobs, so the random id decides.
        if run_id is None and UUID(self._id).int % _JOBS_BETWEEN_MERGES == 0:
            try_merge_ledger(ledger)

    def abort(self) -> None:
        """Remove the job's task entries. Delivered messages stay in Kafka, but the ledger does not count them."""
        self._remove_task_entries()

    def _remove_task_entries(self) -> None:
        """Remove the job's task entries from the ledger; with a `runId`, keep them for a repetition of the job."""
        if self._options.is_exactly_once and self._options.run_id is None:
            open_task_ledger(self._options).remove(self._id)


def run_in_task(options: SinkOptions, batches: Iterator[RecordBatch], job_id: str | None) -> TaskResult:
    """Send the rows of the current task of a batch job, or of a streaming query if `job_id` is None."""
    from bruce_mp.spark.task import run_task  # noqa: PLC0415 - Arrow and numpy: only where tasks run

    freeze_garbage_collector()
    context = TaskContext.get()
    if context is None:
        raise OptionError("The data source 'bruce' can be written only by Spark's tasks.")
    query = job_id or context.getLocalProperty(_QUERY_ID) or "unknown"
    batch = NO_BATCH if job_id else int(context.getLocalProperty(_BATCH_ID) or NO_BATCH)
    attempt = TaskAttempt(query, batch, context.partitionId(), context.attemptNumber())
    return run_task(options, attempt, require_complete(batches), context.getLocalProperty(_TIME_ZONE))


@cache
def freeze_garbage_collector() -> None:
    """Exempt all present objects from garbage collection, once in a process.

    Spark's Python worker collects garbage after each task and each commit. Without this exemption, each collection
    visits the objects of Arrow, numpy and PySpark, which takes as long as encoding 500,000 rows.
    """
    gc.freeze()


def require_complete(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield all batches. Raise `TaskError` after the last batch if Spark truncated the input.

    If a task's input fails in the JVM, or the task is killed, Spark ends the Arrow stream to the Python worker as it
    does after the last row. A sink that relied on this end would complete the attempt without the other rows. But after
    a complete stream Spark writes more data to the worker, and after a truncated stream it closes the connection.
    """
    yield from batches
    worker_input = _worker_input()
    if worker_input is not None and not worker_input.peek(1):  # peek() leaves the data for PySpark's worker
        raise TaskError(
            "Spark ended the rows of this task early, because the task failed in the JVM or was killed. The task does "
            "not complete its attempt."
        )


def _worker_input() -> Any:
    """Return the file from which this Python worker reads Spark's data; None if no such file has a `peek`."""
    # PySpark exposes this file only as a local variable of its worker's main().
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        file = frame.f_locals.get("infile")
        if frame.f_code.co_name == "main" and hasattr(file, "peek"):
            return file
        frame = frame.f_back
    return None


def open_task_ledger(options: SinkOptions) -> TaskLedger:
    """Return the task entries of the ledger, which `options` must name."""
    from bruce_mp.spark.task_ledger import TaskLedger  # noqa: PLC0415 - Arrow and numpy: slow to import on the driver

    assert options.ledger is not None
    return TaskLedger(options.ledger)


def try_merge_ledger(ledger: str) -> None:
    """Merge the ledger's small files. Only log an error, because the commit is done, and a later merge tries again."""
    try:
        ledger_files.merge_ledger(ledger)
    except (OSError, ValueError, ledger_files.LedgerFileError) as error:
        log.warning("The files of the ledger %s could not be merged: %s", ledger, error)
