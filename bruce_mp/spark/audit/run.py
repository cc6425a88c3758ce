"""Run the audit once: read, compare, write the tables, and return the verdict.

OUTPUT/facts      the contents of Kafka, read once and condensed (`facts.py`)
OUTPUT/balance    the numbers of sent, delivered, discarded, missing and other messages of each topic and minute
OUTPUT/problems   ranges of missing, discarded, doubled, out-of-order and unknown messages of a writer (a Spark task)
OUTPUT/samples    if `samples_per_problem` is not 0: some of the messages with a problem
OUTPUT/report.html

An unknown message is in Kafka, but its writer is in no ledger.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from bruce_mp.errors import BruceError
from bruce_mp.spark.audit.balance import TOPIC_AND_MINUTE, fill_books
from bruce_mp.spark.audit.deleted_messages import describe_deleted
from bruce_mp.spark.audit.facts import SCHEMA, facts_of, latency_percentiles
from bruce_mp.spark.audit.inputs import DISCARD_COLUMNS, discards_of, read_ledger
from bruce_mp.spark.audit.kafka_source import MissingRecordsError, find_missing_offset, read_topics
from bruce_mp.spark.audit.problems import PROBLEM_COLUMNS, find_problems
from bruce_mp.spark.audit.report import (
    COUNTS,
    AuditVerdict,
    collect_reasons,
    describe_unaudited,
    describe_unconfirmed,
    remove_report,
    summarize,
    write_report,
)
from bruce_mp.spark.audit.samples import SAMPLE_COLUMNS, sample_messages
from bruce_mp.spark.audit.tables import empty_table
from bruce_mp.spark.kafka_admin import count_offsets, missing_topics, offsets_of
from bruce_mp.spark.pipelines.discards import read_discard_lines
from bruce_mp.spark.pipelines.progress import Progress, ProgressMeter
from bruce_mp.spark.pipelines.running_stages import RunningStages
from bruce_mp.spark.session import temporary_settings
from bruce_mp.spark.storage import absolute_path, open_directory, total_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Audit", "AuditInputError", "audit", "check_paths", "compare", "expand_glob", "read_samples", "write_facts"]

_START_PREFIX: Final = "starting"
_LIMIT_PREFIXES: Final = (_START_PREFIX, "ending")
"""Prefixes of the options with which Spark's Kafka source reads only a part of a topic; in lower case."""
_SMALL_AUDIT_BYTES: Final = 16 << 20
"""An audit is small if its facts and ledgers have fewer bytes together.

A fact is a row about many messages, so the facts about 100 million messages of a few writers have about this size.
"""
_SMALL_SETTINGS: Final = {  # in small audits, compiling and distributing a query takes longer than running it
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # each broadcast runs a separate job
}
_ADAPTIVE_SETTINGS: Final = {  # adaptive execution merges the 512 partitions of a shuffle into fewer, larger ones
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "512",
}
_GLOB_CHARACTERS: Final = frozenset("*?[{")
_LOCAL: Final = "file://"


class AuditInputError(BruceError):
    """An audit cannot begin because a topic or path does not exist; the command prints the text and exits."""


@dataclass(frozen=True)
class Audit:
    """The inputs and outputs of an audit.

    `bootstrap` is the address of some brokers. `ledgers` are directories of ledgers, `discards` are paths of discard
    files, and `output` is the directory for the tables and the report. `kafka` are options of Spark's Kafka source, and
    `table_format` is the format of the tables, as Spark names it.
    """

    bootstrap: str
    topics: Sequence[str]
    ledgers: Sequence[str]
    output: str
    discards: Sequence[str] = ()
    kafka: Mapping[str, str] = field(default_factory=dict)
    table_format: str = "parquet"
    namespace: str | None = None
    """The catalog and namespace for the tables; None: the tables are directories in `output`."""
    unknown_is_bad: bool = False
    """True if unknown messages make the verdict bad."""
    samples_per_problem: int = 0
    """Maximum number of messages in the table `samples` for each kind of problem; 0: no such table."""

    @property
    def facts_directory(self) -> str:
        return f"{absolute_path(self.output)}/facts"

    @property
    def kafka_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source, `bootstrap` included."""
        return {"kafka.bootstrap.servers": self.bootstrap, **self.kafka}

    def has_kafka_option(self, *prefixes: str) -> bool:
        """Return True if an option of `kafka` begins with one of the prefixes; its case does not matter."""
        return any(option.lower().startswith(prefixes) for option in self.kafka)


def audit(spark: SparkSession, plan: Audit, progress: Progress | None = None) -> AuditVerdict:
    """Write the facts about all messages of the topics, compare them with the ledgers, and return the verdict.

    A topic that the brokers do not have counts as empty. Raise AuditInputError, LedgerFileError, MissingRecordsError,
    or Spark's errors.
    """
    display = progress or Progress("audit")
    remove_report(absolute_path(plan.output))
    check_paths(spark, plan)
    # `absent_topics` is None if the brokers cannot be asked. Then `_describe_reading` gets no topics, because it would
    # need the brokers' number of messages for a percentage.
    absent_topics = missing_topics(spark, plan.kafka_options, plan.topics)
    # The ledger is read before Kafka. In the other order, what a job commits in between would be missing.
    with _open_ledger(spark, plan) as ledger:
        if absent_topics:
            _check_absent_topics(ledger, absent_topics)
        topics = [topic for topic in plan.topics if topic not in (absent_topics or ())]
        display.show(f"reading {', '.join(topics)} from {plan.bootstrap}")
        with display.repeat(_describe_reading(spark, plan, () if absent_topics is None else topics)):
            _read_facts(spark, plan, topics)
        with display.repeat(lambda: "comparing"):
            from_start = not plan.has_kafka_option(_START_PREFIX)
            verdict = _compare(spark, plan, ledger, absent_topics=absent_topics or (), has_first_messages=from_start)
    display.show_line(f"wrote {absolute_path(plan.output)}/report.html")
    return verdict


def check_paths(spark: SparkSession, plan: Audit) -> None:
    """Raise AuditInputError if a path of the discard files or ledgers does not exist."""
    for path in plan.discards:
        if not _is_found(spark, path):
            raise AuditInputError(f"--discards {path}: no file matches. Correct the path, or leave the option out.")
    for directory in plan.ledgers:
        if not _is_found(spark, directory):
            raise AuditInputError(
                f"--ledger {directory}: there is no such directory. Give the directory to which the sink "
                "wrote its ledger (option 'ledger' of .format('bruce'))."
            )


def _is_found(spark: SparkSession, path: str) -> bool:
    """Return True if Spark finds the path, which may be a glob."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - slow to import

    if "://" not in path and Path(path).exists():
        return True
    try:
        spark.read.text(path)
    except AnalysisException as error:
        if "[PATH_NOT_FOUND]" not in str(error):
            raise
        return False
    return True


def _check_absent_topics(ledger: _Ledger, absent_topics: Sequence[str]) -> None:
    """Raise AuditInputError if the ledgers do not have one of these topics either, because its name may be wrong."""
    ledger_topics = {row["topic"] for row in ledger.entries.where("is_audited").select("topic").distinct().collect()}
    unfound_topics = [topic for topic in absent_topics if topic not in ledger_topics]
    if unfound_topics:
        raise AuditInputError(
            f"--topic {', '.join(unfound_topics)}: neither the brokers nor the ledgers have this topic. Correct "
            "the name, or leave it out."
        )


def _read_facts(spark: SparkSession, plan: Audit, topics: Sequence[str]) -> None:
    """Write the facts about all messages of the topics. Raise MissingRecordsError, or another error of Spark."""
    if not topics:
        empty_table(spark, SCHEMA).write.mode("overwrite").parquet(plan.facts_directory)
        return
    try:
        write_facts(read_topics(spark, plan.kafka_options, topics), plan.facts_directory)
    except Exception as error:
        offset = find_missing_offset(error)
        if offset is None:
            raise
        raise MissingRecordsError(offset, offsets_of(spark, plan.kafka_options, topics) or ()) from error


def _describe_reading(spark: SparkSession, plan: Audit, topics: Sequence[str]) -> Callable[[], str]:
    """Return a function that describes the progress of reading the topics.

    The description has no counts under Spark Connect, and no percentage if `topics` is empty.
    """
    stages, meter = RunningStages(spark), ProgressMeter("messages read")
    if not stages.has_counts:
        return lambda: "reading"
    reads_everything = topics and not plan.has_kafka_option(*_LIMIT_PREFIXES)
    offset_count = count_offsets(spark, plan.kafka_options, topics) if reads_everything else None

    def describe() -> str:
        row_count = stages.counts().rows
        return meter.describe(row_count, row_count / offset_count if offset_count else None)

    return describe


def write_facts(messages: DataFrame, directory: str) -> None:
    """Replace the facts in `directory` by facts about `messages`, a table with the columns of Spark's Kafka source."""
    with temporary_settings(messages.sparkSession, _ADAPTIVE_SETTINGS):
        facts_of(messages).write.mode("overwrite").parquet(directory)


def compare(
    spark: SparkSession, plan: Audit, minute_condition: str = "true", changed_after: datetime | None = None
) -> AuditVerdict:
    """Compare the facts with the ledgers, and write the tables and the report.

    `minute_condition` is an SQL condition on the column `minute`, which selects the minutes to report. Ledger files
    last written before `changed_after` are not read, and messages of earlier minutes are ignored.
    """
    with _open_ledger(spark, plan, changed_after) as ledger:
        return _compare(spark, plan, ledger, minute_condition, changed_after)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The entries of the ledgers at a time, and the size of their files in bytes."""

    entries: DataFrame
    size: int


@contextmanager
def _open_ledger(spark: SparkSession, plan: Audit, changed_after: datetime | None = None) -> Iterator[_Ledger]:
    """Read the ledgers now. The end of the block releases the entries."""
    ledgers = [match for path in plan.ledgers for match in expand_glob(spark, path)]
    size = sum(map(total_size, ledgers))
    with temporary_settings(spark, _SMALL_SETTINGS if size < _SMALL_AUDIT_BYTES else _ADAPTIVE_SETTINGS):
        entries = read_ledger(spark, ledgers, plan.topics, changed_after)
    try:
        yield _Ledger(entries, size)
    finally:
        entries.unpersist()


def expand_glob(spark: SparkSession, path: str) -> list[str]:
    """Return the directories with files, and the files, that match the path of a ledger; [path] if it is no glob.

    Spark could read a glob, too, but then with the files that merged ones cover.
    """
    is_local = "://" not in path
    if _GLOB_CHARACTERS.isdisjoint(path) or (is_local and Path(path).exists()):
        return [path]
    pattern = f"{_LOCAL}{os.path.normpath(absolute_path(path))}" if is_local else path.rstrip("/")
    # `inputFiles` lists the files below each match without reading them. A match has as many parts as the pattern.
    part_count = len(pattern.split("/"))
    uris = spark.read.text(path).inputFiles()
    matches = sorted({"/".join(uri.split("/")[:part_count]) for uri in uris})
    return [unquote(uri.removeprefix(_LOCAL)) if uri.startswith(_LOCAL) else uri for uri in matches] or [path]


def _compare(
    spark: SparkSession,
    plan: Audit,
    ledger: _Ledger,
    minute_condition: str = "true",
    changed_after: datetime | None = None,
    *,
    absent_topics: Collection[str] = (),
    has_first_messages: bool = False,
) -> AuditVerdict:
    """Compare the facts with `ledger`; the other arguments are as in `compare`.

    `absent_topics` are topics that the brokers do not have. `has_first_messages` is True if the facts begin with the
    first message that the brokers have of each partition.
    """
    is_small = ledger.size + total_size(plan.facts_directory) < _SMALL_AUDIT_BYTES
    facts = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(plan.facts_directory)
    entries, oldest_minute_ms = ledger.entries, None
    lines = read_discard_lines(spark, plan.discards) if plan.discards else empty_table(spark, DISCARD_COLUMNS)
    if changed_after is not None:
        # A merged ledger file also has older commits, and the first micro-batch of `follow` all older messages. A
        # minute that only the facts or discard lines have would hide losses, so all begin with the same one.
        oldest_minute_ms = int(changed_after.timestamp() - 60) * 1000  # a row's `minute` begins up to 60 s before
        facts, entries = (table.where(f"minute >= {oldest_minute_ms}") for table in (facts, entries))
    if is_small:
        facts, entries = facts.coalesce(1), entries.coalesce(1)  # one partition needs no shuffle
    with temporary_settings(spark, _SMALL_SETTINGS if is_small else _ADAPTIVE_SETTINGS):
        discards = discards_of(lines, plan.topics, oldest_minute_ms)
        return _report(
            plan, facts, entries, minute_condition, absent_topics, discards=discards,
            has_first_messages=has_first_messages,
        )  # fmt: skip


def _report(
    plan: Audit,
    facts: DataFrame,
    ledger: DataFrame,
    minute_condition: str,
    absent_topics: Collection[str],
    *,
    discards: DataFrame,
    has_first_messages: bool,
) -> AuditVerdict:
    spark, facts_of_minutes = facts.sparkSession, facts.where(minute_condition)
    # `fill_books` compares all minutes, because Kafka may have a message in another minute than the ledger. Only its
    # results are filtered by minute: most of them below, and `unknown_ranges`, which has no column `minute`, by itself.
    with fill_books(facts, ledger, discards, minute_condition) as books:
        latencies = latency_percentiles(facts_of_minutes, TOPIC_AND_MINUTE)
        with_latencies = books.balance.where(minute_condition).join(latencies, TOPIC_AND_MINUTE, "left")
        balance = _write_table(with_latencies, plan, "balance")
        summary = summarize(balance, latency_percentiles(facts_of_minutes, ["topic"]))
        reasons = collect_reasons(balance) if summary.total("discarded") else []
        notes: list[str] = []
        if summary.total("missing"):
            notes += describe_unconfirmed(books, minute_condition)
            if has_first_messages:
                topics = [topic for topic in plan.topics if topic not in absent_topics]
                notes += describe_deleted(balance, facts, offsets_of(spark, plan.kafka_options, topics))
        notes += describe_unaudited(ledger.where("not is_audited").where(minute_condition))
        verdict = AuditVerdict(
            **{name: summary.total(name) for name in COUNTS},
            unknown_is_bad=plan.unknown_is_bad,
            topic_lines=summary.describe(absent_topics, reasons),
            notes=tuple(notes),
        )
        ranges = empty_table(spark, PROBLEM_COLUMNS)
        if verdict.has_problems:
            ranges = find_problems(books, balance, minute_condition)
        problems = _write_table(ranges, plan, "problems")
        write_report(summary, reasons, problems, verdict, absolute_path(plan.output))
    if plan.samples_per_problem:
        _write_table(sample_messages(problems, plan.kafka_options, plan.samples_per_problem), plan, "samples")
    else:
        _remove_samples(spark, plan)
    return verdict


def read_samples(spark: SparkSession, plan: Audit) -> DataFrame:
    """Return the table `samples` that the last comparison wrote."""
    return _read_table(spark, plan, "samples")


def _remove_samples(spark: SparkSession, plan: Audit) -> None:
    """Remove the samples of an earlier audit, but not another table `samples`, such as that of `bruce-spark fleet`."""
    if plan.namespace is None:
        path = f"{absolute_path(plan.output)}/samples"
        if _is_found(spark, path) and _columns_at(spark, plan.table_format, path) == SAMPLE_COLUMNS:
            system, directory = open_directory(path)
            system.delete_dir(directory)
        return
    name = f"{plan.namespace}.samples"
    if spark.catalog.tableExists(name) and spark.table(name).columns == SAMPLE_COLUMNS:
        spark.sql(f"drop table {name}")


def _columns_at(spark: SparkSession, table_format: str, path: str) -> list[str] | None:
    """Return the columns of the table in a directory; None if Spark cannot read it in this format."""
    try:
        return list(spark.read.format(table_format).load(path).columns)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        return None


def _write_table(table: DataFrame, plan: Audit, name: str) -> DataFrame:
    """Write a table, which must be small, to one file, and return a table that reads this file."""
    one_file = table.coalesce(1)
    if plan.namespace is None:
        one_file.write.format(plan.table_format).mode("overwrite").save(f"{absolute_path(plan.output)}/{name}")
    else:
        one_file.writeTo(f"{plan.namespace}.{name}").using(plan.table_format).createOrReplace()
    return _read_table(table.sparkSession, plan, name)


def _read_table(spark: SparkSession, plan: Audit, name: str) -> DataFrame:
    if plan.namespace is None:
        return spark.read.format(plan.table_format).load(f"{absolute_path(plan.output)}/{name}")
    return spark.table(f"{plan.namespace}.{name}")
