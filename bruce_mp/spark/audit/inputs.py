"""Read what the audit compares with the facts: the entries of ledgers, and the lines of discard files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from bruce_mp.protocol.client.replay_rules import ABANDONED
from bruce_mp.spark.audit.facts import ATTEMPT, STAMP, WRITER
from bruce_mp.spark.expressions import expressions
from bruce_mp.spark.ledger_files import LedgerFileError, visible_paths
from bruce_mp.spark.session import temporary_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DISCARD_COLUMNS", "discards_of", "read_ledger"]

DISCARD_COLUMNS: Final = (
    "event string, topic string, info string, time_ms bigint, headers array<struct<key:string,value:binary>>"
)
"""The columns of `read_discard_lines` that an audit needs."""
_LEDGER_COLUMNS: Final = (
    "query string, batch long, partition int, attempt int, host string, acks string, stamped boolean, "
    "attempt_rows long, topic string, minute long, rows long, delivered long, discarded map<string, long>, "
    "dead_letters long"
)
_CORRUPT_LINE: Final = "corrupt_line"
"""A column with the text of a line that is no JSON object of the other columns; else null."""
_FEW_LISTING_TASKS: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "8"}
"""A limit on the Spark tasks that list a ledger's files; by default each file has a task."""


def read_ledger(
    spark: SparkSession, directories: Sequence[str], topics: Sequence[str], changed_after: datetime | None = None
) -> DataFrame:
    """Read the entries of the ledgers, only from files written after `changed_after` (None: from all files).

    Return a cached table, so that later commits do not change it; the caller releases it with `unpersist`. Columns are
    added: `file`; `is_audited` is true for entries of `topics`; `writer` is as in the facts, or `plain` for messages
    without stamps.

    Raise LedgerFileError for a file that lacks a part of its contents, because losses of these messages are not found.
    """
    paths = visible_paths(directories, 0.0 if changed_after is None else changed_after.timestamp())
    columns = f"{_LEDGER_COLUMNS}, {_CORRUPT_LINE} string"
    with temporary_settings(spark, _FEW_LISTING_TASKS):
        reader = spark.read.schema(columns).option("columnNameOfCorruptRecord", _CORRUPT_LINE)
        rows = (
            reader.json(paths).selectExpr("*", "input_file_name() as file")
            if paths
            else spark.createDataFrame([], f"{columns}, file string")
        )
    rows = rows.withColumn("is_audited", rows["topic"].isin(*topics))
    entries = rows.selectExpr("*", "if(stamped, concat_ws('/', query, batch, partition), 'plain') as writer").cache()
    try:
        _check_entries(entries)
    except BaseException:
        entries.unpersist()
        raise
    return entries


def _check_entries(entries: DataFrame) -> None:
    """Raise LedgerFileError if a file has a cut line, or not all lines of an attempt."""
    attempts = entries.groupBy("file", "query", "batch", "partition", "attempt").agg(
        *expressions(
            f"bool_or({_CORRUPT_LINE} is not null) as has_cut_line", "sum(rows) < max(attempt_rows) as lacks_lines"
        )
    )
    damaged = attempts.where("has_cut_line or lacks_lines").orderBy("file", *expressions("not has_cut_line")).first()
    if damaged is not None:
        fault = "has a cut line" if damaged["has_cut_line"] else "lacks lines of a task attempt"
        raise LedgerFileError(unquote(damaged["file"]).removeprefix("file://"), fault)


def discards_of(lines: DataFrame, topics: Sequence[str], oldest_ms: int | None = None) -> DataFrame:
    """Return the writer, attempt, number, topic and reason of each line about a discard.

    `lines` has the columns `DISCARD_COLUMNS`. The writer is as in `read_ledger`; null for lines without headers,
    because the daemon may have cut them off. Attempt and number are null without a stamp. Left out are lines about
    possible duplicates (`DUP`), about messages of a time before `oldest_ms`, and about abandoned attempts, because
    another attempt of the task sends their messages.
    """
    discards = lines.where(f"event = 'DISC' and info != '{ABANDONED}'").where(lines["topic"].isin(*topics))
    stamps = discards.selectExpr("topic", "info as reason", "time_ms", "headers is not null as has_headers", STAMP)
    fields = stamps.selectExpr(
        "*", "make_valid_utf8(cast(substring(stamp, 32) as string)) as name",
        "try_cast(cast(substring(stamp, 1, 16) as string) as bigint) as number",
        "try_cast(cast(substring(stamp, 18, 13) as string) as bigint) as sent",
    )  # fmt: skip
    if oldest_ms is not None:
        fields = fields.where(f"coalesce(sent, time_ms) >= {oldest_ms}")  # as the minutes of ledger and facts
    writer = f"if(has_headers, coalesce({WRITER}, 'plain'), null) as writer"
    return fields.selectExpr(writer, f"{ATTEMPT} as attempt", "number", "topic", "reason")
