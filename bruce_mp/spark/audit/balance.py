"""Balance the audit: compare the sent messages with Kafka's, for each topic and minute.

    sent = delivered + discarded + missing

Delivered messages are distinct, so copies count as `doubled`; `unknown` messages are in no ledger. All tables here are
as small as the ledgers and the facts; none is collected.

A ledger states the number of messages of each topic and minute of an attempt (a *cell*), and the discards of the whole
attempt. So `_SHARES` explains the lack of a cell in this order. First come messages found elsewhere (`stray`, sent by
another attempt or in another minute), then discards; the rest is missing. Attempts that did not ask the daemon for
their outcome share the counts of the discard files by topic. Messages without a stamp share the messages of the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.facts import LANE, exploded
from bruce_mp.spark.audit.tables import AuditTables, empty
from bruce_mp.spark.ledger_files import visible_files
from bruce_mp.spark.temporary_settings import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "CELL",
    "AuditBooks",
    "discard_lines",
    "disordered_lanes",
    "fill_books",
    "out_of_order_messages",
    "read_ledger",
]

_LEDGER: Final = (
    "query string, batch long, partition int, attempt int, host string, acks string, stamped boolean, "
    "attempt_rows long, topic string, minute long, rows long, delivered long, discarded map<string, long>, "
    "dead_letters long"
)
CELL: Final = ["topic", "minute"]
_FEW_LISTING_TASKS: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "8"}
"""For the list of a ledger's files; by default each file would be listed by a separate task."""
_WRITERS: Final = "select writer from {ledger} where stamped group by writer"
_ARRIVED: Final = {
    "writers": _WRITERS,
    "known": "select * from {facts} left semi join {writers} using (writer)",
    "passed": """
        select *, coalesce(max(last) over by_writer, -1L) as top, coalesce(max(last) over by_cell, -1L) as top_of_cell,
          max(sent) over by_writer as sent_before
        from {known}
        window by_writer as (partition by writer order by first, sent rows between unbounded preceding and 1 preceding),
          by_cell as (
            partition by writer, attempt, topic, minute order by first, sent
            rows between unbounded preceding and 1 preceding)
    """,
    "arrived": """
        select *, greatest(last - greatest(top, first - 1), 0L) as fresh,
          greatest(last - greatest(top_of_cell, first - 1), 0L) as fresh_in_cell
        from {passed}
    """,
}
"""Facts of known writers, with `top` and `fresh`, for the writer and for the cell of the attempt.

`top` is the highest number of the ranges before, -1 for none, and `sent_before` their latest time; `fresh` counts the
new numbers. Ranges are ordered by
their first number, so the ranges before cover all numbers from `first` to `top`; the range that was sent first precedes
equal ones.
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
        select *, rows - present as lack from (
          select pool, topic, minute, rows, least(rows, coalesce(found, 0)) as present
          from (
            select * from {stamped}
            union all
            select pool, topic, minute, rows, found from {plain_sent} left join {plain} using (topic, minute)))
    """,
}
"""pool, topic, minute, rows, present (found in the cell itself), lack."""
_PLAIN: Final = {
    "plain": "select topic, minute, sum(copies) as found from {facts} where writer is null group by topic, minute"
}
"""topic, minute, found: messages without a stamp."""
_COVERS: Final = {
    "pools": "select distinct pool, writer from {ledger} where stamped",
    "found": """
        select pool, sum(fresh) as arrived from {arrived} join {pools} using (writer) group by pool
        union all select concat('plain ', topic), sum(found) from {plain} group by topic
    """,
    "present_sums": "select pool, sum(present) as present from {cells} group by pool",
    # All rows of an attempt are equal here.
    "attempts": """
        select pool, first(discarded) as discarded from {ledger} where acks = 'delivered'
        group by pool, writer, attempt
    """,
    "reported": """
        select pool, reason, sum(count) as count from {attempts} lateral view explode(discarded) as reason, count
        group by pool, reason
    """,
    # Attempts with an answer are not counted again.
    "in_files": """
        select * from (
          select concat(kind, topic) as pool, reason, count from {lines}
          lateral view explode(array('topic ', 'plain ')) as kind)
        left anti join {attempts} using (pool)
    """,
    "covers": """
        select * from (
          select pool, 0 as rank, '(stray)' as reason, arrived - present as count
          from {found} join {present_sums} using (pool)
          union all select pool, if(reason = 'POSSIBLY_DELIVERED', 3, 1), reason, count from {reported}
          union all select pool, if(reason = 'POSSIBLY_DELIVERED', 3, 2), reason, count from {in_files})
        where count > 0
    """,
}
"""pool, rank, reason, count: explanations of the lack in the cells of a pool, in the order of rank.

Messages that were possibly delivered explain only the rest, because Kafka may have them.
"""
_SHARES: Final = {
    "incomplete": """
        select *, sum(lack) over (
          partition by pool order by minute, topic rows between unbounded preceding and current row) as lack_to
        from {cells} where lack > 0
    """,
    "covering": """
        select *, sum(count) over (
          partition by pool order by rank, reason rows between unbounded preceding and current row) as cover_to
        from {covers}
    """,
    "dealt": """
        select topic, minute, reason,
          least(lack_to, cover_to) - greatest(lack_to - lack, cover_to - count) as count
        from {incomplete} join {covering} using (pool)
    """,
    "shares": """
        select topic, minute, reason, sum(count) as count from {dealt} where count > 0 group by topic, minute, reason
    """,
}
_SHARES_COLUMNS: Final = "topic string, minute long, reason string, count long"
"""topic, minute, reason, count: the lack of the cells of a pool, assigned to its covers one after the other.

The query lays the amounts of both sides end to end; overlapping amounts belong together.
"""
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
"""topic, minute, count: messages of writers without a ledger, and unstamped messages beyond the number in the ledgers.
"""
_DOUBLED: Final = {
    "doubled": """
        select topic, partition, minute, writer, first, least(last, top) as last, sent, from_offset,
          if(to_offset - from_offset = last - first, from_offset + least(last, top) - first, to_offset) as to_offset
        from {arrived} where first <= top
    """
}
_UNKNOWN_RANGES: Final = {
    "writers": _WRITERS,
    "plain_topics": "select topic from {ledger} where not stamped group by topic",
    "unknown_facts": """
        select f.* from {facts} f left anti join {writers} w on f.writer = w.writer where f.writer is not null
        union all
        select f.* from {facts} f left anti join {plain_topics} p on f.topic = p.topic where f.writer is null
    """,
    "unknown_ranges": """
        select topic, partition, writer, min(first) as first, max(last) as last, min(from_offset) as from_offset,
          max(to_offset) as to_offset, min(coalesce(sent, minute)) as from_ms, max(coalesce(sent, minute)) as to_ms,
          sum(copies) as messages
        from {unknown_facts} group by topic, partition, writer
    """,
}
"""The unknown messages of each writer in a partition; without a stamp, those of topics without such a ledger."""
_BALANCE: Final = {
    "entries": """
        select topic, minute, stack(2, 'sent', rows, 'lack', lack) as (kind, count), null as reason from {cells}
        union all
        select topic, minute, if(reason = '(stray)', 'stray', 'discarded'), count, nullif(reason, '(stray)')
        from {shares}
        union all select topic, minute, 'doubled', last - first + 1, null from {doubled}
        union all select topic, minute, 'out of order', 1, null from {out_of_order}
        union all select topic, minute, 'unknown', count, null from {unknown}
    """,
    "sums": """
        select topic, minute,
          coalesce(sum(count) filter (where kind = 'sent'), 0) as sent,
          coalesce(sum(count) filter (where kind = 'lack'), 0) as lack,
          coalesce(sum(count) filter (where kind = 'stray'), 0) as stray,
          coalesce(sum(count) filter (where kind = 'discarded'), 0) as discarded,
          coalesce(sum(count) filter (where kind = 'doubled'), 0) as doubled,
          coalesce(sum(count) filter (where kind = 'out of order'), 0) as out_of_order,
          coalesce(sum(count) filter (where kind = 'unknown'), 0) as unknown,
          collect_list(struct(reason, count)) filter (where reason is not null) as reasons
        from {entries} group by topic, minute
    """,
    "books": """
        select topic, minute, sent, sent - lack + stray as delivered, discarded, lack - stray - discarded as missing,
          doubled, out_of_order, unknown, if(size(reasons) > 0, map_from_entries(reasons), null) as reasons
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
        select sum(lack) > 0 as incomplete, sum(lanes) > 0 as disordered
        from (select lack, 0 as lanes from {cells} union all select 0, 1 from {lanes})
    """
}


@dataclass(frozen=True)
class AuditBooks:
    """The result tables of the audit; `balance` has topic, minute, the counts, reasons and problems.

    `arrived` has the columns of `_ARRIVED`. `doubled` has ranges that had arrived before, `out_of_order` the
    messages of `out_of_order_messages`; both with topic, partition, minute, writer, time and offsets. `unknown_ranges`
    has the messages of writers without a ledger.
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
        """Release the tables that are kept in memory."""
        self._tables.__exit__(*error)


def read_ledger(
    spark: SparkSession, directories: Sequence[str], topics: Sequence[str], changed_after: datetime | None = None
) -> DataFrame:
    """Return the ledger rows of these topics, from files that changed after a time (None: from all files).

    `writer` is spelled as in the stamps. `pool` names the group that shares unexplained lack: the writer, or its topic.
    """
    after_s = 0.0 if changed_after is None else changed_after.timestamp()
    paths = [path for directory in directories for path in _ledger_paths(directory, after_s)]
    with temporary_settings(spark, _FEW_LISTING_TASKS):
        rows = spark.read.schema(_LEDGER).json(paths)
    if changed_after is not None:
        rows = rows.where(f"minute >= {int(after_s - 60) * 1000}")  # merged files have older commits, too
    rows = rows.where(rows["topic"].isin(*topics))
    alone = "stamped and acks = 'delivered'"
    named = rows.selectExpr("*", "concat_ws('/', query, batch, partition) as writer")
    return named.selectExpr("*", f"if({alone}, writer, concat(if(stamped, 'topic ', 'plain '), topic)) as pool")


def _ledger_paths(directory: str, after_s: float) -> list[str]:
    """Return the files of a ledger that count; the directory itself if there are none, or if it is a glob or a file."""
    try:
        names = visible_files(directory, after_s)
    except OSError:
        return [directory]
    return [f"{directory.rstrip('/')}/{name}" for name in names] or [directory]


def discard_lines(lines: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return topic, reason and count of the lines in discard files, without possible duplicates."""
    wanted = lines.where("event = 'DISC'").where(lines["topic"].isin(*topics))
    return wanted.groupBy("topic", wanted["info"].alias("reason")).count()


def fill_books(facts: DataFrame, ledger: DataFrame, lines: DataFrame) -> AuditBooks:
    """Compare `facts` (see `facts_of`) with a ledger and the counts of `discard_lines`.

    One query detects missing and disordered messages. Both are rare, so the more expensive queries usually do not run.
    """
    tables = AuditTables(facts.sparkSession)
    for name, table in {"facts": facts, "ledger": ledger, "lines": lines}.items():
        tables.register(name, table)
    arrived = tables.keep("arrived", tables.query(_ARRIVED))
    tables.register("plain", tables.query(_PLAIN))
    tables.keep("cells", tables.query(_CELLS))
    incomplete, disordered = _find_anomalies(tables)
    no_messages = empty(tables.spark, _OUT_OF_ORDER_COLUMNS)
    out_of_order = (
        tables.keep("out_of_order", out_of_order_messages(arrived))
        if disordered
        else tables.register("out_of_order", no_messages)
    )
    tables.register("shares", _shares(tables) if incomplete else empty(tables.spark, _SHARES_COLUMNS))
    doubled = tables.register("doubled", tables.query(_DOUBLED))
    tables.register("unknown", tables.query(_UNKNOWN))
    return AuditBooks(tables.query(_BALANCE), arrived, doubled, out_of_order, tables.query(_UNKNOWN_RANGES), tables)


def _find_anomalies(tables: AuditTables) -> tuple[bool, bool]:
    """Return two flags: a cell is short of messages; a lane may be out of order."""
    tables.register("lanes", disordered_lanes(tables["arrived"]))
    row = tables.query(_ANOMALIES).first()
    return (bool(row["incomplete"]), bool(row["disordered"])) if row else (False, False)


def _shares(tables: AuditTables) -> DataFrame:
    tables.register("covers", tables.query(_COVERS))
    return tables.query(_SHARES)


# --- messages out of order ------------------------------------------------------------------------------------------


def out_of_order_messages(facts: DataFrame) -> DataFrame:
    """Return each message behind a later one of its attempt in its partition.

    The columns are `_OUT_OF_ORDER_COLUMNS`. If messages of other writers are between, the offsets are its fact's.

    Such messages are rare, and the facts alone exclude them: in the order of places, each fact begins behind the end of
    the one before, in numbers and in places. Only *lanes* that violate this are checked message by message.

    A smaller number that was sent later than all messages before is in order: a repeated task starts its numbers again.
    A repeated number is a copy, and in order too.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    lane = Window.partitionBy(LANE).orderBy("place")
    before = lane.rowsBetween(Window.unboundedPreceding, -1)
    messages = exploded(facts.join(disordered_lanes(facts), LANE, "left_semi"))
    seen = messages.select(
        "*", F.expr("sent") > F.max("sent").over(before), F.max("number").over(before),
        F.row_number().over(Window.partitionBy(*LANE, "number").orderBy("place")),
    ).toDF(*messages.columns, "newer", "highest", "copy")  # fmt: skip
    runs = seen.withColumn("run", F.sum(F.expr("if(newer and number < highest, 1, 0)")).over(lane))
    in_run = Window.partitionBy(*LANE, "run").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    placed = runs.withColumn("highest", F.max("number").over(in_run))
    is_exact = "to_offset - from_offset = last - first"
    return placed.where("number < highest and copy = 1").selectExpr(
        "topic", "partition", "minute", "writer", "number", "sent",
        f"if({is_exact}, from_offset + number - first, from_offset) as from_offset",
        f"if({is_exact}, from_offset + number - first, to_offset) as to_offset",
    )  # fmt: skip


def disordered_lanes(facts: DataFrame) -> DataFrame:
    """Return the lanes with facts out of order."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    stamped = facts.where("writer is not null")
    line = Window.partitionBy(LANE).orderBy(F.expr("first + shift"))
    behind = (F.lag("last").over(line) >= F.col("first")) | (
        F.lag(F.expr("last + shift")).over(line) >= F.expr("first + shift")
    )
    return stamped.select(*LANE, behind.alias("behind")).where("behind").select(LANE).distinct()
