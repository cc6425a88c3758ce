"""Condense the contents of Kafka to facts, as few rows as the comparison needs, by Spark's own expressions.

A fact is a *run*: consecutive messages of an attempt in a partition, with neighbouring sequence numbers and equal
times. Each message's place is its number plus the run's `shift`. So a fact determines each message's number and place
(`exploded`). The messages that a task sends together to one partition are one row, even if other writers interleave.

A *place* is the offset that a message would have without the other writers' messages since the attempt began. Places of
an attempt are in the order of its offsets, also in facts that were made from different parts of a topic.

Messages without a stamp are counted by topic, partition and minute of Kafka's timestamp; all other columns are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.ranges import expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["LANE", "SCHEMA", "exploded", "facts_of", "percentiles"]

LANE: Final = ["topic", "partition", "writer", "attempt"]
"""The key of a lane: the messages of an attempt in a partition keep their order."""
SCHEMA: Final = (
    "topic string, partition int, writer string, attempt int, minute long, sent long, latency_ms long, shift long, "
    "first long, last long, copies long, from_offset long, to_offset long"
)
"""`writer` is query/batch/partition.

`sent` is the stamp's time and `minute` the start of its minute, both in ms since the epoch. `latency_ms` is null unless
the broker stamps the topic. `first` and `last` are numbers of the run, `copies` the count of its messages.
`from_offset` and `to_offset` are the offsets of its first and last message.
"""
_LOG_APPEND_TIME: Final = 1  # `timestampType` of Spark's Kafka source
_LAST: Final = "try_element_at(headers, -1)"
"""The stamp: a message's last header."""
_RUN_KEY: Final = ["topic", "partition", "tail", "kafka_ms", "appended"]
_WORD: Final = 64  # numbers of messages as bits of one 64-bit integer
_NUMBERS: Final = {"shift": "place - first", "first": "first", "last": "last"}
_ATTEMPT: Final = "try_cast(substring_index(name, '/', -1) as int)"


def facts_of(messages: DataFrame) -> DataFrame:
    """Return the facts (`SCHEMA`) about messages with the columns of Spark's Kafka source."""
    return _facts(_runs(_pieces(_words(_stamped(messages)))))


def _stamped(messages: DataFrame) -> DataFrame:
    """Return only the columns that the count needs; `tail` is the stamp behind its number, null without a stamp.

    Timestamps of producers are rounded to minutes, because only messages without a stamp need them.
    """
    stamps = messages.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as ms",
        f"timestampType = {_LOG_APPEND_TIME} as appended",
        f"if({_LAST}.key = 'bruce.stamp', {_LAST}.value, null) as stamp",
    )  # fmt: skip
    fields = stamps.selectExpr("*", "try_cast(cast(substring(stamp, 1, 16) as string) as bigint) as read")
    parsed = fields.selectExpr("*", "if(read >= 0, read, null) as number")
    return parsed.selectExpr(
        "topic", "partition", "if(appended, ms, ms - ms % 60000) as kafka_ms", "appended", "number",
        "if(number is null, null, substring(stamp, 18)) as tail",
        f"shiftright(number, {_WORD.bit_length() - 1}) as word", "offset - number as shift",
        "coalesce(number, offset) as counted",
    )  # fmt: skip


def _words(stamped: DataFrame) -> DataFrame:
    """Group equal messages with numbers in the same word of 64; `bits` has a bit for each number.

    Up to `_runs`, `first` and `last` of messages without a stamp are offsets.

    This step touches every message, so it is one hash aggregate without a sort. The tail is binary: for strings Spark
    would add a small hash table in front of the large one, which hashes strings byte by byte.
    """
    return stamped.groupBy("topic", "partition", "tail", "kafka_ms", "appended", "shift", "word").agg(
        *expressions(
            "count(*) as copies", f"bit_or(shiftleft(1L, cast(number & {_WORD - 1} as int))) as bits",
            "min(counted) as first", "max(counted) as last",
        )
    )  # fmt: skip


def _pieces(words: DataFrame) -> DataFrame:
    """Return gapless words whole, and the messages of other words one by one.

    The messages of a piece are neighbours in the partition. So pieces do not overlap there; `at` is the offset of a
    piece.
    """
    alone = f"struct(word * {_WORD} + bit as first, word * {_WORD} + bit as last)"
    single = f"transform(filter(sequence(0, {_WORD - 1}), bit -> getbit(bits, bit) = 1), bit -> {alone})"
    whole = "word is null or copies = last - first + 1"
    return words.selectExpr(
        *_RUN_KEY, "shift", f"inline(if({whole}, array(struct(first, last)), {single})) as (first, last)",
        "copies as together",
    ).selectExpr(
        *_RUN_KEY, "substring(tail, 15) as author", "first", "last",
        "if(tail is null, together, last - first + 1) as copies", "first + coalesce(shift, 0) as at",
    )  # fmt: skip


def _runs(pieces: DataFrame) -> DataFrame:
    """Join pieces that continue their author's previous piece in the partition; `place` is that of the first message.

    Writers that take turns message by message leave gaps in their offsets, but none in their places.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    by_offset = Window.partitionBy("topic", "partition", "author").orderBy("at")
    up_to_here = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    continues = F.lag("last").over(by_offset) + 1 == F.col("first")
    for name in ("tail", "kafka_ms", "appended"):
        continues &= F.lag(name).over(by_offset) == F.col(name)
    place = F.first("at").over(up_to_here) + F.sum("copies").over(up_to_here) - F.col("copies")
    placed = pieces.select("*", F.ifnull(continues, F.expr("false")).alias("continues"), place.alias("place"))
    numbered = placed.select("*", F.count_if(~F.col("continues")).over(up_to_here).alias("run"))
    return numbered.groupBy("topic", "partition", "author", "run").agg(
        *expressions(
            "first(tail) as tail", "first(kafka_ms) as kafka_ms", "first(appended) as appended",
            "min(first) as first", "max(last) as last", "min(place) as place", "sum(copies) as copies",
            "min(at) as from_offset", "max(at + last - first) as to_offset",
        )
    )  # fmt: skip


def _facts(runs: DataFrame) -> DataFrame:
    """Parse the tails; a foreign tail becomes a writer that is in no ledger."""
    fields = runs.selectExpr(
        "*", "try_cast(cast(substring(tail, 1, 13) as string) as bigint) as sent",
        "make_valid_utf8(cast(author as string)) as name",
    )  # fmt: skip
    has_attempt, time_ms = f"cast({_ATTEMPT} as string) = substring_index(name, '/', -1)", "coalesce(sent, kafka_ms)"
    return fields.selectExpr(
        "topic", "partition", f"if({has_attempt}, regexp_replace(name, '/[^/]*$', ''), name) as writer",
        f"if({has_attempt}, {_ATTEMPT}, if(name is null, null, 0)) as attempt",
        f"{time_ms} - {time_ms} % 60000 as minute",
        "sent", "if(appended, greatest(kafka_ms - sent, 0L), null) as latency_ms",
        *(f"if(tail is null, null, {value}) as {name}" for name, value in _NUMBERS.items()),
        "copies", "from_offset", "to_offset",
    )  # fmt: skip


def exploded(facts: DataFrame) -> DataFrame:
    """Return a row for each message of stamped facts: their columns, its number and its place."""
    numbered = facts.selectExpr("*", "explode(sequence(first, last)) as number")
    return numbered.selectExpr("*", "number + shift as place")


def percentiles(facts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the columns `by`, then p50_ms and p99_ms from stamp to append; no row if no broker stamps."""
    timed = facts.where("latency_ms is not null").groupBy(*by)
    return timed.agg(
        *expressions(*(f"cast(percentile(latency_ms, {p / 100}, copies) as bigint) as p{p}_ms" for p in (50, 99)))
    )
