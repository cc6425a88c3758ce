"""`format("bruce")` on PySpark's Python Data Source API: batch and streaming sinks of Arrow batches.

The driver checks options and columns before a task runs. Spark sends a pickled writer to the tasks, but calls `commit`
on another writer, in another process. So the commit messages of the tasks (`TaskCommit`) contain everything that a
commit needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from bruce_mp.spark.batch_job import BatchJob, freeze_garbage_collector, open_task_ledger, run_in_task, try_merge_ledger
from bruce_mp.spark.columns import check_columns
from bruce_mp.spark.errors import OptionError, WriteOnlyError
from bruce_mp.spark.ledger import TaskResult, write_ledger
from bruce_mp.spark.ledger_files import MERGE_WIDTHS
from bruce_mp.spark.options import SinkOptions, parse_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["BruceDataSource"]

_BATCHES_BETWEEN_MERGES: Final = MERGE_WIDTHS[0]  # after so many batches, another range of files is complete


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task, for Spark to send from the executor to the driver."""

    result: TaskResult


class BruceDataSource(DataSource):
    """The write-only data source `bruce`."""

    @classmethod
    def name(cls) -> str:
        return "bruce"

    def schema(self) -> StructType:
        raise WriteOnlyError

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        raise WriteOnlyError

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's
        raise WriteOnlyError

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError("Mode 'overwrite' cannot empty a topic: write with .mode('append').")
        return BatchWriter(self._parse_and_check(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        if overwrite:
            raise OptionError(
                "Output mode 'complete' cannot replace the messages of a topic: use .outputMode('append')."
            )
        return StreamWriter(self._parse_and_check(schema))

    def _parse_and_check(self, schema: StructType) -> SinkOptions:
        freeze_garbage_collector()  # Spark calls this method in a Python worker
        options = parse_options(dict(self.options))
        check_columns([(column.name, column.dataType.simpleString()) for column in schema.fields], options.topic)
        return options


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._job = BatchJob(options)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return TaskCommit(self._job.run(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        freeze_garbage_collector()
        self._job.commit(_results(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        self._job.abort()


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query; its tasks get the query's id and the number of the micro-batch from Spark."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return TaskCommit(run_in_task(self._options, iterator, job_id=None))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Write the batch's results into the ledger, and remove the task entries of earlier batches."""
        if self._options.ledger is None:
            return
        results = _results(messages)
        queries = sorted({result.attempt.query for result in results})  # one query; none if no task ran
        write_ledger(self._options.ledger, results, name="-".join([*queries, str(batchId)]))
        if self._options.is_exactly_once:
            for query in queries:  # the entries of this batch stay, because Spark may repeat it
                open_task_ledger(self._options).remove(query, before_batch=batchId)
        if batchId % _BATCHES_BETWEEN_MERGES == 0:
            try_merge_ledger(self._options.ledger)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: if Spark repeats the batch, the batch needs the task entries."""


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, TaskCommit)]
