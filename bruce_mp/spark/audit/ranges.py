"""Merge the ranges of numbers in a table with one sort and one pass; columns `first` and `last` are inclusive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["expressions", "merge_ranges"]


def expressions(*texts: str) -> list[Column]:
    """Return SQL expressions as columns."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]


def merge_ranges(ranges: DataFrame, by: Sequence[str], *aggregates: str) -> DataFrame:
    """Merge adjacent and overlapping ranges with equal `by` columns.

    Return the columns `by`, `first`, `last`, and those of the SQL `aggregates` over the merged ranges.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    in_order = Window.partitionBy(*by).orderBy("first")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    starts_range = F.col("first") > F.max("last").over(before) + 1
    marked = ranges.withColumn("starts_range", F.coalesce(starts_range.cast("int"), F.lit(0)))
    numbered = marked.withColumn("range", F.sum("starts_range").over(in_order))
    sums = expressions("min(first) as first", "max(last) as last", *aggregates)
    return numbered.groupBy(*by, "range").agg(*sums).drop("range")
