"""Read topics with Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.settings import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["READER", "read_topics", "stream_topics"]

READER: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Options of the consumer: they read twice as fast as the defaults, and retention may delete messages during the read.
"""

_FIRST_VERSION: Final = "spark.sql.sources.useV1SourceList"


def read_topics(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read all messages of the topics, or those that `options` of Spark's Kafka source select (`startingOffsets`, ...).

    The read uses version 2 of Spark's data source API, as streams do. For batches Spark would use version 1, which
    converts each message to an object and back to a row; that takes as long as all other work.
    """
    first = str(spark.conf.get(_FIRST_VERSION)).split(",")
    with settings(spark, {_FIRST_VERSION: ",".join(name for name in first if name.strip() != "kafka")}):
        return spark.read.format("kafka").options(**_options(bootstrap, topics, options)).load()


def stream_topics(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Read the topics as a stream, from their beginning unless `options` say otherwise."""
    start = {"startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**start, **_options(bootstrap, topics, options)).load()


def _options(bootstrap: str, topics: Sequence[str], options: Mapping[str, str] | None) -> dict[str, str]:
    places = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics)}
    return {**READER, **places, **(options or {})}
