"""Condense the contents of Kafka to facts, which are as few rows as the comparison needs, with Spark's own expressions.

The *stamp* of a message is the record header `bruce.stamp`. It has the message's *writer* (a Spark task), the attempt
of the task, the message's sequence number in the attempt, and the time of sending. A *fact* is a row about messages of
one attempt in one partition with neighboring numbers and equal times. Messages of other writers may lie between them.

The *place* of a message is the offset of its attempt's first message in the partition, plus the count of the attempt's
messages before it. So places are in the order of offsets, but have no gaps where messages of other writers lie.

In `follow.py`, each micro-batch counts the places of an attempt from the first message that it reads itself. The places
of a later micro-batch are still higher: they begin at an offset above all offsets of the earlier micro-batch, and the
place of a message is never above the message's offset.

For all messages of a fact, the place is the number plus the fact's `shift`. So a fact determines number and place of
each of its messages (`explode_facts`).

A fact about messages without a stamp counts those of one topic, partition and minute of Kafka's timestamp. Its columns
about the stamp are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.spark.expressions import expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["ATTEMPT_PARTITION", "SCHEMA", "explode_facts", "facts_of", "percentiles"]

ATTEMPT_PARTITION: Final = ["topic", "partition", "writer", "attempt"]
"""The key of an attempt's messages in one partition, which keep their order."""
SCHEMA: Final = (
    "topic string, partition int, writer string, attempt int, minute long, sent long, latency_ms long, shift long, "
    "first long, last long, copies long, from_offset long, to_offset long"
)
"""`writer` is query/batch/partition, `attempt` Spark's number of the attempt.

`sent` is the stamp's time and `minute` the start of its minute, both in ms since the epoch. `latency_ms` is the time
from the stamp to the append by Kafka, null if there is no stamp, or the topic does not use `LogAppendTime`. `first` and
`last` are the numbers of the fact's first and last message, `from_offset` and `to_offset` are the offsets of these two
messages, and `copies` is the count of the fact's messages.
"""
_LOG_APPEND_TIME: Final = 1  # a value of `timestampType` of Spark's Kafka source
_LAST_HEADER: Final = "try_element_at(headers, -1)"
"""The header that may be a stamp.

The value of a stamp is 16 digits (the number), a space, and the *tail*, which is 13 digits (the time), a space, and the
*author*. The author is `TaskAttempt.author`: the writer, a slash and the attempt.
"""
_PIECE_KEY: Final = ["topic", "partition", "tail", "kafka_ms", "is_append_time"]
"""Columns that are equal for all messages of a *piece*, which is a part of a fact (`_split_at_gaps`)."""
_NUMBERS_PER_BLOCK: Final = 64
"""How many neighboring sequence numbers, a *block*, are counted together as bits of an integer; a power of 2."""
_NUMBER_COLUMNS: Final = {"shift": "place - first", "first": "first", "last": "last"}
"""Columns of `SCHEMA` that are null without a stamp, each with the expression for stamped messages."""
_ATTEMPT: Final = "try_cast(substring_index(name, '/', -1) as int)"
"""The attempt at the end of `name`, the text of an author; null for text of another form."""


def facts_of(messages: DataFrame) -> DataFrame:
    """Return the facts (`SCHEMA`) about messages with the columns of Spark's Kafka source."""
    pieces = _split_at_gaps(_count_blocks(_read_stamps(messages)))
    return _parse_tails(_join_pieces(pieces))


def _read_stamps(messages: DataFrame) -> DataFrame:
    """Return only the columns that `_count_blocks` needs; `number` and `tail` are null without a stamp.

    Kafka's timestamps are rounded down to minutes, except the timestamps that are needed for the latency of stamped
    messages.
    """
    stamps = messages.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as ms",
        f"timestampType = {_LOG_APPEND_TIME} as is_append_time",
        f"if({_LAST_HEADER}.key = 'bruce.stamp', {_LAST_HEADER}.value, null) as stamp",
    )  # fmt: skip
    fields = stamps.selectExpr("*", "try_cast(cast(substring(stamp, 1, 16) as string) as bigint) as any_number")
    parsed = fields.selectExpr("*", "if(any_number >= 0, any_number, null) as number")
    return parsed.selectExpr(
        "topic", "partition", "is_append_time", "number",
        "if(is_append_time and number is not null, ms, ms - ms % 60000) as kafka_ms",
        "if(number is null, null, substring(stamp, 18)) as tail",
        f"shiftright(number, {_NUMBERS_PER_BLOCK.bit_length() - 1}) as block", "offset - number as offset_shift",
        "coalesce(number, offset) as number_or_offset",
    )  # fmt: skip


def _count_blocks(stamped: DataFrame) -> DataFrame:
    """Count the messages with equal columns and with numbers in the same block; `bits` has a bit for each number.

    From here to `_join_pieces`, `first` and `last` are sequence numbers; for messages without a stamp they are offsets.

    This step touches every message, so it is one hash aggregate without a sort. The tail is binary and not a string,
    because for strings Spark adds a small hash table before the large one, which hashes strings byte by byte.
    """
    return stamped.groupBy("topic", "partition", "tail", "kafka_ms", "is_append_time", "offset_shift", "block").agg(
        *expressions(
            "count(*) as copies", f"bit_or(shiftleft(1L, cast(number & {_NUMBERS_PER_BLOCK - 1} as int))) as bits",
            "min(number_or_offset) as first", "max(number_or_offset) as last",
        )
    )  # fmt: skip


def _split_at_gaps(blocks: DataFrame) -> DataFrame:
    """Return one piece for each block without gaps, and one piece for each message of a block with gaps.

    So the pieces of an author do not overlap in a partition. `start_offset` is the offset of a piece's first message.
    """
    one = f"struct(block * {_NUMBERS_PER_BLOCK} + bit as first, block * {_NUMBERS_PER_BLOCK} + bit as last)"
    singles = f"transform(filter(sequence(0, {_NUMBERS_PER_BLOCK - 1}), bit -> getbit(bits, bit) = 1), bit -> {one})"
    gapless = "block is null or copies = last - first + 1"  # null: messages without a stamp
    return blocks.selectExpr(
        *_PIECE_KEY, "offset_shift", f"inline(if({gapless}, array(struct(first, last)), {singles})) as (first, last)",
        "copies as block_copies",
    ).selectExpr(
        *_PIECE_KEY, "substring(tail, 15) as author", "first", "last",
        "if(tail is null, block_copies, last - first + 1) as copies",
        "first + coalesce(offset_shift, 0) as start_offset",
    )  # fmt: skip


def _join_pieces(pieces: DataFrame) -> DataFrame:
    """Join each piece with the author's previous piece in the partition, if its numbers continue the previous ones.

    `place` is the place of a piece's first message. It is needed because writers that take turns message by message
    have gaps in their offsets, but none in their places.
    """
    by_offset = Window.partitionBy("topic", "partition", "author").orderBy("start_offset")
    up_to_here = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    continues = F.lag("last").over(by_offset) + 1 == F.col("first")
    for name in ("tail", "kafka_ms", "is_append_time"):
        continues &= F.lag(name).over(by_offset) == F.col(name)
    place = F.first("start_offset").over(up_to_here) + F.sum("copies").over(up_to_here) - F.col("copies")
    placed = pieces.select("*", F.ifnull(continues, F.expr("false")).alias("continues"), place.alias("place"))
    numbered = placed.select("*", F.count_if(~F.col("continues")).over(up_to_here).alias("fact"))
    return numbered.groupBy("topic", "partition", "author", "fact").agg(
        *expressions(
            "first(tail) as tail", "first(kafka_ms) as kafka_ms", "first(is_append_time) as is_append_time",
            "min(first) as first", "max(last) as last", "min(place) as place", "sum(copies) as copies",
            "min(start_offset) as from_offset", "max(start_offset + last - first) as to_offset",
        )
    )  # fmt: skip


def _parse_tails(joined: DataFrame) -> DataFrame:
    """Return the columns of `SCHEMA`. An author that does not end with an attempt becomes a writer in no ledger."""
    fields = joined.selectExpr(
        "*", "try_cast(cast(substring(tail, 1, 13) as string) as bigint) as sent",
        "make_valid_utf8(cast(author as string)) as name",
    )  # fmt: skip
    has_attempt, time_ms = f"cast({_ATTEMPT} as string) = substring_index(name, '/', -1)", "coalesce(sent, kafka_ms)"
    return fields.selectExpr(
        "topic", "partition", f"if({has_attempt}, regexp_replace(name, '/[^/]*$', ''), name) as writer",
        f"if({has_attempt}, {_ATTEMPT}, if(name is null, null, 0)) as attempt",
        f"{time_ms} - {time_ms} % 60000 as minute",
        "sent", "if(is_append_time, greatest(kafka_ms, sent) - sent, null) as latency_ms",
        *(f"if(tail is null, null, {value}) as {name}" for name, value in _NUMBER_COLUMNS.items()),
        "copies", "from_offset", "to_offset",
    )  # fmt: skip


def explode_facts(facts: DataFrame) -> DataFrame:
    """Return a row for each message of facts about stamped messages: the fact's columns, `number` and `place`."""
    numbered = facts.selectExpr("*", "explode(sequence(first, last)) as number")
    return numbered.selectExpr("*", "number + shift as place")


def percentiles(facts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the columns `by`, and the percentiles p50_ms and p99_ms of the latency from stamp to append.

    Groups of facts without latencies have no row.
    """
    timed = facts.where("latency_ms is not null").groupBy(*by)
    return timed.agg(
        *expressions(*(f"cast(percentile(latency_ms, {p / 100}, copies) as bigint) as p{p}_ms" for p in (50, 99)))
    )
