"""Reading topics, with no more of each message than the audit needs.

Columns: topic, partition, kafka_ms (the broker's or the producer's timestamp, by the topic's setting), appended
(whether it is the broker's), and stamp (null without one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["columns", "read_topics", "stream_topics"]

READER: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Twice as fast as the consumer's defaults; what retention has deleted meanwhile is no error of the audit's."""
_LOG_APPEND_TIME: Final = 1
_LAST: Final = "try_element_at(headers, -1)"
"""The stamp is a message's last header."""


def read_topics(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Everything in the topics, or what `options` of Spark's Kafka source choose (`startingOffsets`, ...)."""
    return spark.read.format("kafka").options(**_options(bootstrap, topics, options)).load()


def stream_topics(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """The same as a stream, from the beginning of the topics unless `options` say otherwise."""
    start = {"startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**start, **_options(bootstrap, topics, options)).load()


def _options(bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None) -> dict[str, str]:
    places = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    return {**READER, **places, **(options or {})}


def columns(messages: DataFrame) -> DataFrame:
    """The columns above, from those of Spark's Kafka source, batch or stream."""
    return messages.selectExpr(
        "topic", "partition", "unix_millis(timestamp) as kafka_ms", f"timestampType = {_LOG_APPEND_TIME} as appended",
        f"if({_LAST}.key = 'bruce.stamp', {_LAST}.value, null) as stamp",
    )  # fmt: skip
