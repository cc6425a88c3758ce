"""The audit's tables: what was sent, what was discarded, what is in Kafka, and what that makes together.

All of them are DataFrames with `topic` and `minute`; nothing is collected.  A message counts once for the law

    sent = in Kafka once + discarded + missing

so `doubled` counts the copies beyond the first, and `unknown` what nobody entered into a ledger: messages of other
programs, and of attempts that Spark gave up.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["balance", "discarded", "found", "latencies", "out_of_order", "read_ledger", "sent"]

_LEDGER: Final = (
    "query string, batch long, partition int, attempt int, host string, acks string, attempt_rows long, topic string, "
    "minute long, rows long, delivered long, discarded map<string, long>, dead_letters long"
)
_KEY: Final = ["topic", "minute"]
_MINUTE_MS: Final = 60_000


def read_ledger(spark: SparkSession, directories: Sequence[str]) -> DataFrame:
    """The rows of ledgers, with `writer` as the stamps name it."""
    rows = spark.read.schema(_LEDGER).json(list(directories))
    return rows.selectExpr("*", "concat_ws('/', query, batch, partition) as writer")


def sent(ledger: DataFrame) -> DataFrame:
    """topic, minute, sent: what committed attempts sent."""
    return ledger.groupBy(_KEY).agg({"rows": "sum"}).withColumnRenamed("sum(rows)", "sent")


def discarded(lines: DataFrame) -> DataFrame:
    """topic, minute, discarded, reasons (map): what discard files say, duplicates left out."""
    counted = (
        lines.where("event = 'DISC' and topic is not null")
        .selectExpr("topic", f"time_ms - pmod(time_ms, {_MINUTE_MS}) as minute", "info")
        .groupBy([*_KEY, "info"])
        .count()
    )
    return counted.groupBy(_KEY).agg(
        *_expressions("sum(count) as discarded", "map_from_entries(collect_list(struct(info, count))) as reasons")
    )


def found(messages: DataFrame, ledger: DataFrame) -> DataFrame:
    """topic, minute, in_kafka, delivered, doubled, unknown.

    `delivered`: different messages of known writers; `doubled`: their copies beyond the first, attempts included.
    Messages without a stamp cannot be told apart: each counts as delivered.
    """
    known = ledger.select("writer").distinct().selectExpr("writer", "true as known")
    joined = messages.join(known, "writer", "left")
    plain = "sum(if(writer is null, 1, 0))"
    others = joined.groupBy(_KEY).agg(
        *_expressions(
            "count(*) as in_kafka",
            f"{plain} as plain",
            "sum(if(writer is not null and known is null, 1, 0)) as unknown",
        )
    )
    apart = _told_apart(joined.where("known"))
    return (
        others.join(apart, _KEY, "left")
        .fillna(0, ["different", "doubled"])
        .selectExpr(*_KEY, "in_kafka", "plain + different as delivered", "doubled", "unknown")
    )


def _told_apart(stamped: DataFrame) -> DataFrame:
    """topic, minute, different, doubled: by one bitmap for each writer's 32,768 sequence numbers and minute.

    A copy that came in another minute is found by joining a writer's bitmaps; it counts in the last of the minutes.
    """
    bucket = ["topic", "writer", "bucket"]
    numbered = stamped.selectExpr(
        *_KEY, "writer", "bitmap_bucket_number(sequence) as bucket", "bitmap_bit_position(sequence) as bit"
    )
    by_minute = (
        numbered.groupBy([*bucket, "minute"])
        .agg(*_expressions("count(*) as copies", "bitmap_construct_agg(bit) as bits"))
        .selectExpr("*", "bitmap_count(bits) as different")
    )
    across = by_minute.groupBy(bucket).agg(
        *_expressions("max(minute) as minute", "sum(different) - bitmap_count(bitmap_or_agg(bits)) as again")
    )
    corrected = by_minute.join(across, [*bucket, "minute"], "left").fillna(0, ["again"])
    return corrected.groupBy(_KEY).agg(
        *_expressions("sum(different - again) as different", "sum(copies - different + again) as doubled")
    )


def out_of_order(messages: DataFrame) -> DataFrame:
    """topic, minute, out_of_order: messages that stand behind a later one of their writer in the same partition.

    Copies of a message do not count: the first of each does.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    lane = Window.partitionBy("topic", "partition", "writer", "attempt").orderBy("offset")
    before = F.max("sequence").over(lane.rowsBetween(Window.unboundedPreceding, -1))
    first = F.row_number().over(
        Window.partitionBy("topic", "partition", "writer", "attempt", "sequence").orderBy("offset")
    )
    late = messages.where("writer is not null").withColumn("before", before).withColumn("copy", first)
    counted = late.where("copy = 1 and sequence < before").groupBy(_KEY).count()
    return counted.withColumnRenamed("count", "out_of_order")


def latencies(messages: DataFrame) -> DataFrame:
    """topic, minute, p50_ms, p99_ms: from the stamp to the broker's append; only where the broker stamps its time."""
    return (
        messages.where("appended and sent_ms is not null")
        .groupBy(_KEY)
        .agg(
            *_expressions(
                "percentile_approx(kafka_ms - sent_ms, 0.5) as p50_ms",
                "percentile_approx(kafka_ms - sent_ms, 0.99) as p99_ms",
            )
        )
    )


def balance(parts: Sequence[DataFrame]) -> DataFrame:
    """All tables side by side, with `missing` (never below 0) and `verdict`: balanced, lost, doubled or disordered."""
    joined = reduce(lambda left, right: left.join(right, _KEY, "full"), parts)
    zeros = joined.fillna(0, ["sent", "in_kafka", "delivered", "doubled", "unknown", "discarded", "out_of_order"])
    missing = "greatest(sent - delivered - discarded, 0) as missing"
    verdict = """
        concat_ws(', ', if(missing > 0, 'lost', null), if(doubled > 0, 'doubled', null),
                  if(out_of_order > 0, 'out of order', null)) as problems
    """
    return zeros.selectExpr("*", missing).selectExpr("*", verdict)


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return [F.expr(text) for text in texts]
