"""Find messages that stand behind a later message of their attempt in their partition.

Such messages are rare, and the facts alone exclude them: in the order of places, each fact begins behind the end of the
one before, in numbers and in places. Only *lanes* that violate this are checked message by message.

A smaller number that was sent later than all messages before is not late: a repeated task starts its numbers again. A
repeated number is a copy and not late either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.spark.audit.facts import LANE, exploded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["disordered_lanes", "late_messages"]


def late_messages(facts: DataFrame) -> DataFrame:
    """Return topic, minute, writer and number of each late message."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    lane = Window.partitionBy(LANE).orderBy("place")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    messages = exploded(facts.join(disordered_lanes(facts), LANE, "left_semi"))
    seen = messages.select(
        "*", F.expr("sent") > F.max("sent").over(before), F.max("number").over(before),
        F.row_number().over(Window.partitionBy(*LANE, "number").orderBy("place")),
    ).toDF(*messages.columns, "newer", "highest", "copy")  # fmt: skip
    runs = seen.withColumn("run", F.sum(F.expr("if(newer and number < highest, 1, 0)")).over(lane))
    in_run = Window.partitionBy(*LANE, "run").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    placed = runs.withColumn("highest", F.max("number").over(in_run))
    return placed.where("number < highest and copy = 1").select("topic", "minute", "writer", "number")


def disordered_lanes(facts: DataFrame) -> DataFrame:
    """Return the lanes with facts out of order."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    stamped = facts.where("writer is not null")
    line = Window.partitionBy(LANE).orderBy(F.expr("first + shift"))
    behind = (F.lag("last").over(line) >= F.col("first")) | (
        F.lag(F.expr("last + shift")).over(line) >= F.expr("first + shift")
    )
    return stamped.select(*LANE, behind.alias("behind")).where("behind").select(LANE).distinct()
