"""Read topics with Spark's Kafka source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.session import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CONSUMER_OPTIONS", "read_at", "read_topics", "stream_topics"]

CONSUMER_OPTIONS: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Options of the source. The sizes double its speed; a read continues (`failOnDataLoss`) if retention deletes messages.
"""

_V1_SOURCES: Final = "spark.sql.sources.useV1SourceList"


def read_topics(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> DataFrame:
    """Read all messages of the topics, or a selection by `options` of Spark's Kafka source, which name the brokers.

    The read uses version 2 of Spark's data source API, as streams do. Spark's default for batches is version 1, which
    converts each message to an object and back to a row, and so doubles the time.
    """
    v1_sources = str(spark.conf.get(_V1_SOURCES)).split(",")
    with temporary_settings(spark, {_V1_SOURCES: ",".join(name for name in v1_sources if name.strip() != "kafka")}):
        return spark.read.format("kafka").options(**_with_topics(options, topics)).load()


def stream_topics(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> DataFrame:
    """Read the topics as a stream, from their beginning unless `options` say otherwise."""
    chosen = {"startingOffsets": "earliest", **_with_topics(options, topics)}
    return spark.readStream.format("kafka").options(**chosen).load()


def read_at(spark: SparkSession, options: Mapping[str, str], topic: str, partition: int, offset: int) -> DataFrame:
    """Read the message at an offset; `options` name the brokers."""
    at = {
        "assign": json.dumps({topic: [partition]}),
        "startingOffsets": json.dumps({topic: {partition: offset}}),
        "endingOffsets": json.dumps({topic: {partition: offset + 1}}),
    }
    return spark.read.format("kafka").options(**{**CONSUMER_OPTIONS, **options, **at}).load()


def _with_topics(options: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    return {**CONSUMER_OPTIONS, "subscribe": ",".join(topics), **options}
