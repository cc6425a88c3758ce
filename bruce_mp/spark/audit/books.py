"""The audit's arithmetic: what was sent, what became of it, for each topic and minute.

    sent = delivered + discarded + missing

Delivered are different messages, so copies are `doubled`; `unknown` is what nobody entered into a ledger.  All tables
here are as small as the ledgers and the facts; none is collected.

A ledger says how many messages of each topic and minute an attempt sent (a *cell*), and of the whole attempt what was
discarded.  So what a cell lacks is first found elsewhere (`stray`: another attempt or another minute brought it to
Kafka), then discarded, then missing: `_allot` deals out one after the other.  Attempts whose fate the daemon was not
asked about share, topic by topic, what discard files say; messages without a stamp share what is in the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.order import disordered_lanes, late_messages
from bruce_mp.spark.audit.tables import Tables, empty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CELL", "Books", "discard_lines", "fill_books", "read_ledger"]

_LEDGER: Final = (
    "query string, batch long, partition int, attempt int, host string, acks string, stamped boolean, "
    "attempt_rows long, topic string, minute long, rows long, delivered long, discarded map<string, long>, "
    "dead_letters long"
)
CELL: Final = ["topic", "minute"]
_CAME: Final = """
    with writers as (select writer from {ledger} where stamped group by writer),
      known as (select * from {facts} left semi join writers using (writer)),
      passed as (
        select *, coalesce(max(last) over by_writer, -1L) as top, coalesce(max(last) over by_cell, -1L) as top_of_cell
        from known
        window by_writer as (partition by writer order by first, sent rows between unbounded preceding and 1 preceding),
          by_cell as (
            partition by writer, attempt, topic, minute order by first, sent
            rows between unbounded preceding and 1 preceding))
    select *, greatest(last - greatest(top, first - 1), 0L) as fresh,
      greatest(last - greatest(top_of_cell, first - 1), 0L) as fresh_in_cell
    from passed
"""
"""Facts of known writers, with `top`, the highest number of the ranges before, -1 for none, and `fresh`, how many
numbers are new.  Ranges come in the order of their first numbers, so that what is before covers all from `first` up to
`top`; of ranges that begin alike, the one that was sent first.  The same within an attempt's cell."""
_CELLS: Final = """
    with sent as (
        select pool, writer, attempt, stamped, topic, minute, sum(rows) as rows from {ledger}
        group by pool, writer, attempt, stamped, topic, minute),
      found as (
        select writer, attempt, topic, minute, sum(fresh_in_cell) as found from {came}
        group by writer, attempt, topic, minute),
      stamped as (
        select pool, topic, minute, rows, found
        from sent left join found using (writer, attempt, topic, minute) where stamped),
      plain_sent as (
        select pool, topic, minute, sum(rows) as rows from sent where not stamped group by pool, topic, minute),
      plain as (select pool, topic, minute, rows, found from plain_sent left join {plain} using (topic, minute))
    select *, rows - have as lack from (
      select pool, topic, minute, rows, least(rows, coalesce(found, 0)) as have
      from (select * from stamped union all select * from plain))
"""
"""pool, topic, minute, rows, have (found in the cell itself), lack."""
_PLAIN: Final = """
    select topic, minute, sum(copies) as found from {facts} where writer is null group by topic, minute
"""
"""topic, minute, found: messages without a stamp."""
_COVERS: Final = """
    with pools as (select distinct pool, writer from {ledger} where stamped),
      found as (
        select pool, sum(fresh) as came from {came} join pools using (writer) group by pool
        union all select concat('plain ', topic), sum(found) from {plain} group by topic),
      having as (select pool, sum(have) as have from {cells} group by pool),
      attempts as (  -- each row of an attempt says the same
        select pool, first(discarded) as discarded from {ledger} where acks = 'delivered'
        group by pool, writer, attempt),
      told as (
        select pool, reason, sum(count) as count from attempts lateral view explode(discarded) as reason, count
        group by pool, reason),
      filed as (  -- what was answered is not counted again
        select * from (
          select concat(kind, topic) as pool, reason, count from {lines}
          lateral view explode(array('topic ', 'plain ')) as kind)
        left anti join attempts using (pool))
    select * from (
      select pool, 0 as rank, '(stray)' as reason, came - have as count from found join having using (pool)
      union all select pool, 1, reason, count from told
      union all select pool, 2, reason, count from filed)
    where count > 0
"""
"""pool, rank, reason, count: what may account for what the cells of a pool lack, in the order of rank."""
_SHARES: Final = """
    with lacking as (
        select *, sum(lack) over (
          partition by pool order by minute, topic rows between unbounded preceding and current row) as lack_to
        from {cells} where lack > 0),
      covering as (
        select *, sum(count) over (
          partition by pool order by rank, reason rows between unbounded preceding and current row) as cover_to
        from {covers}),
      dealt as (
        select topic, minute, reason,
          least(lack_to, cover_to) - greatest(lack_to - lack, cover_to - count) as count
        from lacking join covering using (pool))
    select topic, minute, reason, sum(count) as count from dealt where count > 0 group by topic, minute, reason
"""
_SHARES_COLUMNS: Final = "topic string, minute long, reason string, count long"
"""topic, minute, reason, count: what the cells of a pool lack, dealt out to its covers one after the other.  The
amounts of either side are laid end to end; what overlaps belongs together."""
_UNKNOWN: Final = """
    with writers as (select writer from {ledger} where stamped group by writer),
      sent as (select topic, sum(rows) as rows from {cells} where startswith(pool, 'plain ') group by topic),
      found as (select topic, sum(found) as found, max(minute) as minute from {plain} group by topic)
    select topic, minute, copies as count from {facts} left anti join writers using (writer) where writer is not null
    union all
    select topic, minute, found - coalesce(rows, 0)
    from found left join sent using (topic) where found > coalesce(rows, 0)
"""
"""topic, minute, count: of writers without a ledger, and plain messages beyond what ledgers have sent."""
_DOUBLED: Final = """
    select topic, minute, writer, first, least(last, top) as last from {came} where first <= top
"""
_BALANCE: Final = """
    with entries as (
        select topic, minute, stack(2, 'sent', rows, 'lack', lack) as (kind, count), null as reason from {cells}
        union all
        select topic, minute, if(reason = '(stray)', 'stray', 'discarded'), count, nullif(reason, '(stray)')
        from {shares}
        union all select topic, minute, 'doubled', last - first + 1, null from {doubled}
        union all select topic, minute, 'out of order', 1, null from {late}
        union all select topic, minute, 'unknown', count, null from {unknown}),
      sums as (
        select topic, minute,
          coalesce(sum(count) filter (where kind = 'sent'), 0) as sent,
          coalesce(sum(count) filter (where kind = 'lack'), 0) as lack,
          coalesce(sum(count) filter (where kind = 'stray'), 0) as stray,
          coalesce(sum(count) filter (where kind = 'discarded'), 0) as discarded,
          coalesce(sum(count) filter (where kind = 'doubled'), 0) as doubled,
          coalesce(sum(count) filter (where kind = 'out of order'), 0) as out_of_order,
          coalesce(sum(count) filter (where kind = 'unknown'), 0) as unknown,
          collect_list(struct(reason, count)) filter (where reason is not null) as reasons
        from entries group by topic, minute),
      books as (
        select topic, minute, sent, sent - lack + stray as delivered, discarded, lack - stray - discarded as missing,
          doubled, out_of_order, unknown, if(size(reasons) > 0, map_from_entries(reasons), null) as reasons
        from sums)
    select *, concat_ws(', ', if(missing > 0, 'lost', null), if(doubled > 0, 'doubled', null),
                        if(out_of_order > 0, 'out of order', null)) as problems
    from books
"""
_LATE_COLUMNS: Final = "topic string, minute long, writer string, number long"
_AT_FIRST_SIGHT: Final = """
    select sum(lack) > 0 as lacking, sum(lanes) > 0 as disordered
    from (select lack, 0 as lanes from {cells} union all select 0, 1 from {lanes})
"""


@dataclass(frozen=True)
class Books:
    """`balance`: topic, minute, sent, delivered, discarded, missing, doubled, out_of_order, unknown, reasons, problems.

    `came` are the facts of known writers, with what is said of `_CAME`.  `doubled` has ranges that had come before,
    `late` numbers that came behind later ones; both with topic, minute and writer.
    """

    balance: DataFrame
    came: DataFrame
    doubled: DataFrame
    late: DataFrame
    _tables: Tables

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """What was kept in memory for the tables is let go."""
        self._tables.__exit__(*error)


def read_ledger(
    spark: SparkSession, directories: Sequence[str], topics: Sequence[str], changed_after: datetime | None = None
) -> DataFrame:
    """The rows of ledgers about these topics, from files that changed after a moment (None: from all).

    `writer` is as the stamps name it, and `pool` names who shares the unaccounted: the writer, or its topic.
    """
    files = {} if changed_after is None else {"modifiedAfter": f"{changed_after.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"}
    rows = spark.read.options(timeZone="UTC", **files).schema(_LEDGER).json(list(directories))
    rows = rows.where(rows["topic"].isin(*topics))
    alone = "stamped and acks = 'delivered'"
    named = rows.selectExpr("*", "concat_ws('/', query, batch, partition) as writer")
    return named.selectExpr("*", f"if({alone}, writer, concat(if(stamped, 'topic ', 'plain '), topic)) as pool")


def discard_lines(lines: DataFrame, topics: Sequence[str]) -> DataFrame:
    """topic, reason, count: what discard files say, without possible duplicates."""
    wanted = lines.where("event = 'DISC'").where(lines["topic"].isin(*topics))
    return wanted.groupBy("topic", wanted["info"].alias("reason")).count()


def fill_books(facts: DataFrame, ledger: DataFrame, lines: DataFrame) -> Books:
    """Compare `facts` (see `facts_of`) with a ledger and the counts of `discard_lines`.

    Runs one query, which shows whether anything is lacking or out of order.  Nearly always nothing is, and what would
    find out more is left out.
    """
    tables = Tables(facts.sparkSession)
    for name, table in {"facts": facts, "ledger": ledger, "lines": lines}.items():
        tables.put(name, table)
    came = tables.keep("came", tables.query(_CAME))
    tables.put("plain", tables.query(_PLAIN))
    tables.keep("cells", tables.query(_CELLS))
    lacking, disordered = _at_first_sight(tables)
    nobody = empty(tables.spark, _LATE_COLUMNS)
    late = tables.keep("late", late_messages(came)) if disordered else tables.put("late", nobody)
    tables.put("shares", _shares(tables) if lacking else empty(tables.spark, _SHARES_COLUMNS))
    doubled = tables.put("doubled", tables.query(_DOUBLED))
    tables.put("unknown", tables.query(_UNKNOWN))
    return Books(tables.query(_BALANCE), came, doubled, late, tables)


def _at_first_sight(tables: Tables) -> tuple[bool, bool]:
    """Whether a cell lacks anything, and whether a lane may be out of order."""
    tables.put("lanes", disordered_lanes(tables["came"]))
    row = tables.query(_AT_FIRST_SIGHT).first()
    return (bool(row["lacking"]), bool(row["disordered"])) if row else (False, False)


def _shares(tables: Tables) -> DataFrame:
    tables.put("covers", tables.query(_COVERS))
    return tables.query(_SHARES)
