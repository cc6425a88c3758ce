"""The data source `df.write.format("bruce")`: Spark writes to Kafka through the daemon of each host.

Spark finds the data source by itself where this package is installed, through the package `pyspark_bruce` beside it.
Where that lookup is switched off, or another package breaks it, call `register(spark)`.

This module must import quickly and without failure: Spark imports it on the driver and in every Python worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("bruce")` with this session. Needs PySpark 4.1 or later."""
    from bruce_mp.spark.source import BruceDataSource  # noqa: PLC0415 - PySpark is optional

    spark.dataSource.register(BruceDataSource)
