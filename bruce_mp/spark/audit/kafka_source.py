"""Read topics with Spark's Kafka source, and explain its failure at records that the brokers do not return."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import BruceError
from bruce_mp.spark.session import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bruce_mp.spark.kafka_admin import PartitionOffsets

__all__ = ["CONSUMER_OPTIONS", "MissingRecordsError", "find_missing_offset", "read_at", "read_topics", "stream_topics"]

CONSUMER_OPTIONS: Final = {
    "includeHeaders": "true",
    "failOnDataLoss": "false",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "5000",
}
"""Options of the source. The sizes double its speed; a read continues (`failOnDataLoss`) if retention deletes messages.
"""

_V1_SOURCES: Final = "spark.sql.sources.useV1SourceList"
_ERROR_OF_SPARK: Final = re.compile(r"Cannot fetch record for offset (\d+) in \d+ milliseconds")


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


class MissingRecordsError(BruceError):
    """A partition has no records from an offset on, although it ends later.

    A Kafka consumer waits at such an offset, and Spark's source gives up after a time limit with an error that names
    only the offset.
    """

    def __init__(self, offset: int, partitions: Sequence[PartitionOffsets]) -> None:
        """`partitions` are all those of the audited topics; empty if the brokers do not tell."""
        having = [each for each in partitions if each.begin <= offset < each.end]
        names = " or ".join(f"topic {each.topic}, partition {each.partition} (to {each.end - 1})" for each in having)
        before = _offsets_before(offset, having, partitions)
        super().__init__(
            f"The brokers did not return the record at offset {offset} in time: {names or 'unknown partition'}. Either "
            "they are slow: wait longer with --kafka kafkaConsumer.pollTimeoutMs=MS. Or the last records are lost: "
            f"audit those before, with --kafka endingOffsets={before}; the further messages in the ledgers then count "
            "as missing."
        )


def _offsets_before(offset: int, having: Sequence[PartitionOffsets], all_of: Sequence[PartitionOffsets]) -> str:
    """Return the value of `endingOffsets` in quotes; -1 is a partition's end."""
    if len(having) != 1:
        return f"..., where the partition has {offset}"
    ends: dict[str, dict[int, int]] = {}
    for each in all_of:
        ends.setdefault(each.topic, {})[each.partition] = offset if each is having[0] else -1
    return f"'{json.dumps(ends, separators=(',', ':'))}'"


def find_missing_offset(error: Exception) -> int | None:
    """Return the offset if the error of Spark is about a record that the brokers do not return."""
    found = _ERROR_OF_SPARK.search(str(error))
    return None if found is None else int(found[1])
