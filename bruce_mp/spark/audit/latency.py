"""Latency from stamp to append: percentiles from the landed histograms, which add up over tasks and minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["percentiles"]


def percentiles(latencies: DataFrame, by: Sequence[str]) -> DataFrame:
    """The columns `by`, then p50_ms and p99_ms: to 1 %, for topics that the broker stamps; others have no row."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    counts = latencies.groupBy(*by, "ms").agg(F.sum("messages").alias("messages"))
    whole = Window.partitionBy(*by)
    ranked = counts.withColumn("all", F.sum("messages").over(whole)).withColumn(
        "below", F.sum("messages").over(whole.orderBy("ms").rowsBetween(Window.unboundedPreceding, 0))
    )
    found = {f"p{part}_ms": F.expr(f"min(ms) filter (where below >= all * {part / 100})") for part in (50, 99)}
    return ranked.groupBy(*by).agg(*(column.alias(name) for name, column in found.items()))
