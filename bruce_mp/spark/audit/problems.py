"""Names each message that is missing, doubled or out of order, as ranges of a writer's sequence numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.ranges import expressions, merged
from bruce_mp.spark.audit.tables import empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bruce_mp.spark.audit.books import Books

__all__ = ["find_problems", "no_problems"]

_COLUMNS: Final = "problem string, writer string, first long, last long"


def find_problems(books: Books, ledger: DataFrame) -> DataFrame:
    """problem, writer, first, last.  What was discarded is among the missing: nothing says which numbers it had."""
    holes = _holes(books.came, ledger).selectExpr("'missing' as problem", "writer", "first", "last")
    twice = books.doubled.selectExpr("'doubled' as problem", "writer", "first", "last")
    late = books.late.selectExpr("'out of order' as problem", "writer", "number as first", "number as last")
    return merged(holes.unionByName(twice).unionByName(late), ["problem", "writer"])


def no_problems(ledger: DataFrame) -> DataFrame:
    """The same without a row."""
    return empty(ledger.sparkSession, _COLUMNS)


def _holes(came: DataFrame, ledger: DataFrame) -> DataFrame:
    """writer, first, last: numbers that a writer has used and that did not come."""
    used = ledger.where("stamped").groupBy("writer").agg(*expressions("max(attempt_rows) as used"))
    between = came.join(used, "writer").selectExpr("writer", "top + 1 as first", "least(first, used) - 1 as last")
    highest = came.groupBy("writer").agg(*expressions("max(last) as highest"))
    behind = used.join(highest, "writer", "left").selectExpr(
        "writer", "coalesce(highest, -1L) + 1 as first", "used - 1 as last"
    )
    return between.unionByName(behind).where("first <= last")
