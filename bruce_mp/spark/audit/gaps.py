"""Which messages are missing: the sequence numbers that a ledger promises and Kafka does not have, as ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["gaps"]


def gaps(messages: DataFrame, ledger: DataFrame) -> DataFrame:
    """writer, attempt, first, last: ranges of missing sequence numbers of committed attempts, discards included.

    A writer's last committed attempt counts, with what any attempt of it brought to Kafka.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    promised = ledger.groupBy("writer").agg(F.max("attempt").alias("attempt"), F.max("attempt_rows").alias("rows"))
    have = messages.where("writer is not null").select("writer", "sequence").distinct()
    ends = promised.selectExpr("writer", "rows as sequence").unionByName(
        promised.selectExpr("writer", "-1L as sequence")
    )
    marks = have.join(promised.select("writer"), "writer").unionByName(ends)
    before = F.lag("sequence").over(Window.partitionBy("writer").orderBy("sequence"))
    holes = marks.withColumn("before", before).where("sequence > before + 1")
    ranges = holes.selectExpr("writer", "before + 1 as first", "sequence - 1 as last")
    return ranges.join(promised.select("writer", "attempt"), "writer").select("writer", "attempt", "first", "last")
