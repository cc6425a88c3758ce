"""The audit as one call: read, compare, write the tables, say what is wrong.

OUTPUT/messages   what is in Kafka, landed once
OUTPUT/balance    one row for each topic and minute
OUTPUT/gaps       which sequence numbers of which writers are missing
OUTPUT/report.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bruce_mp.spark.audit import books
from bruce_mp.spark.audit.gaps import gaps
from bruce_mp.spark.audit.messages import land, read_topics
from bruce_mp.spark.audit.report import write_report
from bruce_mp.spark.pipelines.discards import discard_table
from bruce_mp.spark.pipelines.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Audit", "Verdict", "audit"]


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
    """Compare, write the tables and the page, and return the sums.  Raises Spark's errors."""
    shown = progress or Progress("audit")
    shown.show(f"reading {', '.join(plan.topics)} from {plan.bootstrap}")
    messages = land(read_topics(spark, plan.bootstrap, plan.topics, plan.kafka), f"{plan.output}/messages")
    ledger = books.read_ledger(spark, plan.ledgers).where(_is_one_of(plan.topics))
    shown.show("comparing")
    _balance(spark, plan, messages, ledger).write.format(plan.table_format).mode("overwrite").save(
        f"{plan.output}/balance"
    )
    balance = spark.read.format(plan.table_format).load(f"{plan.output}/balance")
    gaps(messages, ledger).write.format(plan.table_format).mode("overwrite").save(f"{plan.output}/gaps")
    verdict = _sums(balance)
    write_report(balance, spark.read.format(plan.table_format).load(f"{plan.output}/gaps"), verdict, Path(plan.output))
    shown.finish(str(verdict))
    return verdict


def _balance(spark: SparkSession, plan: Audit, messages: DataFrame, ledger: DataFrame) -> DataFrame:
    if plan.discards:
        lines = discard_table(spark, plan.discards).where(_is_one_of(plan.topics))
    else:
        lines = spark.createDataFrame([], "event string, topic string, time_ms long, info string")
    return books.balance(
        [
            books.sent(ledger), books.discarded(lines), books.found(messages, ledger), books.out_of_order(messages),
            books.latencies(messages),
        ]
    )  # fmt: skip


def _is_one_of(topics: Sequence[str]) -> str:
    return f"topic in ({', '.join(repr(topic) for topic in topics)})"


def _sums(balance: DataFrame) -> Verdict:
    names = Verdict.__dataclass_fields__
    row = balance.agg(dict.fromkeys(names, "sum")).first()  # one row
    return Verdict(**{name: (row and row[f"sum({name})"]) or 0 for name in names})
