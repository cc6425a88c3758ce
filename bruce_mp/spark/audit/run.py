"""The audit as one call: read, compare, write the tables, say what is wrong.

OUTPUT/facts, OUTPUT/latencies   what is in Kafka, landed once
OUTPUT/balance                   one row for each topic and minute
OUTPUT/problems                  which sequence numbers of which writers are missing, doubled, out of order
OUTPUT/report.html
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.books import CELL, discard_lines, fill_books, read_ledger
from bruce_mp.spark.audit.landing import FACTS_DIRECTORY, FORMAT, LATENCIES_DIRECTORY, LandingSource
from bruce_mp.spark.audit.latency import percentiles
from bruce_mp.spark.audit.messages import columns, read_topics
from bruce_mp.spark.audit.problems import find_problems
from bruce_mp.spark.audit.report import write_report
from bruce_mp.spark.pipelines.discards import discard_table
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.storage import absolute, empty_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Audit", "Verdict", "audit", "compare", "land"]

_INTERPRET: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_NO_LINES: Final = "event string, topic string, info string"
_PROBLEMS: Final = "problem string, writer string, first long, last long"


@dataclass(frozen=True)
class Audit:
    """What is compared.  `table_format` is Spark's name of the tables' format (parquet, delta)."""

    bootstrap: str
    topics: Sequence[str]
    ledgers: Sequence[str]
    output: str
    discards: Sequence[str] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)
    table_format: str = "parquet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sums over all topics and minutes."""

    sent: int
    delivered: int
    discarded: int
    missing: int
    doubled: int
    out_of_order: int
    unknown: int

    @property
    def to_name(self) -> bool:
        """Whether there are sequence numbers to name."""
        return bool(self.missing or self.doubled or self.out_of_order or self.discarded)

    @property
    def good(self) -> bool:
        """Nothing is missing, doubled or out of order.  Discards are no fault of the books: they are accounted for."""
        return not (self.missing or self.doubled or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"sent {self.sent:,} = delivered {self.delivered:,} + discarded {self.discarded:,} + missing "
            f"{self.missing:,}; doubled {self.doubled:,}, out of order {self.out_of_order:,}, of unknown writers "
            f"{self.unknown:,}"
        )


def audit(spark: SparkSession, plan: Audit, progress: Progress | None = None) -> Verdict:
    """Land what is in the topics now, compare, and return the sums.  Raises Spark's errors."""
    shown = progress or Progress("audit")
    shown.show(f"reading {', '.join(plan.topics)} from {plan.bootstrap}")
    land(spark, read_topics(spark, plan.bootstrap, plan.topics, plan.kafka), plan.output)
    shown.show("comparing")
    verdict = compare(spark, plan)
    shown.finish(str(verdict))
    return verdict


def land(spark: SparkSession, messages: DataFrame, output: str) -> None:
    """Write the facts about `messages`, which have the columns of Spark's Kafka source; older facts go."""
    for directory in (FACTS_DIRECTORY, LATENCIES_DIRECTORY):
        empty_directory(f"{absolute(output)}/{directory}")
    spark.dataSource.register(LandingSource)
    columns(messages).write.format(FORMAT).mode("append").save(absolute(output))


def compare(spark: SparkSession, plan: Audit, minutes: str = "true", changed_after: datetime | None = None) -> Verdict:
    """Compare what has been landed with the ledgers.

    `minutes` is a condition on the column `minute`; ledger files that were last written before `changed_after` are not
    read.
    """
    with _interpreted(spark):
        return _compare(spark, plan, minutes, changed_after)


def _compare(spark: SparkSession, plan: Audit, minutes: str, changed_after: datetime | None) -> Verdict:
    output = absolute(plan.output)
    facts = spark.read.parquet(f"{output}/{FACTS_DIRECTORY}")
    latencies = spark.read.parquet(f"{output}/{LATENCIES_DIRECTORY}").where(minutes)
    ledger = read_ledger(spark, plan.ledgers, plan.topics, changed_after)
    with fill_books(facts, ledger, discard_lines(_lines(spark, plan.discards), plan.topics)) as books:
        cells = books.balance.where(minutes).join(percentiles(latencies, CELL), CELL, "left")
        balance = _written(cells, plan, "balance")
        verdict = _sums(balance)
        named = find_problems(facts, ledger, books.numbers) if verdict.to_name else spark.createDataFrame([], _PROBLEMS)
        problems = _written(named, plan, "problems")
    write_report(balance, percentiles(latencies, ["topic"]), problems, verdict, output)
    return verdict


@contextmanager
def _interpreted(spark: SparkSession) -> Iterator[None]:
    """Without compiling queries to Java: the tables are so small that compiling takes longer than they do."""
    before = {key: spark.conf.get(key) for key in _INTERPRET}
    try:
        for key, value in _INTERPRET.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, str(old))


def _lines(spark: SparkSession, discards: Sequence[str]) -> DataFrame:
    return discard_table(spark, discards) if discards else spark.createDataFrame([], _NO_LINES)


def _written(table: DataFrame, plan: Audit, name: str) -> DataFrame:
    """The table as it was written; small, so in one file."""
    path = f"{absolute(plan.output)}/{name}"
    table.coalesce(1).write.format(plan.table_format).mode("overwrite").save(path)
    return table.sparkSession.read.format(plan.table_format).load(path)


def _sums(balance: DataFrame) -> Verdict:
    names = Verdict.__dataclass_fields__
    row = balance.agg(dict.fromkeys(names, "sum")).first()  # one row
    return Verdict(**{name: (row and row[f"sum({name})"]) or 0 for name in names})
