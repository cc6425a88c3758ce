"""Facts: what is in Kafka, in as few rows as the comparison needs.  Made by Spark's own expressions, no Python per row.

A fact is a *run*: messages of an attempt that follow each other in a partition, whose sequence numbers are neighbours,
and whose times are alike.  Their place is their number plus the same `shift`.  So from a fact each message's number
and place can be told (`exploded`), and what a task writes in one go into one partition is one row, whoever else writes.

A *place* is an offset as it would be if nobody else had written since the attempt began: places of an attempt are in
the order of its offsets, also in facts that were made of different parts of a topic.

Messages without a stamp of ours are counted by topic, partition and minute (of Kafka's timestamp); all else is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.ranges import expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["LANE", "SCHEMA", "exploded", "facts_of", "percentiles"]

LANE: Final = ["topic", "partition", "writer", "attempt"]
"""What keeps its order: the messages of an attempt in a partition."""
SCHEMA: Final = (
    "topic string, partition int, writer string, attempt int, minute long, sent long, latency_ms long, shift long, "
    "first long, last long, copies long"
)
"""`writer` is query/batch/partition; `sent` the stamp's time, `minute` the beginning of its minute, both in ms since
the epoch; `latency_ms` null unless the broker stamps the topic; `first` and `last` numbers of the run; `copies` its
messages."""
_LOG_APPEND_TIME: Final = 1
_LAST: Final = "try_element_at(headers, -1)"
"""The stamp is a message's last header."""
_ALIKE: Final = ["topic", "partition", "tail", "kafka_ms", "appended"]
_WORD: Final = 64
_ATTEMPT: Final = "try_cast(substring_index(name, '/', -1) as int)"


def facts_of(messages: DataFrame) -> DataFrame:
    """The facts about messages that have the columns of Spark's Kafka source; columns as in `SCHEMA`."""
    return _facts(_runs(_pieces(_words(_stamped(messages)))))


def _stamped(messages: DataFrame) -> DataFrame:
    """Per message no more than is needed to count it; `tail` is the stamp behind its number, null for no stamp of ours.

    A producer's timestamps count by the minute: they are needed only where there is no stamp.
    """
    stamps = messages.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as ms",
        f"timestampType = {_LOG_APPEND_TIME} as appended",
        f"if({_LAST}.key = 'bruce.stamp', {_LAST}.value, null) as stamp",
    )  # fmt: skip
    fields = stamps.selectExpr("*", "try_cast(cast(substring(stamp, 1, 16) as string) as bigint) as read")
    ours = fields.selectExpr("*", "if(read >= 0, read, null) as number")
    return ours.selectExpr(
        "topic", "partition", "if(appended, ms, ms - ms % 60000) as kafka_ms", "appended", "number",
        "if(number is null, null, substring(stamp, 18)) as tail",
        f"shiftright(number, {_WORD.bit_length() - 1}) as word", "offset - number as shift",
    )  # fmt: skip


def _words(stamped: DataFrame) -> DataFrame:
    """Messages that are alike and whose numbers lie in one word of 64: `bits` says which.

    This is what is done with every message, so there is no sorting in it, only a hash aggregate.  That the tail is
    binary keeps Spark from putting a small hash table before the large one, which hashes strings byte by byte.
    """
    return stamped.groupBy("topic", "partition", "tail", "kafka_ms", "appended", "shift", "word").agg(
        *expressions(
            "count(*) as copies", f"bit_or(shiftleft(1L, cast(number & {_WORD - 1} as int))) as bits",
            "min(number) as first", "max(number) as last",
        )
    )  # fmt: skip


def _pieces(words: DataFrame) -> DataFrame:
    """Words without a hole as they are; of others, each message.

    The messages of a piece are neighbours in the partition.  So pieces do not overlap there; `at` says where each lies.
    """
    alone = f"struct(word * {_WORD} + bit as first, word * {_WORD} + bit as last)"
    single = f"transform(filter(sequence(0, {_WORD - 1}), bit -> getbit(bits, bit) = 1), bit -> {alone})"
    whole = "word is null or copies = last - first + 1"
    return words.selectExpr(
        *_ALIKE, "shift", f"inline(if({whole}, array(struct(first, last)), {single})) as (first, last)",
        "copies as together",
    ).selectExpr(
        *_ALIKE, "substring(tail, 15) as author", "first", "last", "coalesce(last - first + 1, together) as copies",
        "first + shift as at",
    )  # fmt: skip


def _runs(pieces: DataFrame) -> DataFrame:
    """Pieces of an author that go on where his piece before them in the partition ended, as one; `place` is its first.

    What writers who take turns message by message send has gaps in its offsets, but none in its places.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    line = Window.partitionBy("topic", "partition", "author").orderBy("at")
    so_far = line.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    goes_on = F.lag("last").over(line) + 1 == F.col("first")
    for name in ("tail", "kafka_ms", "appended"):
        goes_on &= F.lag(name).over(line) == F.col(name)
    place = F.first("at").over(so_far) + F.sum("copies").over(so_far) - F.col("copies")
    placed = pieces.select("*", F.ifnull(goes_on, F.expr("false")).alias("goes_on"), place.alias("place"))
    told = placed.select("*", F.count_if(~F.col("goes_on")).over(so_far).alias("run"))
    return told.groupBy("topic", "partition", "author", "run").agg(
        *expressions(
            "first(tail) as tail", "first(kafka_ms) as kafka_ms", "first(appended) as appended",
            "min(first) as first", "max(last) as last", "min(place) as place", "sum(copies) as copies",
        )
    )  # fmt: skip


def _facts(runs: DataFrame) -> DataFrame:
    """Takes the tails apart.  What is none of ours is a writer that no ledger knows."""
    fields = runs.selectExpr(
        "*", "try_cast(cast(substring(tail, 1, 13) as string) as bigint) as sent",
        "make_valid_utf8(cast(author as string)) as name",
    )  # fmt: skip
    ours, moment = f"cast({_ATTEMPT} as string) = substring_index(name, '/', -1)", "coalesce(sent, kafka_ms)"
    return fields.selectExpr(
        "topic", "partition", f"if({ours}, regexp_replace(name, '/[^/]*$', ''), name) as writer",
        f"if({ours}, {_ATTEMPT}, if(name is null, null, 0)) as attempt", f"{moment} - {moment} % 60000 as minute",
        "sent", "if(appended, greatest(kafka_ms - sent, 0L), null) as latency_ms", "place - first as shift", "first",
        "last", "copies",
    )  # fmt: skip


def exploded(facts: DataFrame) -> DataFrame:
    """A row for each message of stamped facts: their columns, and its number and place."""
    numbered = facts.selectExpr("*", "explode(sequence(first, last)) as number")
    return numbered.selectExpr("*", "number + shift as place")


def percentiles(facts: DataFrame, by: Sequence[str]) -> DataFrame:
    """The columns `by`, then p50_ms and p99_ms from stamp to append; no row where no broker stamps."""
    timed = facts.where("latency_ms is not null").groupBy(*by)
    return timed.agg(
        *expressions(*(f"cast(percentile(latency_ms, {p / 100}, copies) as bigint) as p{p}_ms" for p in (50, 99)))
    )
