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
from functools import reduce
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.order import late_messages
from bruce_mp.spark.audit.ranges import expressions, swept

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
_STRAY: Final = "(stray)"


@dataclass(frozen=True)
class Books:
    """`balance`: topic, minute, sent, delivered, discarded, missing, doubled, out_of_order, unknown, reasons, problems.

    `came` are the facts of known writers, `swept` by writer.  `doubled` has ranges that had come before, `late` numbers
    that came behind later ones; both with topic, minute and writer.
    """

    balance: DataFrame
    came: DataFrame
    doubled: DataFrame
    late: DataFrame
    _kept: Sequence[DataFrame]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What was kept in memory for the tables is let go."""
        for table in self._kept:
            table.unpersist()


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
    """Compare `facts` (see `facts_of`) with a ledger and the counts of `discard_lines`."""
    writers = ledger.where("stamped").groupBy("writer").agg(*expressions("max(attempt_rows) as attempt_rows"))
    known = facts.join(writers.select("writer"), "writer")
    came, late = swept(known, ["writer"]).cache(), late_messages(known).cache()
    doubled = came.where("first <= top").selectExpr(*CELL, "writer", "first", "least(last, top) as last")
    cells = _cells(ledger, known, facts).cache()
    shares = _allot(cells, _covers(cells, came, facts, ledger, lines))
    parts = [
        cells.groupBy(CELL).agg(*expressions("sum(rows) as sent", "sum(have) as have", "sum(lack) as lack")),
        _dealt(shares), doubled.groupBy(CELL).agg(*expressions("sum(last - first + 1) as doubled")),
        _unknown(facts, writers, cells), late.groupBy(CELL).agg(*expressions("count(*) as out_of_order")),
    ]  # fmt: skip
    return Books(_balance(parts), came, doubled, late, (came, late, cells))


def _cells(ledger: DataFrame, known: DataFrame, facts: DataFrame) -> DataFrame:
    """pool, topic, minute, rows, have (found in the cell itself), lack."""
    sent = ledger.groupBy("pool", "writer", "attempt", "stamped", *CELL).agg(*expressions("sum(rows) as rows"))
    alone = swept(known, ["writer", "attempt", *CELL])
    found = alone.groupBy("writer", "attempt", *CELL).agg(*expressions("sum(fresh) as found"))
    stamped = sent.where("stamped").join(found, ["writer", "attempt", *CELL], "left")
    plain = sent.where("not stamped").groupBy("pool", *CELL).agg(*expressions("sum(rows) as rows"))
    plain = plain.join(_plain(facts), CELL, "left")
    wanted = ["pool", *CELL, "rows", "least(rows, coalesce(found, 0)) as have"]
    both = stamped.selectExpr(*wanted).unionByName(plain.selectExpr(*wanted))
    return both.selectExpr("*", "rows - have as lack")


def _plain(facts: DataFrame) -> DataFrame:
    """topic, minute, found: messages without a stamp."""
    return facts.where("writer is null").groupBy(CELL).agg(*expressions("sum(copies) as found"))


def _covers(cells: DataFrame, came: DataFrame, facts: DataFrame, ledger: DataFrame, lines: DataFrame) -> DataFrame:
    """pool, rank, reason, count: what may account for what the cells of a pool lack, in the order of rank."""
    pools = ledger.where("stamped").select("pool", "writer").distinct()
    found = came.join(pools, "writer").groupBy("pool").agg(*expressions("sum(fresh) as came"))
    plain = _plain(facts).groupBy("topic").agg(*expressions("sum(found) as came"))
    found = found.unionByName(plain.selectExpr("concat('plain ', topic) as pool", "came"))
    have = cells.groupBy("pool").agg(*expressions("sum(have) as have"))
    stray = found.join(have, "pool").selectExpr("pool", "0 as rank", f"'{_STRAY}' as reason", "came - have as count")
    answered = ledger.where("acks = 'delivered'").groupBy("pool", "writer", "attempt")
    attempts = answered.agg(*expressions("first(discarded) as discarded"))  # each of its rows says the same
    told = attempts.selectExpr("pool", "1 as rank", "explode(discarded) as (reason, count)")
    told = told.groupBy("pool", "rank", "reason").agg(*expressions("sum(count) as count"))
    named = lines.selectExpr("explode(array('topic ', 'plain ')) as kind", "*")
    filed = named.selectExpr("concat(kind, topic) as pool", "2 as rank", "reason", "count")
    filed = filed.join(attempts.select("pool"), "pool", "left_anti")  # what was answered is not counted again
    return stray.unionByName(told).unionByName(filed).where("count > 0")


def _allot(cells: DataFrame, covers: DataFrame) -> DataFrame:
    """topic, minute, reason, count: what the cells of a pool lack, dealt out to its covers one after the other."""
    lacking = _intervals(cells.where("lack > 0").select("pool", *CELL, "lack"), "lack", ["minute", "topic"], "lack")
    covering = _intervals(covers, "count", ["rank", "reason"], "cover")
    overlap = "least(lack_to, cover_to) - greatest(lack_from, cover_from) as count"
    return lacking.join(covering.drop("count"), "pool").selectExpr(*CELL, "reason", overlap).where("count > 0")


def _intervals(table: DataFrame, amount: str, order: Sequence[str], name: str) -> DataFrame:
    """With {name}_from and {name}_to: where each row's amount lies when those of its pool are laid end to end."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    line = Window.partitionBy("pool").orderBy(*order).rowsBetween(Window.unboundedPreceding, 0)
    ends = table.withColumn(f"{name}_to", F.sum(amount).over(line))
    return ends.withColumn(f"{name}_from", F.expr(f"{name}_to - {amount}"))


def _dealt(shares: DataFrame) -> DataFrame:
    """topic, minute, stray, discarded, reasons."""
    by_reason = shares.groupBy(*CELL, "reason").agg(*expressions("sum(count) as count"))
    ours = f"reason <> '{_STRAY}'"
    return by_reason.groupBy(CELL).agg(
        *expressions(
            f"coalesce(sum(count) filter (where not {ours}), 0) as stray",
            f"coalesce(sum(count) filter (where {ours}), 0) as discarded",
            f"map_from_entries(collect_list(struct(reason, count)) filter (where {ours})) as reasons",
        )
    )


def _unknown(facts: DataFrame, writers: DataFrame, cells: DataFrame) -> DataFrame:
    """topic, minute, unknown: of writers without a ledger, and plain messages beyond what ledgers have sent."""
    strangers = facts.where("writer is not null").join(writers, "writer", "left_anti")
    stamped = strangers.groupBy(CELL).agg(*expressions("sum(copies) as unknown"))
    sent = cells.where("startswith(pool, 'plain ')").groupBy("topic").agg(*expressions("sum(rows) as rows"))
    plain = _plain(facts).groupBy("topic").agg(*expressions("sum(found) as found", "max(minute) as minute"))
    beyond = plain.join(sent, "topic", "left").selectExpr(*CELL, "found - coalesce(rows, 0) as unknown")
    both = stamped.unionByName(beyond.where("unknown > 0"))
    return both.groupBy(CELL).agg(*expressions("sum(unknown) as unknown"))


def _balance(parts: Sequence[DataFrame]) -> DataFrame:
    joined = reduce(lambda left, right: left.join(right, CELL, "full"), parts)
    zeros = joined.fillna(0, ["sent", "have", "lack", "stray", "discarded", "doubled", "unknown", "out_of_order"])
    problems = """
        concat_ws(', ', if(missing > 0, 'lost', null), if(doubled > 0, 'doubled', null),
                  if(out_of_order > 0, 'out of order', null)) as problems
    """
    return zeros.selectExpr(
        *CELL, "sent", "have + stray as delivered", "discarded", "lack - stray - discarded as missing", "doubled",
        "out_of_order", "unknown", "reasons",
    ).selectExpr("*", problems)  # fmt: skip
