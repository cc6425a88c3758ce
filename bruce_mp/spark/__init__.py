"""The data source `df.write.format("bruce")`: Spark writes to Kafka through the daemon of each host.

If this project is installed, Spark finds the data source through the top-level package `pyspark_bruce`. Call
`register(spark)` if the session disables this search, or if it fails because of another package.

`write(df, socket, ...)` sends the same messages, also with PySpark 3.5 and 4.0, in which data sources cannot write
Arrow batches.

The import of this module must be quick and must not fail: Spark imports it on the driver and in every Python worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "write"]


def register(spark: SparkSession) -> None:
    """Register `format("bruce")` with this session. Needs PySpark 4.1 or later."""
    from bruce_mp.spark.source import BruceDataSource  # noqa: PLC0415 - PySpark is optional
    from bruce_mp.spark.worker_python import check_worker_python  # noqa: PLC0415 - not needed by workers

    check_worker_python(spark)
    spark.dataSource.register(BruceDataSource)


def write(frame: DataFrame, socket: str, **options: object) -> None:
    """Send all rows of a DataFrame: each task sends to the daemon of its host at `socket`, a path or `HOST:PORT`.

    Needs PySpark 3.5 or later. `options` are the options of the data source, as in
    `write(df, "/run/bruce/in.stream", topic="clicks", stamp=False)`.
    """
    from bruce_mp.spark.dataframe_writer import write_frame  # noqa: PLC0415 - PySpark is optional

    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    write_frame(frame, {"bruce.socket": socket, **texts})
