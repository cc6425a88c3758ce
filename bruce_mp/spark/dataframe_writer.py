"""Write a DataFrame with PySpark 3.5 or later.

PySpark 4.1 and later write the rows through the data source. Older versions run `mapInArrow` with a function that sends
the rows: each task returns its pickled result as the only row, and the driver commits the results.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final

from bruce_mp.spark.batch_job import BatchJob
from bruce_mp.spark.columns import check_columns
from bruce_mp.spark.options import parse_options
from bruce_mp.spark.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

__all__ = ["write_frame"]

_RESULT_SCHEMA: Final = "result binary"


def write_frame(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Send the rows of `frame`. Raise `SchemaError`, `OptionError`, `WorkerPythonError` and Spark's errors."""
    check_worker_python(frame.sparkSession)
    parsed = parse_options(options)
    check_columns(frame.dtypes, parsed.topic)
    if _has_data_source():
        from bruce_mp.spark.source import BruceDataSource  # noqa: PLC0415 - needs PySpark 4.1

        frame.sparkSession.dataSource.register(BruceDataSource)
        frame.write.format("bruce").mode("append").options(**options).save()
        return
    job = BatchJob(parsed)
    try:
        rows = frame.mapInArrow(_task_function(job), _RESULT_SCHEMA).collect()
    except Exception:
        job.abort()
        raise
    job.commit([pickle.loads(row["result"]) for row in rows])  # noqa: S301 - written by our own tasks


def _has_data_source() -> bool:
    """Return True if this PySpark has all writers that the data source needs."""
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter  # noqa: F401, PLC0415 - if it exists
    except ImportError:
        return False
    return True


def _task_function(job: BatchJob) -> Callable[[Iterator[RecordBatch]], Iterator[Any]]:
    def run(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - runs in the task

        yield pa.record_batch({"result": pa.array([pickle.dumps(job.run(batches))], pa.binary())})

    return run
