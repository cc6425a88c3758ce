"""Condense the messages in Kafka to facts: few rows, but all that a comparison with the ledgers needs.

The *stamp* of a message is the record header `bruce.stamp`. It has the message's *writer* (a Spark task), the attempt
of the task, the message's sequence number in the attempt (its *number*), and the time of sending. A *fact* is a row
about messages of one attempt in one partition, with successive numbers and equal times. Messages of other writers may
lie between their offsets.

The *place* of a message is the offset of its attempt's first message in the partition, plus the count of the attempt's
messages before it. So places have the order of offsets, but no gaps for the messages of other writers. The place of
each message of a fact is its number plus the fact's `shift`.

`follow.py` counts places anew in each micro-batch, from the first message of the attempt in this micro-batch. The order
remains: the places of a later micro-batch begin at an offset above all offsets of the earlier one, and no place is
above the offset of its message.

The messages without a stamp have one fact for each topic, partition and minute of Kafka's timestamp. The columns about
the stamp are null in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.spark.expressions import expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = [
    "ATTEMPT",
    "ATTEMPT_PARTITION",
    "SCHEMA",
    "STAMP",
    "WRITER",
    "explode_facts",
    "facts_of",
    "latency_percentiles",
]

ATTEMPT_PARTITION: Final = ["topic", "partition", "writer", "attempt"]
"""The key of the messages of one attempt in one partition; only such messages have an order."""
SCHEMA: Final = (
    "topic string, partition int, writer string, attempt int, minute long, sent long, latency_ms long, shift long, "
    "first long, last long, copies long, from_offset long, to_offset long"
)
"""The columns of facts.

`writer` is query/batch/partition, `attempt` Spark's number of the attempt. `sent` is the stamp's time and `minute` the
start of its minute, both in ms since the epoch. `latency_ms` is the time from the stamp to the append by Kafka, null if
there is no stamp, or the topic does not use `LogAppendTime`. The fact's first message has the number `first` and the
offset `from_offset`, its last message `last` and `to_offset`. `copies` is the number of its messages.
"""
_LOG_APPEND_TIME: Final = 1  # a value of `timestampType` of Spark's Kafka source
_LAST_HEADER: Final = "try_element_at(headers, -1)"
"""The header that is the stamp, if the message has one.

The value of a stamp is 16 digits (the number), a space, and the *tail*: 13 digits (the time), a space, and the
*author*. The author is `TaskAttempt.author`: the writer, a slash and the attempt.
"""
STAMP: Final = f"if({_LAST_HEADER}.key = 'bruce.stamp', {_LAST_HEADER}.value, null) as stamp"
"""SQL for the stamp, from a column `headers` as that of Spark's Kafka source."""
_PIECE_KEY: Final = ["topic", "partition", "tail", "kafka_ms", "is_append_time"]
"""Columns that are equal for all messages of a *piece*, which is a part of a fact (`_split_at_gaps`)."""
_NUMBERS_PER_BLOCK: Final = 64
"""Length of a *block* of successive numbers, which are counted together, as the bits of one integer; a power of 2."""
_NUMBER_COLUMNS: Final = {"shift": "place - first", "first": "first", "last": "last"}
"""Columns of `SCHEMA`, each with its expression for stamped messages; for messages without a stamp they are null."""
ATTEMPT: Final = "try_cast(substring_index(name, '/', -1) as int)"
"""SQL for the attempt, which is at the end of the author's text `name`; null if the text has no number there."""
_HAS_ATTEMPT: Final = f"cast({ATTEMPT} as string) = substring_index(name, '/', -1)"
WRITER: Final = f"if({_HAS_ATTEMPT}, regexp_replace(name, '/[^/]*$', ''), name)"
"""SQL for the writer in the author's text `name`; the whole author if it has no attempt."""


def facts_of(messages: DataFrame) -> DataFrame:
    """Return the facts (`SCHEMA`) about messages with the columns of Spark's Kafka source."""
    pieces = _split_at_gaps(_count_blocks(_read_stamps(messages)))
    return _parse_tails(_join_pieces(pieces))


def _read_stamps(messages: DataFrame) -> DataFrame:
    """Return only the columns that `_count_blocks` needs; `number` and `tail` are null without a stamp.

    `kafka_ms` is Kafka's timestamp, rounded down to a minute unless the latency is computed from it.
    """
    stamps = messages.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as timestamp_ms",
        f"timestampType = {_LOG_APPEND_TIME} as is_append_time",
        STAMP,
    )  # fmt: skip
    fields = stamps.selectExpr("*", "try_cast(cast(substring(stamp, 1, 16) as string) as bigint) as signed_number")
    parsed = fields.selectExpr("*", "if(signed_number >= 0, signed_number, null) as number")
    return parsed.selectExpr(
        "topic", "partition", "is_append_time", "number",
        "if(is_append_time and number is not null, timestamp_ms, timestamp_ms - timestamp_ms % 60000) as kafka_ms",
        "if(number is null, null, substring(stamp, 18)) as tail",
        f"shiftright(number, {_NUMBERS_PER_BLOCK.bit_length() - 1}) as block", "offset - number as offset_shift",
        "coalesce(number, offset) as number_or_offset",
    )  # fmt: skip


def _count_blocks(stamped: DataFrame) -> DataFrame:
    """Count the messages with equal columns and with numbers in the same block; `bits` has a bit for each number.

    From here to `_join_pieces`, `first` and `last` of messages without a stamp are offsets, not numbers.

    This step reads every message, so it is one hash aggregate without a sort. The tail is binary, because for strings
    Spark puts a small hash table before the large one, and this table hashes byte by byte.
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
    single = f"struct(block * {_NUMBERS_PER_BLOCK} + bit as first, block * {_NUMBERS_PER_BLOCK} + bit as last)"
    singles = f"transform(filter(sequence(0, {_NUMBERS_PER_BLOCK - 1}), bit -> getbit(bits, bit) = 1), bit -> {single})"
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
    """Join successive pieces of an author to one fact if their numbers continue and their `_PIECE_KEY` is equal.

    `place` is the place of a piece's first message, and of the fact's first message in the result.
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
    """Return the columns of `SCHEMA`. If an author has no attempt, the whole author is the writer."""
    fields = joined.selectExpr(
        "*", "try_cast(cast(substring(tail, 1, 13) as string) as bigint) as sent",
        "make_valid_utf8(cast(author as string)) as name",
    )  # fmt: skip
    time_ms = "coalesce(sent, kafka_ms)"
    return fields.selectExpr(
        "topic", "partition", f"{WRITER} as writer",
        f"if({_HAS_ATTEMPT}, {ATTEMPT}, if(name is null, null, 0)) as attempt",
        f"{time_ms} - {time_ms} % 60000 as minute",
        "sent", "if(is_append_time, greatest(kafka_ms, sent) - sent, null) as latency_ms",
        *(f"if(tail is null, null, {value}) as {name}" for name, value in _NUMBER_COLUMNS.items()),
        "copies", "from_offset", "to_offset",
    )  # fmt: skip


def explode_facts(facts: DataFrame) -> DataFrame:
    """Return for each message its `number`, its `place` and the columns of its fact; all messages must have stamps."""
    numbered = facts.selectExpr("*", "explode(sequence(first, last)) as number")
    return numbered.selectExpr("*", "number + shift as place")


def latency_percentiles(facts: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the percentiles p50_ms and p99_ms of `latency_ms` for each `key`, a list of columns.

    A key without latencies has no row.
    """
    timed = facts.where("latency_ms is not null").groupBy(*key)
    return timed.agg(
        *expressions(*(f"cast(percentile(latency_ms, {p / 100}, copies) as bigint) as p{p}_ms" for p in (50, 99)))
    )
