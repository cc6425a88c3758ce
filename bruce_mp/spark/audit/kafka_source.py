"""Read topics with Spark's Kafka source, and explain its error about records that the brokers do not return."""

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
"""Options of Spark's Kafka source, which the user's options override.

The two limits of a fetch double the speed of Spark's defaults. With `failOnDataLoss` false, the read continues if the
brokers delete messages that it has not reached yet.
"""

_V1_SOURCES: Final = "spark.sql.sources.useV1SourceList"
"""The setting that lists the sources which batches read by version 1 of Spark's data source API."""
_MISSING_RECORD_TEXT: Final = re.compile(r"Cannot fetch record for offset (\d+) in \d+ milliseconds")
"""Part of the error of Spark's Kafka source about a record that the brokers do not return."""


def read_topics(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> DataFrame:
    """Read the messages of the topics. `options` name the brokers, and may limit the offsets or times to read.

    The read uses version 2 of Spark's data source API, as streams do. Spark's default for batches is version 1, which
    converts each message to an object and back to a row, and so takes twice the time.
    """
    v1_sources = str(spark.conf.get(_V1_SOURCES)).split(",")
    with temporary_settings(spark, {_V1_SOURCES: ",".join(name for name in v1_sources if name.strip() != "kafka")}):
        return spark.read.format("kafka").options(**_with_topics(options, topics)).load()


def stream_topics(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> DataFrame:
    """Read the topics as a stream, from their first message unless `options` have `startingOffsets`."""
    chosen = {"startingOffsets": "earliest", **_with_topics(options, topics)}
    return spark.readStream.format("kafka").options(**chosen).load()


def read_at(spark: SparkSession, options: Mapping[str, str], topic: str, partition: int, offset: int) -> DataFrame:
    """Read the message at an offset; `options` name the brokers."""
    one_record = {
        "assign": json.dumps({topic: [partition]}),
        "startingOffsets": json.dumps({topic: {partition: offset}}),
        "endingOffsets": json.dumps({topic: {partition: offset + 1}}),
    }
    return spark.read.format("kafka").options(**{**CONSUMER_OPTIONS, **options, **one_record}).load()


def _with_topics(options: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    return {**CONSUMER_OPTIONS, "subscribe": ",".join(topics), **options}


class MissingRecordsError(BruceError):
    """The brokers return no records at or after an offset, although the end of the partition is higher.

    Spark's source gives up after a time limit, with an error that names only the offset. So the partition remains
    unknown if several partitions have this offset.
    """

    def __init__(self, offset: int, partitions: Sequence[PartitionOffsets]) -> None:
        """`partitions` are all partitions of the audited topics; empty if the brokers do not answer."""
        candidates = [each for each in partitions if each.begin <= offset < each.end]
        names = " or ".join(
            f"topic {each.topic}, partition {each.partition} (to {each.end - 1})" for each in candidates
        )
        ending_offsets = _format_ending_offsets(offset, candidates, partitions)
        super().__init__(
            f"The brokers did not return the record at offset {offset} in time: {names or 'unknown partition'}. Either "
            "they are slow: wait longer with --kafka kafkaConsumer.pollTimeoutMs=MS. Or the last records of the "
            f"partition are lost: audit only those before, with --kafka endingOffsets={ending_offsets}; all other "
            "messages in the ledgers then count as missing."
        )


def _format_ending_offsets(
    offset: int, candidates: Sequence[PartitionOffsets], partitions: Sequence[PartitionOffsets]
) -> str:
    """Return the value of `endingOffsets`: `offset` for the only candidate, and -1 (the end) for other partitions.

    If there are several candidates, return words that describe the value.
    """
    if len(candidates) != 1:
        return f"..., where the partition has {offset}"
    ends: dict[str, dict[int, int]] = {}
    for each in partitions:
        ends.setdefault(each.topic, {})[each.partition] = offset if each is candidates[0] else -1
    return f"'{json.dumps(ends, separators=(',', ':'))}'"


def find_missing_offset(error: Exception) -> int | None:
    """Return the offset if this error of Spark is about a record that the brokers do not return, else None."""
    found = _MISSING_RECORD_TEXT.search(str(error))
    return None if found is None else int(found[1])
