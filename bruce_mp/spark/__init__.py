"""The data source `df.write.format("bruce")`: Spark writes to Kafka through the daemon of each host.

Spark finds the data source in an installed package through the package `pyspark_bruce` beside this one. A session where
this search is disabled, or broken by another package, needs `register(spark)`.

`write(df, socket, ...)` sends the same messages, also with PySpark 3.5 and 4.0, whose data sources cannot write Arrow
batches.

This module must import quickly and without failure: Spark imports it on the driver and in every Python worker.
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
    """Send all rows of a DataFrame to the daemon at `socket` of each host, a path or `HOST:PORT`.

    Needs PySpark 3.5 or later; `options` are those of the data source. For example
    `write(df, "/run/bruce/in.stream", topic="clicks", stamp=False)`.
    """
    from bruce_mp.spark.dataframe_writer import write_frame  # noqa: PLC0415 - PySpark is optional

    spelled = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    write_frame(frame, {"bruce.socket": socket, **spelled})
