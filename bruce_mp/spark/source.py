"""`format("bruce")` on PySpark's Python Data Source API: batch and streaming sinks that take Arrow batches.

The driver checks options and columns here before a task runs.  Spark pickles a writer to the tasks, and calls a
streaming commit on another writer in another process, so the commit messages carry everything that a commit needs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from bruce_mp.spark.columns import check_columns
from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.options import SinkOptions, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from bruce_mp.spark.task_ledger import TaskLedger

__all__ = ["BruceDataSource"]

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
NO_BATCH: Final = -1
_BATCHES_BETWEEN_MERGES: Final = 256
_JOBS_BETWEEN_MERGES: Final = 64
_LOG: Final = logging.getLogger(__name__)


@dataclass
class Commit(WriterCommitMessage):
    """The result of a task, which Spark sends from the executor to the driver."""

    sent: TaskResult


class BruceDataSource(DataSource):
    """The write-only data source `bruce`."""

    @classmethod
    def name(cls) -> str:
        return "bruce"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError("Mode 'overwrite' cannot empty a topic: write with .mode('append').")
        return BatchWriter(self._parse_and_check(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise OptionError(
                "Output mode 'complete' cannot replace the messages of a topic: use .outputMode('append')."
            )
        return StreamWriter(self._parse_and_check(schema))

    def _parse_and_check(self, schema: StructType) -> SinkOptions:
        options = parse_options(dict(self.options))
        check_columns([(column.name, column.dataType.simpleString()) for column in schema.fields], options.topic)
        return options


class BatchWriter(DataSourceArrowWriter):
    """The writer of one batch job.  An id created on the driver names the job in stamps and ledger."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = options.run_id or str(uuid4())

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return _run_in_task(self._options, iterator, self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        run = self._options.run_id
        _write_ledger(self._options, messages, self._job if run is None else f"run-{run}")
        self._remove_tasks()
        if run is None and UUID(self._job).int % _JOBS_BETWEEN_MERGES == 0:
            _merge_ledger(self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Keep delivered messages, which cannot be withdrawn; they have no ledger row."""
        self._remove_tasks()

    def _remove_tasks(self) -> None:
        """Remove the entries of the job's tasks, unless another run of the job may follow."""
        if self._options.is_exactly_once and self._options.run_id is None:
            _tasks_of(self._options).remove(self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query.  Spark gives each task the query's id and batch number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return _run_in_task(self._options, iterator, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        queries = {message.sent.attempt.query for message in messages if isinstance(message, Commit)}
        _write_ledger(self._options, messages, "-".join([*sorted(queries), str(batchId)]))
        if self._options.is_exactly_once:
            for query in queries:  # Spark may repeat this batch, and has committed the ones before
                _tasks_of(self._options).remove(query, batchId)
        if batchId % _BATCHES_BETWEEN_MERGES == 0:
            _merge_ledger(self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """See `BatchWriter.abort`."""


def _run_in_task(options: SinkOptions, batches: Iterator[RecordBatch], job: str | None) -> Commit:
    from bruce_mp.spark.input_end import check_complete  # noqa: PLC0415 - as the import below
    from bruce_mp.spark.task import run_task  # noqa: PLC0415 - Arrow and numpy: only where tasks run

    return Commit(run_task(options, _current_attempt(job), check_complete(batches)))


def _current_attempt(job: str | None) -> TaskAttempt:
    context = TaskContext.get()
    if context is None:
        raise OptionError("The data source 'bruce' can be written only by Spark's tasks.")
    query = job or context.getLocalProperty(_QUERY) or "unknown"
    batch = NO_BATCH if job else int(context.getLocalProperty(_BATCH) or NO_BATCH)
    return TaskAttempt(query, batch, context.partitionId(), context.attemptNumber())


def _tasks_of(options: SinkOptions) -> TaskLedger:
    from bruce_mp.spark.task_ledger import TaskLedger  # noqa: PLC0415 - Arrow, which this module must not import

    return TaskLedger(options.ledger or "")


def _write_ledger(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], name: str) -> None:
    """Write the commit's rows to the ledger.  A repeated commit has the same name and replaces the first."""
    if options.ledger is not None:
        write_ledger(options.ledger, [message.sent for message in messages if isinstance(message, Commit)], name=name)


def _merge_ledger(options: SinkOptions) -> None:
    """Merge the ledger's small files, and only log an error: the commit is done, and the next merge tries it again."""
    from bruce_mp.spark.ledger_files import merge_ledger  # noqa: PLC0415 - Arrow, as above

    if options.ledger is not None:
        try:
            merge_ledger(options.ledger)
        except OSError as error:
            _LOG.warning("The files of the ledger %s could not be merged: %s", options.ledger, error)
