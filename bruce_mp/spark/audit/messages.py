"""What is in Kafka, as a table: one row a message, with what its stamp says.

Columns: topic, partition, offset, kafka_ms (the broker's or the producer's timestamp, by the topic's setting), appended
(whether it is the broker's), writer (query/batch/partition, null without a stamp), attempt, sequence, sent_ms, and
minute: of sent_ms, or of kafka_ms for messages without a stamp; in ms since the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["land", "parsed", "read_topics"]

_READER: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Twice as fast as the consumer's defaults; what retention has deleted meanwhile is no error of the audit's."""
_STAMP: Final = "filter(headers, h -> h.key = 'bruce.stamp')[0].value"
_LOG_APPEND_TIME: Final = 1
_LONG: Final = "cast(conv(hex(substring(stamp, {}, 8)), 16, -10) as bigint)"
_MINUTE_MS: Final = 60_000


def read_topics(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Everything in the topics, or what `options` of Spark's Kafka source choose (`startingOffsets`, ...)."""
    reader = spark.read.format("kafka").options(**_READER).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", ",".join(topics)).options(**(options or {})).load()


def parsed(messages: DataFrame) -> DataFrame:
    """The columns above, from those of Spark's Kafka source, batch or stream."""
    raw = messages.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as kafka_ms",
        f"timestampType = {_LOG_APPEND_TIME} as appended", f"{_STAMP} as stamp",
    )  # fmt: skip
    stamped = raw.selectExpr(
        "topic", "partition", "offset", "kafka_ms", "appended", f"{_LONG.format(1)} as sequence",
        f"{_LONG.format(9)} as sent_ms", "split(cast(substring(stamp, 17) as string), '/') as parts",
    )  # fmt: skip
    named = stamped.selectExpr(
        "topic", "partition", "offset", "kafka_ms", "appended", "sequence", "sent_ms",
        "concat_ws('/', slice(parts, 1, 3)) as writer", "cast(get(parts, 3) as int) as attempt",
    )  # fmt: skip
    minute = f"coalesce(sent_ms, kafka_ms) - pmod(coalesce(sent_ms, kafka_ms), {_MINUTE_MS})"
    return named.selectExpr(
        "topic", "partition", "offset", "kafka_ms", "appended", "if(sequence is null, null, writer) as writer",
        "attempt", "sequence", "sent_ms", f"{minute} as minute",
    )  # fmt: skip


def land(messages: DataFrame, directory: str) -> DataFrame:
    """Write the parsed messages as Parquet, and read them from there: each report then costs a fraction of Kafka's."""
    parsed(messages).write.mode("overwrite").option("compression", "zstd").parquet(directory)
    return messages.sparkSession.read.parquet(directory)
