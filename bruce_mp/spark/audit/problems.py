"""List missing, doubled and out-of-order messages as ranges of a writer's sequence numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.ranges import expressions, merged
from bruce_mp.spark.audit.tables import empty

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bruce_mp.spark.audit.books import AuditBooks

__all__ = ["find_problems", "no_problems"]

_COLUMNS: Final = "problem string, writer string, first long, last long"


def find_problems(books: AuditBooks, ledger: DataFrame) -> DataFrame:
    """Return problem, writer, first and last.

    Discarded messages are among the missing, because reports of discards contain no sequence numbers.
    """
    holes = _holes(books.came, ledger).selectExpr("'missing' as problem", "writer", "first", "last")
    twice = books.doubled.selectExpr("'doubled' as problem", "writer", "first", "last")
    late = books.late.selectExpr("'out of order' as problem", "writer", "number as first", "number as last")
    return merged(holes.unionByName(twice).unionByName(late), ["problem", "writer"])


def no_problems(ledger: DataFrame) -> DataFrame:
    """Return the table of problems without rows."""
    return empty(ledger.sparkSession, _COLUMNS)


def _holes(came: DataFrame, ledger: DataFrame) -> DataFrame:
    """Return writer, first and last of the used numbers that did not arrive."""
    used = ledger.where("stamped").groupBy("writer").agg(*expressions("max(attempt_rows) as used"))
    between = came.join(used, "writer").selectExpr("writer", "top + 1 as first", "least(first, used) - 1 as last")
    highest = came.groupBy("writer").agg(*expressions("max(last) as highest"))
    behind = used.join(highest, "writer", "left").selectExpr(
        "writer", "coalesce(highest, -1L) + 1 as first", "used - 1 as last"
    )
    return between.unionByName(behind).where("first <= last")
