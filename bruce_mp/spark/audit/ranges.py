"""Merge ranges of numbers in tables, columns `first` and `last` (inclusive), with one sort and one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["expressions", "merged"]


def expressions(*texts: str) -> list[Column]:
    """Return SQL expressions as columns."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]


def merged(ranges: DataFrame, by: Sequence[str], *aggregates: str) -> DataFrame:
    """Merge adjacent ranges with equal `by` columns; return `by`, first, last and aggregates over the parts."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    line = Window.partitionBy(*by).orderBy("first")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    apart = F.col("first") > F.max("last").over(before) + 1
    begun = ranges.withColumn("apart", F.coalesce(apart.cast("int"), F.lit(0)))
    told = begun.withColumn("range", F.sum("apart").over(line))
    wanted = expressions("min(first) as first", "max(last) as last", *aggregates)
    return told.groupBy(*by, "range").agg(*wanted).drop("range")
