"""Spark writes to Kafka through the daemon of its own host: `df.write.format("bruce")`.

The data source is found by itself where this package is installed (`pyspark_bruce` beside it tells Spark).  Where the
lookup is off, or a broken neighbour disables it, `register(spark)` does the same.

Nothing here may fail or be slow at import: Spark imports it on the driver and in every Python worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("bruce")` known to this session.  Needs PySpark 4.1 or later."""
    from bruce_mp.spark.source import BruceDataSource  # noqa: PLC0415 - PySpark is there only for its users

    spark.dataSource.register(BruceDataSource)
