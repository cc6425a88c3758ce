"""Describe the missing messages that Kafka may have deleted before the audit read the topics.

The brokers delete the oldest messages of a partition, after `retention.ms` for example, and the partition then begins
above offset 0. A ledger has neither partitions nor offsets, so the audit cannot know if a missing message was among the
deleted ones: it stays `missing`. A message was not deleted if its minute is after that of the first message in each
partition that begins above offset 0. And no more messages were deleted than the offsets before these first messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.tables import AuditTables, empty_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from bruce_mp.spark.kafka_admin import PartitionOffsets

__all__ = ["describe_deleted"]

_MAX_TOPICS: Final = 5
"""Maximum number of topics in the line."""
_EMPTIED_COLUMNS: Final = "topic string, partition int, begin long"
_DELETED: Final = {
    "first": """
        select topic, partition, min(from_offset) as begin, min_by(minute, from_offset) as minute
        from {facts} group by topic, partition
    """,
    "partitions": """
        select * from {first}
        union all select topic, partition, begin, null from {emptied} left anti join {first} using (topic, partition)
    """,
    "limits": """
        select topic, sum(begin) as deleted, if(count(minute) < count(*), null, max(minute)) as last_minute
        from {partitions} where begin > 0 group by topic
    """,
    "may_be_deleted": """
        select topic, least(sum(missing), min(deleted)) as messages
        from {balance} join {limits} using (topic)
        where missing > 0 and (last_minute is null or minute <= last_minute) group by topic
    """,
}
"""topic, messages (how many missing messages of the topic the brokers may have deleted).

In the queries, `begin` is the offset of a partition's first message, and `minute` the minute of this message, null for
a partition without messages. `last_minute` is the last minute of which messages may be deleted, null if any may be.
"""


def describe_deleted(
    balance: DataFrame, facts: DataFrame, partitions: Sequence[PartitionOffsets] | None
) -> tuple[str, ...]:
    """Return lines about the missing messages that the brokers may have deleted; messages must be missing.

    `facts` are about all messages that the brokers have. `partitions` are the present offsets of the topics, None if
    the brokers cannot be asked.
    """
    spark = facts.sparkSession
    # Only these partitions have no facts that show their first offset.
    emptied = [(each.topic, each.partition, each.begin) for each in partitions or () if each.begin == each.end > 0]
    with AuditTables(spark) as tables:
        tables.register("balance", balance)
        tables.register("facts", facts)
        tables.register(
            "emptied",
            spark.createDataFrame(emptied, _EMPTIED_COLUMNS) if emptied else empty_table(spark, _EMPTIED_COLUMNS),
        )
        rows = tables.query(_DELETED).orderBy("messages", ascending=False).collect()
    lines = []
    if rows:
        names = ", ".join(f"{row['topic']} {row['messages']:,}" for row in rows[:_MAX_TOPICS])
        rest = f" and {len(rows) - _MAX_TOPICS:,} more topics" if len(rows) > _MAX_TOPICS else ""
        lines.append(
            f"up to {sum(row['messages'] for row in rows):,} of the missing messages may have been deleted by Kafka's "
            f"retention before the audit could read them: {names}{rest}. They are not newer than the oldest message of "
            "a partition that begins above offset 0. Audit within the topic's retention.ms, or with --follow"
        )
    if partitions is None:
        lines.append(
            "the audit could not ask the brokers for the first offsets of partitions without messages: retention may "
            "have deleted missing messages there. Audit within the topic's retention.ms, or with --follow"
        )
    return tuple(lines)
