"""Reading topics, with Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_topics", "stream_topics"]

READER: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Twice as fast as the consumer's defaults; what retention has deleted meanwhile is no error of the audit's."""


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
