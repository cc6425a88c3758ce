"""Find the messages that are out of order, which means after a message with a higher number in Kafka.

Only messages of the same attempt and the same partition are compared. Facts and places are explained in `facts.py`.
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
    """Return each message that comes after a message with a higher number of its attempt and partition.

    The columns are `OUT_OF_ORDER_COLUMNS`. The offsets are those of the message; if messages of other writers lie
    within the message's fact, they are those of the whole fact.

    Such messages are rare. So only the attempts and partitions that `disordered_attempts` finds by their facts are
    checked message by message.

    Two kinds of messages with smaller numbers are not out of order. The first was sent later than all messages before
    it: the task was repeated, and has restarted its numbers at 0. The second has a number that came before: it is a
    copy, which counts as doubled.
    """
    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy("place")
    before = by_place.rowsBetween(Window.unboundedPreceding, -1)
    messages = explode_facts(facts.join(disordered_attempts(facts), ATTEMPT_PARTITION, "left_semi"))
    # newer: sent later than all messages before; highest: the highest number before; copy: 1 for the first message
    # with a number, 2 for the second and so on.
    seen = messages.select(
        "*", F.expr("sent") > F.max("sent").over(before), F.max("number").over(before),
        F.row_number().over(Window.partitionBy(*ATTEMPT_PARTITION, "number").orderBy("place")),
    ).toDF(*messages.columns, "newer", "highest", "copy")  # fmt: skip
    # After a restart of the numbers, a message is compared only with the messages since the restart.
    restarts = seen.withColumn("restarts", F.sum(F.expr("if(newer and number < highest, 1, 0)")).over(by_place))
    by_restart = Window.partitionBy(*ATTEMPT_PARTITION, "restarts").orderBy("place")
    since_restart = by_restart.rowsBetween(Window.unboundedPreceding, -1)
    compared = restarts.withColumn("highest", F.max("number").over(since_restart))
    is_exact = "to_offset - from_offset = last - first"  # no messages of other writers lie within the fact
    return compared.where("number < highest and copy = 1").selectExpr(
        "topic", "partition", "minute", "writer", "number", "sent",
        f"if({is_exact}, from_offset + number - first, from_offset) as from_offset",
        f"if({is_exact}, from_offset + number - first, to_offset) as to_offset",
    )  # fmt: skip


def disordered_attempts(facts: DataFrame) -> DataFrame:
    """Return the keys (`ATTEMPT_PARTITION`) of the attempts and partitions with facts that are not in order.

    Facts are in order if each fact begins after the end of the fact before, by numbers and also by places
    (number + `shift`).
    """
    stamped = facts.where("writer is not null")
    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy(F.expr("first + shift"))
    overlaps = (F.lag("last").over(by_place) >= F.col("first")) | (
        F.lag(F.expr("last + shift")).over(by_place) >= F.expr("first + shift")
    )
    marked = stamped.select(*ATTEMPT_PARTITION, overlaps.alias("overlaps"))
    return marked.where("overlaps").select(ATTEMPT_PARTITION).distinct()
