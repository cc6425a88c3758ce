"""Read some of the messages with a problem from Kafka, each at its offset."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.spark.audit.kafka_source import read_at
from bruce_mp.spark.audit.tables import empty_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["SAMPLE_COLUMNS", "describe_samples", "sample_messages"]

_MAX_SHOWN_BYTES: Final = 200  # of a key or value in a line
_SCHEMA: Final = (
    "problem string, topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>"
)
SAMPLE_COLUMNS: Final = [column.split(" ")[0] for column in _SCHEMA.split(", ")]


def sample_messages(problems: DataFrame, options: Mapping[str, str], limit: int) -> DataFrame:
    """Return the first message of each range in `problems`, for at most `limit` ranges of each kind of problem.

    Ranges of absent messages are left out. `options` are options of Spark's Kafka source.
    """
    by_problem = Window.partitionBy("problem").orderBy("topic", "partition", "from_offset")
    # absent messages have no offset
    numbered = problems.where("from_offset is not null").withColumn("row", F.row_number().over(by_problem))
    spark = problems.sparkSession
    messages = [
        read_at(spark, options, row["topic"], row["partition"], row["from_offset"]).withColumn(
            "problem", F.lit(row["problem"])
        )
        for row in numbered.where(numbered["row"] <= limit).orderBy("problem", "row").collect()
    ]
    if not messages:
        return empty_table(spark, _SCHEMA)
    return reduce(lambda one, other: one.unionByName(other), messages).select(*SAMPLE_COLUMNS)


def describe_samples(samples: DataFrame) -> list[str]:
    """Return a line for each message, with the first bytes of its key and value."""
    rows = samples.orderBy("problem", "topic", "partition", "offset").collect()
    return [
        f"{row['problem']}: {row['topic']}/{row['partition']}@{row['offset']} {row['timestamp']:%Y-%m-%d %H:%M:%S} "
        f"key {_format_bytes(row['key'])} value {_format_bytes(row['value'])}"
        for row in rows
    ]


def _format_bytes(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = bytes(data[:_MAX_SHOWN_BYTES]).decode(errors="backslashreplace")
    return json.dumps(text, ensure_ascii=False) + ("..." if len(data) > _MAX_SHOWN_BYTES else "")
