"""Balance the audit: compare the sent messages with those in Kafka, for each topic and minute.

    sent = delivered + discarded + missing

All attempts of a task number the task's rows in the same way, so a second message with the same writer and number is a
copy. It counts as `doubled`, not as delivered. `unknown` messages are of writers in no ledger. All tables here are as
small as the ledgers and the facts (`facts.py`), and remain in Spark's tasks.

A *cell* is the messages of one attempt with the same topic and minute. Messages without a stamp (*plain* messages) do
not name an attempt. They count as messages of one writer, `plain`, with one cell for each topic and minute. A message
of a cell is *absent* if it is in the ledger, but Kafka does not have it for the same attempt, topic and minute. Three
things explain absent messages, in this order; an absent message without an explanation is missing:

1. *Stray* messages: Kafka has them for another attempt or minute than the ledger. They explain absent messages of the
   same writer and topic.
2. The daemons' answers in the ledger: each has the number of discards of one attempt by reason, but not by topic. They
   explain absent messages of the same writer; for plain messages, of all topics of the attempt's query. An answer is
   *unclear* if the attempt also sent messages to topics that are not audited. It explains nothing, because the
   discarded messages may be of these topics.
3. The lines of discard files: each is about one discarded message, and names its topic and, by the stamp among its
   headers, its writer (`plain` without a stamp). Lines about messages that Kafka has by now, about attempts in no
   ledger, and about discards that an answer already counts, explain nothing. The other lines explain absent messages of
   the same topic and writer, but only of writers with an unclear answer or without a final one, because any other
   answer counts all discards of its attempt. Lines without headers, which the daemon may have cut off, then explain
   those of all such writers.

So a message in Kafka, or a discard, never explains two absent messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.order import OUT_OF_ORDER_COLUMNS, disordered_attempts, out_of_order_messages
from bruce_mp.spark.audit.tables import AuditTables, empty_table

if TYPE_CHECKING:
    from typing import Self

    from pyspark.sql import DataFrame

__all__ = ["TOPIC_AND_MINUTE", "AuditBooks", "fill_books"]

TOPIC_AND_MINUTE: Final = ["topic", "minute"]
# In a query, {name} stands for an earlier query of the same dict or, if there is none, for a registered table. The
# columns of a result, which is the last query of a dict, are listed below the dict.
_WRITERS: Final = "select writer, max(attempt_rows) as numbers_used from {ledger} where stamped group by writer"
_ARRIVED: Final = {
    "writers": _WRITERS,
    "known": "select * from {facts} join {writers} using (writer)",
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
          greatest(last - greatest(highest_of_cell, first - 1), 0L) as fresh_in_cell,
          greatest(least(last, numbers_used - 1) - greatest(highest_before, first - 1), 0L) as fresh_used
        from {with_highest}
    """,
}
"""The facts of the writers in the ledgers, with columns that compare a fact with the *earlier* facts of its writer.

Earlier facts have a lower first number, or the same first number and an earlier time. `highest_before` is the highest
number of the earlier facts (-1 if there are none), and `sent_before` their latest time. The earlier fact with this
highest number begins at or below the first number of the present fact, so it has all numbers of the present fact up to
`highest_before`. `fresh` is how many numbers of the present fact no earlier fact has. `highest_of_cell` and
`fresh_in_cell` are the same, but only for earlier facts of the same cell. `fresh_used` is as `fresh`, but only for
numbers that the ledger's attempt has: those below `numbers_used`. A failed attempt may have sent further ones.
"""
_CELLS: Final = {
    "sent": """
        select writer, attempt, topic, minute, sum(rows) as rows, bool_or(delivered is null) as is_open
        from {ledger} group by writer, attempt, topic, minute
    """,
    "found": """
        select writer, attempt, topic, minute, sum(fresh_in_cell) as found from {arrived}
        group by writer, attempt, topic, minute
    """,
    "stamped": """
        select writer, topic, minute, is_open, rows, found
        from {sent} left join {found} using (writer, attempt, topic, minute) where writer != 'plain'
    """,
    "plain_sent": """
        select writer, topic, minute, bool_or(is_open) as is_open, sum(rows) as rows
        from {sent} where writer = 'plain' group by writer, topic, minute
    """,
    "cells": """
        select *, rows - present as absent from (
          select writer, topic, minute, is_open, rows, least(rows, coalesce(found, 0)) as present
          from (
            select * from {stamped}
            union all
            select writer, topic, minute, is_open, rows, found
            from {plain_sent} left join {plain} using (topic, minute)))
    """,
}
"""writer, topic, minute, is_open, and the numbers of a cell's messages: rows (in the ledger) = present + absent.

A cell is open if an attempt with messages in it has no final answer (`delivered` is null).
"""
_PLAIN: Final = {
    "plain": "select topic, minute, sum(copies) as found from {facts} where writer is null group by topic, minute"
}
"""topic, minute, found (the number of plain messages in Kafka)."""
_UNCLEAR: Final = {
    "unclear": """
        select writer, topic, query, batch, partition, attempt
        from (
          select *, bool_and(is_audited) over (partition by query, batch, partition, attempt) as has_only_audited
          from {all_entries} where size(discarded) > 0)
        where not has_only_audited
    """
}
"""The ledger entries of attempts with an unclear answer."""
_STRAYS: Final = {
    "found": """
        select writer, topic, sum(fresh_used) as messages from {arrived} group by writer, topic
        union all select 'plain', topic, sum(found) from {plain} group by topic
    """,
    "unclear_topics": "select distinct writer, topic, true as is_unclear from {unclear}",
    "counted": """
        select writer, topic, minute, absent, bool_or(is_open or is_unclear is not null) over of_topic as is_open,
          coalesce(messages, 0L) - sum(present) over of_topic as strays_of_topic,
          sum(absent) over (
            partition by writer, topic order by minute
            rows between unbounded preceding and 1 preceding) as absent_before
        from {cells} left join {found} using (writer, topic) left join {unclear_topics} using (writer, topic)
        window of_topic as (partition by writer, topic)
    """,
    "strays": """
        select writer, topic, minute, is_open, absent,
          least(absent, greatest(strays_of_topic - coalesce(absent_before, 0L), 0L)) as stray
        from {counted}
    """,
}
"""writer, topic, minute, is_open, absent, stray (how many of the `absent` messages are explained by stray messages).

`strays_of_topic` is the number of stray messages of a writer and topic: all in Kafka less the `present` ones. They
explain the absent messages of the earliest minutes. Here `is_open` is true if any cell of the writer and topic is open,
or an attempt of the writer with this topic has an unclear answer.
"""
_ANSWERED: Final = {
    "answered": """
        select *, min(topic) over (partition by writer, query) as first_topic
        from {ledger} left anti join {unclear} using (query, batch, partition, attempt) where size(discarded) > 0
    """
}
"""The ledger entries of attempts with discards in their answer, if the answer is not unclear."""
_POOLS: Final = {
    "pools": """
        select writer, topic, if(writer = 'plain', concat('plain ', min(first_topic)), writer) as pool
        from {answered} group by writer, topic
    """
}
"""writer, topic, pool (a group of messages: an answer about some of them may explain any absent message of the group).

A pool has all messages of one writer. Plain messages do not name their task, so they have one pool for each query, with
all plain messages in the query's topics. If several queries have a topic, it belongs to the pool with the first name in
sorted order.
"""
_REPORTED: Final = {
    # All ledger entries of an attempt repeat the discards of the whole attempt, so one of them is taken.
    "attempts": """
        select writer, first_topic as topic, first(discarded) as discarded
        from {answered} group by writer, first_topic, query, batch, partition, attempt
    """,
    "reported": """
        select pool, reason, sum(count) as count
        from {attempts} join {pools} using (writer, topic) lateral view explode(discarded) as reason, count
        group by pool, reason
    """,
}
"""pool, reason, count (of the discards in the answers)."""
_OVERLAPS: Final = {
    "incomplete_to": """
        select *, sum(absent) over (
          partition by pool order by minute, topic, writer
          rows between unbounded preceding and current row) as absent_to
        from {incomplete}
    """,
    "explanations_to": """
        select *, sum(count) over (
          partition by pool order by reason = 'POSSIBLY_DELIVERED', reason
          rows between unbounded preceding and current row) as explained_to
        from {explanations} where count > 0
    """,
    "overlaps": """
        select writer, topic, minute, reason,
          least(absent_to, explained_to) - greatest(absent_to - absent, explained_to - count) as count
        from {incomplete_to} join {explanations_to} using (pool)
    """,
}
"""writer, topic, minute, reason, count (of the absent messages of a cell that a discard reason explains).

The inputs have a row for each cell with absent messages (`incomplete`), and for each reason with discards
(`explanations`), both with their pool. For each pool, the query lays the numbers of absent messages of the cells end to
end on a line, and the numbers of discards on another line beside it. `absent_to` and `explained_to` are the ends of
these sections. A cell and a reason that lie side by side for a length above 0 have this length as `count`. Possibly
delivered messages are the last section, so that they explain as few absent messages as possible: Kafka may have them.
"""
_BY_ANSWERS: Final = {
    "incomplete": """
        select pool, writer, topic, minute, absent - stray as absent
        from {strays} join {pools} using (writer, topic) where absent > stray
    """,
    "explanations": "select * from {reported}",
    **_OVERLAPS,
    "by_answers": "select * from {overlaps} where count > 0",
}
"""The absent messages that answers explain, with the columns of `_OVERLAPS`."""
_LINES: Final = {
    "stamped": """
        select writer, number, topic, reason from {discards} left semi join {ledger} using (writer, attempt)
        where number is not null group by writer, attempt, number, topic, reason
    """,
    "absent": """
        select s.* from {stamped} s left anti join {facts} f
          on s.writer = f.writer and s.topic = f.topic and s.number between f.first and f.last
    """,
    "lines": """
        select writer, topic, reason, sum(count) as count, sum(absent) as absent from (
          select writer, topic, reason, 1L as count, 1L as absent from {discards} where number is null
          union all select writer, topic, reason, 1L, 0L from {stamped}
          union all select writer, topic, reason, 0L, 1L from {absent})
        group by writer, topic, reason
    """,
}
"""writer, topic, reason, count (of the lines of discard files), absent (of them, those whose messages Kafka lacks).

Left out are stamped lines about attempts that no ledger has, because another attempt sent their messages anew, and
repetitions of a stamped line. Kafka may have a message because a replay has sent it since, or because it was
`POSSIBLY_DELIVERED`. Without a stamp this is not known, so all lines are `absent`.
"""
_SPARE_LINES: Final = {
    "absent_sums": """
        select pool, writer, topic, sum(absent) as absent, count(*) over (partition by pool) as topics
        from {strays} join {pools} using (writer, topic) group by pool, writer, topic
    """,
    # An answer does not say in which topics its discards are. So they count in each topic of a pool with several ones,
    # but at most as often as the topic has absent messages. Possibly delivered messages have no such limit: if Kafka
    # has them, they are not absent.
    "counted": """
        select writer, topic, reason,
          sum(if(reason = 'POSSIBLY_DELIVERED' or topics = 1, count, least(count, absent))) as counted
        from {reported} join {absent_sums} using (pool) group by writer, topic, reason
    """,
    "net_lines": """
        select writer, topic, reason, sum(count) as count, sum(absent) as absent from (
          select * from {lines} union all select writer, topic, reason, -counted, 0L from {counted})
        group by writer, topic, reason
    """,
    "spare_lines": """
        select writer, topic, reason, least(count, absent) as count from {net_lines}
        where writer is not null and least(count, absent) > 0
        union all
        select null, topic, reason, sum(count) from {net_lines} where writer is null or count < 0 group by topic, reason
    """,
}
"""writer, topic, reason, count (of the lines of discard files about discards that no answer counts).

The writer of lines without headers is null. The answers count at most `counted` discards, and if fewer lines name their
writer, the others may have no headers.
"""
_BY_STAMPS: Final = {
    "incomplete": """
        select concat_ws(' ', topic, writer) as pool, writer, topic, minute, sum(absent) as absent from (
          select writer, topic, minute, is_open, absent - stray as absent from {strays}
          union all select writer, topic, minute, null, -count from {by_answers})
        group by writer, topic, minute having bool_or(is_open) and sum(absent) > 0
    """,
    "explanations": """
        select concat_ws(' ', topic, writer) as pool, reason, count from {spare_lines} where writer is not null
    """,
    **_OVERLAPS,
    "by_writers": "select * from {overlaps} where count > 0 union all select * from {by_answers}",
}
"""The absent messages that answers, or lines that name their writer, explain, with the columns of `_OVERLAPS`."""
_BY_LINES: Final = {
    "incomplete": """
        select topic as pool, writer, topic, minute, sum(absent) as absent from (
          select writer, topic, minute, is_open, absent - stray as absent from {strays}
          union all select writer, topic, minute, null, -count from {by_writers})
        group by writer, topic, minute having bool_or(is_open) and sum(absent) > 0
    """,
    "explanations": "select topic as pool, reason, count from {spare_lines} where writer is null",
    **_OVERLAPS,
    "by_lines": "select * from {overlaps} where count > 0",
}
"""The absent messages that lines without headers explain, with the columns of `_OVERLAPS`; here a pool is a topic."""
_EXPLAINED: Final = {
    "all": """
        select topic, minute, '(stray)' as reason, stray as count from {strays} where stray > 0
        union all select topic, minute, reason, count from {by_writers}
        union all select topic, minute, reason, count from {by_lines}
    """,
    "explained": "select topic, minute, reason, sum(count) as count from {all} group by topic, minute, reason",
}
"""topic, minute, reason, count (of the absent messages with this explanation; `(stray)` stands for stray messages)."""
_EXPLAINED_COLUMNS: Final = "topic string, minute long, reason string, count long"
_UNKNOWN: Final = {
    "writers": _WRITERS,
    "sent": "select topic, sum(rows) as rows from {cells} where writer = 'plain' group by topic",
    "found": "select topic, sum(found) as found, max(minute) as minute from {plain} group by topic",
    "unknown": """
        select topic, minute, copies as count
        from {facts} left anti join {writers} using (writer) where writer is not null
        union all
        select topic, minute, fresh - fresh_used from {arrived} where fresh > fresh_used
        union all
        select topic, minute, found - coalesce(rows, 0)
        from {found} left join {sent} using (topic) where found > coalesce(rows, 0)
    """,
}
"""topic, minute, count (of the messages of writers or with numbers in no ledger, and of plain ones that they lack).

The plain messages that the ledgers lack count in the last minute in which Kafka has plain messages of their topic.
"""
_DOUBLED: Final = {
    "doubled": """
        select topic, partition, minute, writer, first, least(last, highest_before) as last, sent, from_offset,
          if(to_offset - from_offset = last - first, from_offset + least(last, highest_before) - first, to_offset)
            as to_offset
        from {arrived} where first <= highest_before
    """
}
"""The ranges of a fact's numbers that an earlier fact also has.

`to_offset` is the offset of the range's last message or, if messages of other writers lie between the offsets of the
fact, the last offset of the fact.
"""
_UNKNOWN_RANGES: Final = {
    "writers": _WRITERS,
    "plain_topics": "select topic from {ledger} where not stamped group by topic",
    "unknown_facts": """
        select f.* from {facts_of_minutes} f left anti join {writers} w on f.writer = w.writer
        where f.writer is not null
        union all
        select f.* from {facts_of_minutes} f left anti join {plain_topics} p on f.topic = p.topic where f.writer is null
        union all
        select topic, partition, writer, attempt, minute, sent, latency_ms, shift, last - fresh + fresh_used + 1, last,
          fresh - fresh_used,
          if(to_offset - from_offset = last - first, to_offset - fresh + fresh_used + 1, from_offset), to_offset
        from {arrived_in_minutes} where fresh > fresh_used
    """,
    "unknown_ranges": """
        select topic, partition, writer, min(first) as first, max(last) as last, min(from_offset) as from_offset,
          max(to_offset) as to_offset, min(coalesce(sent, minute)) as from_ms, max(coalesce(sent, minute)) as to_ms,
          sum(copies) as messages
        from {unknown_facts} group by topic, partition, writer
    """,
}
"""One row for the unknown messages of each writer in each partition.

The writer of plain messages is null; they are listed only if no ledger has plain messages of the topic.
`facts_of_minutes` are the facts in the minutes that the `minute_condition` of `fill_books` selects, and
`arrived_in_minutes` those of `arrived`.
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
"""The table `balance` of the audit, without latencies."""
_ANOMALIES: Final = {
    "anomalies": """
        select sum(absent) > 0 as incomplete, sum(disordered) > 0 as disordered
        from (select absent, 0 as disordered from {cells} union all select 0, 1 from {disordered})
    """
}
"""One row with two flags: any cell has absent messages; any attempt has facts out of order."""


@dataclass(frozen=True)
class AuditBooks:
    """The result tables of the audit. The end of the `with` block drops the tables.

    `balance`, `doubled` and `unknown_ranges` are the results of the queries of these names, and `out_of_order` is the
    result of `out_of_order_messages`. `tables` also has the inputs and `arrived`. `is_incomplete` is True if messages
    are absent; then `tables` has `strays`, `by_writers` and `by_lines` as well.
    """

    balance: DataFrame
    doubled: DataFrame
    out_of_order: DataFrame
    unknown_ranges: DataFrame
    is_incomplete: bool
    tables: AuditTables

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.tables.__exit__(*error)


def fill_books(facts: DataFrame, ledger: DataFrame, discards: DataFrame, minute_condition: str = "true") -> AuditBooks:
    """Compare `facts` (see `facts_of`) with a ledger, and with `discards`, the result of `discards_of`.

    `minute_condition` (SQL on the column `minute`) selects the minutes of `AuditBooks.unknown_ranges` only. The caller
    selects those of the other results, which have a column `minute`.

    A cheap query shows if messages are absent or out of order. Both are rare, so the queries that explain or list such
    messages usually do not run.
    """
    tables = AuditTables(facts.sparkSession)
    inputs = {
        "facts": facts, "facts_of_minutes": facts.where(minute_condition), "all_entries": ledger,
        "ledger": ledger.where("is_audited"), "discards": discards,
    }  # fmt: skip
    for name, table in inputs.items():
        tables.register(name, table)
    arrived = tables.register_computed("arrived", tables.query(_ARRIVED))
    tables.register("arrived_in_minutes", arrived.where(minute_condition))
    tables.register("plain", tables.query(_PLAIN))
    tables.register_computed("cells", tables.query(_CELLS))
    incomplete, disordered = _find_anomalies(tables)
    no_messages = empty_table(tables.spark, OUT_OF_ORDER_COLUMNS)
    out_of_order = (
        tables.register_computed("out_of_order", out_of_order_messages(arrived))
        if disordered
        else tables.register("out_of_order", no_messages)
    )
    tables.register(
        "explained", _explain_absent(tables) if incomplete else empty_table(tables.spark, _EXPLAINED_COLUMNS)
    )
    doubled = tables.register("doubled", tables.query(_DOUBLED))
    tables.register("unknown", tables.query(_UNKNOWN))
    unknown_ranges = tables.query(_UNKNOWN_RANGES)
    return AuditBooks(tables.query(_BALANCE), doubled, out_of_order, unknown_ranges, incomplete, tables)


def _find_anomalies(tables: AuditTables) -> tuple[bool, bool]:
    """Return two flags: there are absent messages; messages may be out of order."""
    tables.register("disordered", disordered_attempts(tables["arrived"]))
    row = tables.query(_ANOMALIES).first()
    return (bool(row["incomplete"]), bool(row["disordered"])) if row else (False, False)


def _explain_absent(tables: AuditTables) -> DataFrame:
    """Register the tables about explanations of absent messages, and return the result of `_EXPLAINED`."""
    answers = (_UNCLEAR, _STRAYS, _ANSWERED, _POOLS, _REPORTED, _BY_ANSWERS)
    for steps in (*answers, _LINES, _SPARE_LINES, _BY_STAMPS, _BY_LINES):
        tables.register_computed(list(steps)[-1], tables.query(steps))
    return tables.query(_EXPLAINED)
