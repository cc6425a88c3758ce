"""Balance the audit: compare the sent messages with Kafka's, for each topic and minute.

    sent = delivered + discarded + missing

Delivered messages are distinct. All attempts of a task number its rows alike, so a second message with the same number
is a copy and counts as `doubled`. `unknown` messages are in no ledger. All tables here are as small as the ledgers and
the facts (`facts.py`); none is collected to the driver.

A *cell* is one topic and minute of an attempt. A ledger states the number of messages of each cell, and the discards of
the whole attempt. *Absent* messages are those of a cell that Kafka does not have for its attempt, topic and minute.
`_EXPLAINED` explains them first by *stray* messages, which Kafka has for another attempt or minute than the ledger,
then by discards. The rest is missing.

The cells of a *pool* have their explanations in common. A stamped attempt with the daemon's answer belongs to the pool
of its writer (query/batch/partition). Each topic has a pool for its other stamped attempts, and one for its *plain*
messages, which have no stamp. The pools of topics use the counts of the discard files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.facts import ATTEMPT_PARTITION, explode_facts
from bruce_mp.spark.audit.tables import AuditTables, empty
from bruce_mp.spark.ledger_files import visible_files
from bruce_mp.spark.temporary_settings import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "TOPIC_AND_MINUTE",
    "AuditBooks",
    "discard_lines",
    "disordered_attempts",
    "fill_books",
    "out_of_order_messages",
    "read_ledger",
]

_LEDGER: Final = (
    "query string, batch long, partition int, attempt int, host string, acks string, stamped boolean, "
    "attempt_rows long, topic string, minute long, rows long, delivered long, discarded map<string, long>, "
    "dead_letters long"
)
TOPIC_AND_MINUTE: Final = ["topic", "minute"]
_FEW_LISTING_TASKS: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "8"}
"""Spark tasks that list a ledger's files; the default is one for each file."""
_WRITERS: Final = "select writer from {ledger} where stamped group by writer"
_ARRIVED: Final = {
    "writers": _WRITERS,
    "known": "select * from {facts} left semi join {writers} using (writer)",
    "with_highest": """
        select *, coalesce(max(last) over by_writer, -1L) as highest_before,
          coalesce(max(last) over by_cell, -1L) as highest_of_cell, max(sent) over by_writer as sent_before
        from {known}
        window by_writer as (partition by writer order by first, sent rows between unbounded preceding and 1 preceding),
          by_cell as (
            partition by writer, attempt, topic, minute order by first, sent
            rows between unbounded preceding and 1 preceding)
    """,
    "arrived": """
        select *, greatest(last - greatest(highest_before, first - 1), 0L) as fresh,
          greatest(last - greatest(highest_of_cell, first - 1), 0L) as fresh_in_cell
        from {with_highest}
    """,
}
"""Facts of writers in the ledgers, with more columns about the writer's facts before them.

`highest_before` is the highest sequence number of the facts before, -1 for none, `sent_before` their latest time, and
`fresh` the count of this fact's numbers above `highest_before`. `highest_of_cell` and `fresh_in_cell` are the same for
the facts of one cell. Facts are ordered by their first number, so earlier facts have all of a fact's numbers up to
`highest_before`; of facts with the same first number the one sent first comes first.
"""
_CELLS: Final = {
    "sent": """
        select pool, writer, attempt, stamped, topic, minute, sum(rows) as rows from {ledger}
        group by pool, writer, attempt, stamped, topic, minute
    """,
    "found": """
        select writer, attempt, topic, minute, sum(fresh_in_cell) as found from {arrived}
        group by writer, attempt, topic, minute
    """,
    "stamped": """
        select pool, topic, minute, rows, found
        from {sent} left join {found} using (writer, attempt, topic, minute) where stamped
    """,
    "plain_sent": """
        select pool, topic, minute, sum(rows) as rows from {sent} where not stamped group by pool, topic, minute
    """,
    "cells": """
        select *, rows - present as absent from (
          select pool, topic, minute, rows, least(rows, coalesce(found, 0)) as present
          from (
            select * from {stamped}
            union all
            select pool, topic, minute, rows, found from {plain_sent} left join {plain} using (topic, minute)))
    """,
}
"""pool, topic, minute, rows, present (in Kafka), absent; present + absent = rows."""
_PLAIN: Final = {
    "plain": "select topic, minute, sum(copies) as found from {facts} where writer is null group by topic, minute"
}
"""topic, minute, found: messages without a stamp."""
_EXPLANATIONS: Final = {
    "pools": "select distinct pool, writer from {ledger} where stamped",
    "found": """
        select pool, sum(fresh) as messages from {arrived} join {pools} using (writer) group by pool
        union all select concat('plain ', topic), sum(found) from {plain} group by topic
    """,
    "present_sums": "select pool, sum(present) as present from {cells} group by pool",
    # All ledger rows of an attempt have the same discards.
    "attempts": """
        select pool, first(discarded) as discarded from {ledger} where acks = 'delivered'
        group by pool, writer, attempt
    """,
    "reported": """
        select pool, reason, sum(count) as count from {attempts} lateral view explode(discarded) as reason, count
        group by pool, reason
    """,
    # A line does not say if its message had a stamp, so it counts in both pools of its topic. Pools with a daemon's
    # answer are left out, because `reported` has their discards.
    "in_files": """
        select * from (
          select concat(kind, topic) as pool, reason, count from {lines}
          lateral view explode(array('topic ', 'plain ')) as kind)
        left anti join {attempts} using (pool)
    """,
    "explanations": """
        select * from (
          select pool, 0 as rank, '(stray)' as reason, messages - present as count
          from {found} join {present_sums} using (pool)
          union all select pool, if(reason = 'POSSIBLY_DELIVERED', 3, 1), reason, count from {reported}
          union all select pool, if(reason = 'POSSIBLY_DELIVERED', 3, 2), reason, count from {in_files})
        where count > 0
    """,
}
"""pool, rank, reason, count: explanations of the absent messages of a pool, to be used in the order of `rank`.

The ranks are 0 for stray messages, 1 for discards by answers, 2 for discards by files. Messages that were possibly
delivered have rank 3, because Kafka may have them.
"""
_EXPLAINED: Final = {
    "incomplete": """
        select *, sum(absent) over (
          partition by pool order by minute, topic rows between unbounded preceding and current row) as absent_to
        from {cells} where absent > 0
    """,
    "explanations_to": """
        select *, sum(count) over (
          partition by pool order by rank, reason rows between unbounded preceding and current row) as explained_to
        from {explanations}
    """,
    "overlaps": """
        select topic, minute, reason,
          least(absent_to, explained_to) - greatest(absent_to - absent, explained_to - count) as count
        from {incomplete} join {explanations_to} using (pool)
    """,
    "explained": """
        select topic, minute, reason, sum(count) as count from {overlaps} where count > 0 group by topic, minute, reason
    """,
}
"""topic, minute, reason, count: the absent messages of a pool's cells, assigned to the pool's explanations in order.

The query lays the counts of the cells end to end, and likewise those of the explanations. Where a cell and an
explanation overlap, the latter explains the former. `absent_to` and `explained_to` are their ends.
"""
_EXPLAINED_COLUMNS: Final = "topic string, minute long, reason string, count long"
_UNKNOWN: Final = {
    "writers": _WRITERS,
    "sent": "select topic, sum(rows) as rows from {cells} where startswith(pool, 'plain ') group by topic",
    "found": "select topic, sum(found) as found, max(minute) as minute from {plain} group by topic",
    "unknown": """
        select topic, minute, copies as count
        from {facts} left anti join {writers} using (writer) where writer is not null
        union all
        select topic, minute, found - coalesce(rows, 0)
        from {found} left join {sent} using (topic) where found > coalesce(rows, 0)
    """,
}
"""topic, minute, count: messages of writers in no ledger, and plain messages beyond the number in the ledgers.

The latter count in the last minute in which Kafka has plain messages of the topic.
"""
_DOUBLED: Final = {
    "doubled": """
        select topic, partition, minute, writer, first, least(last, highest_before) as last, sent, from_offset,
          if(to_offset - from_offset = last - first, from_offset + least(last, highest_before) - first, to_offset)
            as to_offset
        from {arrived} where first <= highest_before
    """
}
"""The ranges of numbers that an earlier fact has, too.

Their offsets are exact if no messages of other writers are between them, else those of the whole fact.
"""
_UNKNOWN_RANGES: Final = {
    "writers": _WRITERS,
    "plain_topics": "select topic from {ledger} where not stamped group by topic",
    "unknown_facts": """
        select f.* from {facts_of_minutes} f left anti join {writers} w on f.writer = w.writer
        where f.writer is not null
        union all
        select f.* from {facts_of_minutes} f left anti join {plain_topics} p on f.topic = p.topic where f.writer is null
    """,
    "unknown_ranges": """
        select topic, partition, writer, min(first) as first, max(last) as last, min(from_offset) as from_offset,
          max(to_offset) as to_offset, min(coalesce(sent, minute)) as from_ms, max(coalesce(sent, minute)) as to_ms,
          sum(copies) as messages
        from {unknown_facts} group by topic, partition, writer
    """,
}
"""A row for the unknown messages of each writer in a partition.

The plain messages of a partition count as one writer's (null), but only if no ledger has plain messages of the topic.
`facts_of_minutes` are the facts within `minute_condition` (`fill_books`).
"""
_BALANCE: Final = {
    "entries": """
        select topic, minute, stack(2, 'sent', rows, 'absent', absent) as (kind, count), null as reason from {cells}
        union all
        select topic, minute, if(reason = '(stray)', 'stray', 'discarded'), count, nullif(reason, '(stray)')
        from {explained}
        union all select topic, minute, 'doubled', last - first + 1, null from {doubled}
        union all select topic, minute, 'out of order', 1, null from {out_of_order}
        union all select topic, minute, 'unknown', count, null from {unknown}
    """,
    "sums": """
        select topic, minute,
          coalesce(sum(count) filter (where kind = 'sent'), 0) as sent,
          coalesce(sum(count) filter (where kind = 'absent'), 0) as absent,
          coalesce(sum(count) filter (where kind = 'stray'), 0) as stray,
          coalesce(sum(count) filter (where kind = 'discarded'), 0) as discarded,
          coalesce(sum(count) filter (where kind = 'doubled'), 0) as doubled,
          coalesce(sum(count) filter (where kind = 'out of order'), 0) as out_of_order,
          coalesce(sum(count) filter (where kind = 'unknown'), 0) as unknown,
          collect_list(struct(reason, count)) filter (where reason is not null) as reasons
        from {entries} group by topic, minute
    """,
    "books": """
        select topic, minute, sent, sent - absent + stray as delivered, discarded,
          absent - stray - discarded as missing, doubled, out_of_order, unknown,
          if(size(reasons) > 0, map_from_entries(reasons), null) as reasons
        from {sums}
    """,
    "balance": """
        select *, concat_ws(', ', if(missing > 0, 'lost', null), if(doubled > 0, 'doubled', null),
                            if(out_of_order > 0, 'out of order', null)) as problems
        from {books}
    """,
}
_OUT_OF_ORDER_COLUMNS: Final = (
    "topic string, partition int, minute long, writer string, number long, sent long, from_offset long, to_offset long"
)
_ANOMALIES: Final = {
    "anomalies": """
        select sum(absent) > 0 as incomplete, sum(disordered) > 0 as disordered
        from (select absent, 0 as disordered from {cells} union all select 0, 1 from {disordered})
    """
}


@dataclass(frozen=True)
class AuditBooks:
    """The result tables of the audit. Leaving their `with` block releases the tables that are cached in memory.

    `balance` has topic, minute, the counts, reasons and problems. `arrived`, `doubled` and `unknown_ranges` are the
    results of the queries of these names, `out_of_order` that of `out_of_order_messages`.
    """

    balance: DataFrame
    arrived: DataFrame
    doubled: DataFrame
    out_of_order: DataFrame
    unknown_ranges: DataFrame
    _tables: AuditTables

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._tables.__exit__(*error)


def read_ledger(
    spark: SparkSession, directories: Sequence[str], topics: Sequence[str], changed_after: datetime | None = None
) -> DataFrame:
    """Return the ledger rows of these topics, from files that changed after a time (None: from all files).

    Two columns are added: `writer`, spelled as in the facts, and `pool`, the pool's name.
    """
    after_s = 0.0 if changed_after is None else changed_after.timestamp()
    paths = [path for directory in directories for path in _ledger_paths(directory, after_s)]
    with temporary_settings(spark, _FEW_LISTING_TASKS):
        rows = spark.read.schema(_LEDGER).json(paths)
    if changed_after is not None:
        oldest_minute_ms = int(after_s - 60) * 1000  # minutes are named by their start, up to 60 s earlier
        rows = rows.where(f"minute >= {oldest_minute_ms}")  # merged files have older commits, too
    rows = rows.where(rows["topic"].isin(*topics))
    has_answer = "acks = 'delivered'"
    named = rows.selectExpr("*", "concat_ws('/', query, batch, partition) as writer")
    return named.selectExpr(
        "*", f"if(stamped and {has_answer}, writer, concat(if(stamped, 'topic ', 'plain '), topic)) as pool"
    )


def _ledger_paths(directory: str, after_s: float) -> list[str]:
    """Return the paths of a ledger's visible files; for a glob, a file or a directory without any, only `directory`."""
    try:
        names = visible_files(directory, after_s)
    except OSError:
        return [directory]
    return [f"{directory.rstrip('/')}/{name}" for name in names] or [directory]


def discard_lines(lines: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Count the lines of discard files by topic and reason, except those of possible duplicates (`DUP`)."""
    discards = lines.where("event = 'DISC'").where(lines["topic"].isin(*topics))
    return discards.groupBy("topic", discards["info"].alias("reason")).count()


def fill_books(facts: DataFrame, ledger: DataFrame, lines: DataFrame, minute_condition: str = "true") -> AuditBooks:
    """Compare `facts` (see `facts_of`) with a ledger and the counts of `discard_lines`.

    `minute_condition` applies to `AuditBooks.unknown_ranges` only, whose rows have no minute.

    One cheap query detects absent and disordered messages. Both are rare, so the queries that explain or list them
    usually do not run.
    """
    tables = AuditTables(facts.sparkSession)
    inputs = {"facts": facts, "facts_of_minutes": facts.where(minute_condition), "ledger": ledger, "lines": lines}
    for name, table in inputs.items():
        tables.register(name, table)
    arrived = tables.register_cached("arrived", tables.query(_ARRIVED))
    tables.register("plain", tables.query(_PLAIN))
    tables.register_cached("cells", tables.query(_CELLS))
    incomplete, disordered = _find_anomalies(tables)
    no_messages = empty(tables.spark, _OUT_OF_ORDER_COLUMNS)
    out_of_order = (
        tables.register_cached("out_of_order", out_of_order_messages(arrived))
        if disordered
        else tables.register("out_of_order", no_messages)
    )
    tables.register("explained", _explain_absent(tables) if incomplete else empty(tables.spark, _EXPLAINED_COLUMNS))
    doubled = tables.register("doubled", tables.query(_DOUBLED))
    tables.register("unknown", tables.query(_UNKNOWN))
    return AuditBooks(tables.query(_BALANCE), arrived, doubled, out_of_order, tables.query(_UNKNOWN_RANGES), tables)


def _find_anomalies(tables: AuditTables) -> tuple[bool, bool]:
    """Return two flags: a cell has absent messages; an attempt may be out of order in a partition."""
    tables.register("disordered", disordered_attempts(tables["arrived"]))
    row = tables.query(_ANOMALIES).first()
    return (bool(row["incomplete"]), bool(row["disordered"])) if row else (False, False)


def _explain_absent(tables: AuditTables) -> DataFrame:
    tables.register("explanations", tables.query(_EXPLANATIONS))
    return tables.query(_EXPLAINED)


# --- messages out of order ------------------------------------------------------------------------------------------


def out_of_order_messages(facts: DataFrame) -> DataFrame:
    """Return each message that is behind one with a higher number in its attempt and partition.

    The columns are `_OUT_OF_ORDER_COLUMNS`. The offsets are those of the message, or those of its whole fact if
    messages of other writers are between.

    Such messages are rare. So only the attempts and partitions that `disordered_attempts` finds by their facts are
    checked message by message.

    If a message with a smaller number was sent later than all messages before it, it is in order, because a repeated
    task restarts its numbers at 0. A repeated number is a copy, and in order, too.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy("place")
    before = by_place.rowsBetween(Window.unboundedPreceding, -1)
    messages = explode_facts(facts.join(disordered_attempts(facts), ATTEMPT_PARTITION, "left_semi"))
    seen = messages.select(
        "*", F.expr("sent") > F.max("sent").over(before), F.max("number").over(before),
        F.row_number().over(Window.partitionBy(*ATTEMPT_PARTITION, "number").orderBy("place")),
    ).toDF(*messages.columns, "newer", "highest", "copy")  # fmt: skip
    restarts = seen.withColumn("restarts", F.sum(F.expr("if(newer and number < highest, 1, 0)")).over(by_place))
    by_restart = Window.partitionBy(*ATTEMPT_PARTITION, "restarts").orderBy("place")
    since_restart = by_restart.rowsBetween(Window.unboundedPreceding, -1)
    compared = restarts.withColumn("highest", F.max("number").over(since_restart))
    is_exact = "to_offset - from_offset = last - first"  # no messages of other writers are between
    return compared.where("number < highest and copy = 1").selectExpr(
        "topic", "partition", "minute", "writer", "number", "sent",
        f"if({is_exact}, from_offset + number - first, from_offset) as from_offset",
        f"if({is_exact}, from_offset + number - first, to_offset) as to_offset",
    )  # fmt: skip


def disordered_attempts(facts: DataFrame) -> DataFrame:
    """Return the keys `ATTEMPT_PARTITION` with facts out of order.

    Facts are in order if each begins behind the end of the one before, by numbers and by places (number + `shift`).
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    stamped = facts.where("writer is not null")
    by_place = Window.partitionBy(ATTEMPT_PARTITION).orderBy(F.expr("first + shift"))
    overlaps = (F.lag("last").over(by_place) >= F.col("first")) | (
        F.lag(F.expr("last + shift")).over(by_place) >= F.expr("first + shift")
    )
    return (
        stamped.select(*ATTEMPT_PARTITION, overlaps.alias("overlaps"))
        .where("overlaps")
        .select(ATTEMPT_PARTITION)
        .distinct()
    )
