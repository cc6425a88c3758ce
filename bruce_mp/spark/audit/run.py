"""Run the audit once: read, compare, write the tables, and return the verdict.

OUTPUT/facts      the contents of Kafka, read once
OUTPUT/balance    one row for each topic and minute
OUTPUT/problems   ranges of missing, doubled and out-of-order sequence numbers, by writer
OUTPUT/report.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.balance import CELL, discard_lines, fill_books, read_ledger
from bruce_mp.spark.audit.facts import SCHEMA, facts_of, percentiles
from bruce_mp.spark.audit.kafka_source import read_topics
from bruce_mp.spark.audit.ranges import expressions, merge_ranges
from bruce_mp.spark.audit.report import AuditVerdict, summarise, write_report
from bruce_mp.spark.audit.tables import empty
from bruce_mp.spark.pipelines.discards import discard_table
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.storage import absolute_path, total_size
from bruce_mp.spark.temporary_settings import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from bruce_mp.spark.audit.balance import AuditBooks

__all__ = ["Audit", "audit", "compare", "find_problems", "land", "no_problems"]

_SMALL_BYTES: Final = 16 << 20
"""Size limit of facts for the small settings; about 100 million messages that were sent in one piece."""
_SMALL_SETTINGS: Final = {  # compilation and distribution take longer than these queries
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # each broadcast runs a separate job
}
_NO_LINES: Final = "event string, topic string, info string"


@dataclass(frozen=True)
class Audit:
    """The inputs and outputs of an audit; `table_format` is Spark's name of the tables' format."""

    bootstrap: str
    topics: Sequence[str]
    ledgers: Sequence[str]
    output: str
    discards: Sequence[str] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)
    table_format: str = "parquet"

    @property
    def facts(self) -> str:
        """Return the directory of the facts."""
        return f"{absolute_path(self.output)}/facts"


def audit(spark: SparkSession, plan: Audit, progress: Progress | None = None) -> AuditVerdict:
    """Land the present messages of the topics, compare them, and return the sums. Raise Spark's errors."""
    display = progress or Progress("audit")
    display.show(f"reading {', '.join(plan.topics)} from {plan.bootstrap}")
    land(read_topics(spark, plan.bootstrap, plan.topics, plan.kafka), plan.facts)
    display.show("comparing")
    verdict = compare(spark, plan)
    display.finish(str(verdict))
    return verdict


def land(messages: DataFrame, directory: str) -> None:
    """Replace the facts in `directory` by those about `messages`, which have the columns of Spark's Kafka source."""
    facts_of(messages).write.mode("overwrite").parquet(directory)


def compare(
    spark: SparkSession, plan: Audit, minutes: str = "true", changed_after: datetime | None = None
) -> AuditVerdict:
    """Compare the landed facts with the ledgers.

    `minutes` is a condition on the column `minute`. Ledger files last written before `changed_after` are not read.
    """
    small = sum(map(total_size, [plan.facts, *plan.ledgers])) < _SMALL_BYTES
    facts = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(plan.facts)
    ledger = read_ledger(spark, plan.ledgers, plan.topics, changed_after)
    if not small:
        return _compare(plan, facts, ledger, minutes)
    with temporary_settings(spark, _SMALL_SETTINGS):  # one partition needs no shuffle
        return _compare(plan, facts.coalesce(1), ledger.coalesce(1), minutes)


def _compare(plan: Audit, facts: DataFrame, ledger: DataFrame, minutes: str) -> AuditVerdict:
    timed, lines = facts.where(minutes), _read_discards(facts.sparkSession, plan.discards)
    with fill_books(facts, ledger, discard_lines(lines, plan.topics)) as books:
        cells = books.balance.where(minutes).join(percentiles(timed, CELL), CELL, "left")
        balance = _write_table(cells, plan, "balance")
        found = summarise(balance, percentiles(timed, ["topic"]))
        verdict = AuditVerdict(**{name: found.total(name) for name in AuditVerdict.__dataclass_fields__})
        problems = find_problems(books, ledger) if verdict.to_name else no_problems(ledger)
        write_report(found, balance, _write_table(problems, plan, "problems"), verdict, absolute_path(plan.output))
    return verdict


def _read_discards(spark: SparkSession, discards: Sequence[str]) -> DataFrame:
    return discard_table(spark, discards) if discards else empty(spark, _NO_LINES)


def _write_table(table: DataFrame, plan: Audit, name: str) -> DataFrame:
    """Write the table to one file, because it is small, and return it as read back."""
    path = f"{absolute_path(plan.output)}/{name}"
    table.coalesce(1).write.format(plan.table_format).mode("overwrite").save(path)
    return table.sparkSession.read.format(plan.table_format).load(path)


# --- the problems ----------------------------------------------------------------------------------------------------

_COLUMNS: Final = "problem string, writer string, first long, last long"


def find_problems(books: AuditBooks, ledger: DataFrame) -> DataFrame:
    """Return problem, writer, first and last.

    Discarded messages are among the missing, because reports of discards contain no sequence numbers.
    """
    missing = _missing_ranges(books.arrived, ledger).selectExpr("'missing' as problem", "writer", "first", "last")
    doubled = books.doubled.selectExpr("'doubled' as problem", "writer", "first", "last")
    late = books.late.selectExpr("'out of order' as problem", "writer", "number as first", "number as last")
    return merge_ranges(missing.unionByName(doubled).unionByName(late), ["problem", "writer"])


def no_problems(ledger: DataFrame) -> DataFrame:
    """Return the table of problems without rows."""
    return empty(ledger.sparkSession, _COLUMNS)


def _missing_ranges(arrived: DataFrame, ledger: DataFrame) -> DataFrame:
    """Return writer, first and last of the used numbers that did not arrive."""
    used = ledger.where("stamped").groupBy("writer").agg(*expressions("max(attempt_rows) as used"))
    gaps = arrived.join(used, "writer").selectExpr("writer", "top + 1 as first", "least(first, used) - 1 as last")
    highest = arrived.groupBy("writer").agg(*expressions("max(last) as highest"))
    tail = used.join(highest, "writer", "left").selectExpr(
        "writer", "coalesce(highest, -1L) + 1 as first", "used - 1 as last"
    )
    return gaps.unionByName(tail).where("first <= last")
