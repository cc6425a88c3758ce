"""Ranges of numbers in tables: columns `first` and `last`, both included.  All of it is one sort and one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["expressions", "merged", "swept"]


def expressions(*texts: str) -> list[Column]:
    """SQL as columns."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]


def merged(ranges: DataFrame, by: Sequence[str], *aggregates: str) -> DataFrame:
    """Ranges that touch, among those alike in `by`, as one: `by`, first, last, and aggregates over the parts."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    line = Window.partitionBy(*by).orderBy("first")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    apart = F.col("first") > F.max("last").over(before) + 1
    begun = ranges.withColumn("apart", F.coalesce(apart.cast("int"), F.lit(0)))
    told = begun.withColumn("range", F.sum("apart").over(line))
    wanted = expressions("min(first) as first", "max(last) as last", *aggregates)
    return told.groupBy(*by, "range").agg(*wanted).drop("range")


def swept(ranges: DataFrame, by: Sequence[str]) -> DataFrame:
    """With `top` and `fresh`: the highest number of the ranges before, -1 for none, and how many numbers are new.

    Ranges come in the order of their first numbers, so that what is before covers all from `first` up to `top`.  Of
    ranges that begin alike, the one with the smaller `sent` comes first.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    before = Window.partitionBy(*by).orderBy("first", "sent").rowsBetween(Window.unboundedPreceding, -1)
    known = ranges.withColumn("top", F.coalesce(F.max("last").over(before), F.lit(-1)))
    return known.selectExpr("*", "greatest(last - greatest(top, first - 1), 0L) as fresh")
