"""List the messages with a problem as ranges of a writer's sequence numbers.

A message is absent if a ledger counts it, but Kafka does not have it. Reports of discards have no sequence numbers, and
ledgers do not say which numbers went to which topic. So a range of absent messages has a writer, but a topic only if
the writer lost messages of only one topic. The problem of the range names each possible fate of the messages:
`missing`, `discarded`, or `not audited` (if the task also sent to topics that are not audited).

`balance.py` explains the tables `strays`, `by_writers`, `by_lines` and `arrived`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.tables import empty_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bruce_mp.spark.audit.balance import AuditBooks

__all__ = ["PROBLEM_COLUMNS", "find_problems"]

_RANGE_COLUMNS: Final = (
    "problem string, topic string, partition int, writer string, first long, last long, from_offset long, "
    "to_offset long, from_ms long, to_ms long"
)
PROBLEM_COLUMNS: Final = f"{_RANGE_COLUMNS}, messages long"
# In a query, {name} stands for an earlier query of the same dict or, if there is none, for a table of the books.
# Spark plans unions faster than joins of tables with the same inputs, so unions combine the tables.
_LOSSY_WRITERS: Final = {
    "entries": """
        select writer, topic, absent - stray as absent, is_open, 0L as answered, 0L as lines from {strays}
        union all select writer, topic, 0L, null, count, 0L from {by_writers}
        union all select writer, topic, 0L, null, 0L, count from {by_lines}
    """,
    "absent": """
        select writer, topic, sum(absent) as absent, sum(answered) as answered, sum(lines) as lines,
          if(bool_or(is_open), sum(absent) - sum(answered), 0L) as open
        from {entries} group by writer, topic having sum(absent) > 0
    """,
    "sums": """
        select *, sum(lines) over of_topic as lines_of_topic, (sum(open) over of_topic) - open as open_of_others
        from {absent} window of_topic as (partition by topic)
    """,
    # Lines without headers do not name writers. But the lines of a topic that exceed the open messages of all other
    # writers must be about this writer.
    "losses": """
        select writer, if(count(*) = 1, min(topic), null) as topic, sum(absent) as absent, sum(answered) as answered,
          sum(greatest(lines_of_topic - open_of_others, 0L)) as least_by_lines,
          sum(least(lines_of_topic, open)) as most_by_lines
        from {sums} where writer != 'plain' group by writer
    """,
    "writers": """
        select writer, max(attempt_rows) as numbers_used, min(minute) filter (where is_audited) as begin_ms,
          max(minute) filter (where is_audited) + 59999 as end_ms,
          sum(if(is_audited, 0L, rows)) as not_audited,
          bool_or(not is_audited and size(discarded) > 0) as has_unclear_answer
        from {all_entries} where stamped group by writer
    """,
    # An unclear answer also counts discards outside the audit, so `answered` does not contain its discards. Any absent
    # message of its writer may be among them.
    "lossy_writers": """
        select writer, numbers_used, begin_ms, end_ms, if(not_audited = 0, topic, null) as lossy_topic,
          concat_ws(' or ',
            if(answered + least_by_lines < absent, 'missing', null),
            if(answered + most_by_lines > 0 or has_unclear_answer, 'discarded', null),
            if(not_audited > 0, 'not audited', null)) as problem
        from {losses} join {writers} using (writer)
    """,
}
"""writer, numbers_used, begin_ms, end_ms, lossy_topic, problem: the writers with absent messages in the audited topics.

`numbers_used` is how many sequence numbers the writer used, `begin_ms` the start of its first minute in the ledger, and
`end_ms` the end of its last minute. `lossy_topic` is null if the absent messages may be of several topics. In the
queries, `answered` is the number of absent messages that answers, or lines that name their writer, explain, and `lines`
that of lines without headers; of the writer's messages, these explain at least `least_by_lines` and at most
`most_by_lines`. `open` is the number of absent messages that only such lines can explain: nothing else does, and the
writer has an unclear answer or no final one.
"""
_ABSENT_RANGES: Final = {
    "gaps": """
        select writer, highest_before + 1 as first, first as next, sent_before as from_ms, sent as to_ms from {arrived}
        union all select writer, max(last) + 1, null, max(sent), null from {arrived} group by writer
    """,
    # A failed attempt, which is in no ledger, may have sent higher numbers than the writer's attempt in the ledger. So
    # a range ends at or before the last number of the attempt in the ledger.
    "ranges": """
        select problem, lossy_topic as topic, cast(null as int) as partition, writer, coalesce(first, 0L) as first,
          least(next, numbers_used) - 1 as last, cast(null as bigint) as from_offset,
          cast(null as bigint) as to_offset, coalesce(from_ms, begin_ms) as from_ms, coalesce(to_ms, end_ms) as to_ms,
          coalesce(to_ms, end_ms) - coalesce(to_ms, end_ms) % 60000 as minute
        from {lossy_writers} left join {gaps} using (writer)
    """,
    "absent_ranges": "select * from {ranges} where first <= last",
}
"""The ranges of a writer's numbers that did not arrive.

`from_ms` and `to_ms` are the times of the messages before and after the range; if there is no such message, they are
`begin_ms` and `end_ms`.
"""
_PROBLEMS: Final = {
    # A range that ends outside the selected minutes is listed if it overlaps a selected minute with absent messages.
    "absent": """
        select * except (is_selected) from {absent_ranges} r where is_selected or exists (
          select 1 from {balance} b
          where missing + discarded > 0 and b.minute between r.from_ms - r.from_ms % 60000 and r.to_ms
            and (r.topic is null or r.topic = b.topic))
    """,
    "ranges": """
        select * from {absent}
        union all
        select 'doubled', topic, partition, writer, first, last, from_offset, to_offset, sent, sent, minute
        from {selected_doubled}
        union all
        select 'out of order', topic, partition, writer, number, number, from_offset, to_offset, sent, sent, minute
        from {selected_out_of_order}
    """,
    "highest_before": """
        select *, max(last) over (
          partition by problem, topic, partition, writer order by first
          rows between unbounded preceding and 1 preceding) as highest_before
        from {ranges}
    """,
    # Ranges with the same number `range` are merged. The number rises where a gap follows all earlier ranges.
    "numbered": """
        select *, count_if(first > highest_before + 1) over (
          partition by problem, topic, partition, writer order by first
          rows between unbounded preceding and current row) as range
        from {highest_before}
    """,
    "problems": """
        select problem, topic, partition, writer, min(first) as first, max(last) as last,
          min(from_offset) as from_offset, max(to_offset) as to_offset, min(from_ms) as from_ms, max(to_ms) as to_ms,
          max(last) - min(first) + 1 as messages
        from {numbered} group by problem, topic, partition, writer, range
        union all
        select 'unknown', topic, partition, writer, first, last, from_offset, to_offset, from_ms, to_ms, messages
        from {unknown_ranges}
    """,
}
"""The ranges of all kinds of problems; adjacent and overlapping ranges of the same kind are merged."""


def find_problems(books: AuditBooks, balance: DataFrame, minute_condition: str) -> DataFrame:
    """Return the ranges of messages with a problem (`PROBLEM_COLUMNS`) in the minutes that `minute_condition` selects.

    Ranges of absent messages have no partition and no offsets.
    """
    tables = books.tables
    if books.is_incomplete:
        tables.register_computed("lossy_writers", tables.query(_LOSSY_WRITERS))
        absent = tables.query(_ABSENT_RANGES)
    else:
        absent = empty_table(tables.spark, f"{_RANGE_COLUMNS}, minute long")
    inputs = {
        "absent_ranges": absent.selectExpr("*", f"{minute_condition} as is_selected"), "balance": balance,
        "selected_doubled": books.doubled.where(minute_condition),
        "selected_out_of_order": books.out_of_order.where(minute_condition), "unknown_ranges": books.unknown_ranges,
    }  # fmt: skip
    for name, table in inputs.items():
        tables.register(name, table)
    return tables.query(_PROBLEMS)
