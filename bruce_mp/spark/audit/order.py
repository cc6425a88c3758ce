"""Find the messages that are out of order: in Kafka they come after a message with a higher number.

Only messages of the same attempt and partition are compared. `facts.py` explains facts and places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.spark.audit.facts import ATTEMPT_PARTITION, explode_facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OUT_OF_ORDER_COLUMNS", "disordered_attempts", "out_of_order_messages"]

OUT_OF_ORDER_COLUMNS: Final = (
    "topic string, partition int, minute long, writer string, number long, sent long, from_offset long, to_offset long"
)


def out_of_order_messages(facts: DataFrame) -> DataFrame:
    """Return the messages that are out of order, with the columns `OUT_OF_ORDER_COLUMNS`.

    `from_offset` and `to_offset` are the offset of the message or, if its fact has messages of other writers between
    its own, the first and last offset of the fact.

    Such messages are rare, so only the attempts and partitions in `disordered_attempts` are checked by message.

    Two kinds of messages come after a higher number, and are not out of order: a message sent later than all before it,
    because the task was repeated and its numbers restarted at 0; and a message with the number of an earlier one,
    because it is a copy, and counts as doubled.
    """
    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy("place")
    before = by_place.rowsBetween(Window.unboundedPreceding, -1)
    messages = explode_facts(facts.join(disordered_attempts(facts), ATTEMPT_PARTITION, "left_semi"))
    # newer: sent later than all messages before; highest: the highest number before; occurrence: 1 for the first
    # message with this number, 2 for the second.
    seen = messages.select(
        "*", F.expr("sent") > F.max("sent").over(before), F.max("number").over(before),
        F.row_number().over(Window.partitionBy(*ATTEMPT_PARTITION, "number").orderBy("place")),
    ).toDF(*messages.columns, "newer", "highest", "occurrence")  # fmt: skip
    # After a restart of the numbers, a message is compared only with the messages since the restart.
    with_restarts = seen.withColumn("restarts", F.sum(F.expr("if(newer and number < highest, 1, 0)")).over(by_place))
    by_restart = Window.partitionBy(*ATTEMPT_PARTITION, "restarts").orderBy("place")
    since_restart = by_restart.rowsBetween(Window.unboundedPreceding, -1)
    compared = with_restarts.withColumn("highest", F.max("number").over(since_restart))
    is_exact = "to_offset - from_offset = last - first"  # no messages of other writers lie within the fact
    return compared.where("number < highest and occurrence = 1").selectExpr(
        "topic", "partition", "minute", "writer", "number", "sent",
        f"if({is_exact}, from_offset + number - first, from_offset) as from_offset",
        f"if({is_exact}, from_offset + number - first, to_offset) as to_offset",
    )  # fmt: skip


def disordered_attempts(facts: DataFrame) -> DataFrame:
    """Return the `ATTEMPT_PARTITION` keys of the facts that are not in order.

    Facts are in order if the numbers and the places of each fact begin after those of the fact before.
    """
    stamped = facts.where("writer is not null")
    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy(F.expr("first + shift"))
    overlaps = (F.lag("last").over(by_place) >= F.col("first")) | (
        F.lag(F.expr("last + shift")).over(by_place) >= F.expr("first + shift")
    )
    marked = stamped.select(*ATTEMPT_PARTITION, overlaps.alias("overlaps"))
    return marked.where("overlaps").select(ATTEMPT_PARTITION).distinct()
