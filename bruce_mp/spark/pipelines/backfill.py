"""Backfill topics from files, in chunks of files; a chunk is committed when Kafka has all its messages.

A chunk is a micro-batch of a stream that ends after the last file (`availableNow`), so Spark's checkpoint records the
committed chunks. After a kill, the next start repeats the interrupted chunk. Unfinished tasks of this chunk have left
no messages, because their attempts are fenced. The messages of finished tasks are sent again, unless a ledger has them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StringType, StructField, StructType

from bruce_mp.spark import register
from bruce_mp.spark.columns import check_columns
from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.options import parse_options
from bruce_mp.spark.pipelines.progress import Progress, ProgressMeter
from bruce_mp.spark.pipelines.retention import RetentionCheck
from bruce_mp.spark.pipelines.running_stages import RunningStages
from bruce_mp.spark.storage import read_texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Backfill", "DryRun", "FileProgress", "backfill", "dry_run", "read_messages"]

FORMATS: Final = ("parquet", "csv", "json", "text")
_POLL_INTERVAL_S: Final = 1
_MIN_SPLITS: Final = "spark.sql.files.minPartitionNum"
_OLDEST_METRIC: Final = "bruce_oldest"
"""The name of the oldest timestamp among the observed metrics of StreamingQueryProgress."""
CORRUPT_COLUMN: Final = "_corrupt_record"
MODES: Final = ("deadletter", "failfast", "permissive")
_FORMATS_WITH_MODE: Final = frozenset({"csv", "json"})
"""Formats whose lines may be malformed."""


@dataclass(frozen=True)
class Backfill:
    """The plan of a backfill.

    `path` is a file, a folder or a glob of `format`. `value` to `timestamp` are Spark SQL over the files' columns. If
    the files have a column `value`, each field without an expression is the column of its name. If they have none, only
    `value` has a default: all columns as JSON. `sink` are options of `format("bruce")`, `reader` those of Spark's
    reader. `tasks_per_chunk` splits chunks evenly (None: as Spark reads the files), because the messages of a fenced
    task must fit into the daemon's slab.
    """

    path: str
    format: str
    checkpoint: str
    sink: Mapping[str, str]
    value: str | None = None
    key: str | None = None
    topic: str | None = None
    partition_key: str | None = None
    timestamp: str | None = None
    files_per_chunk: int = 8
    tasks_per_chunk: int | None = None
    reader: Mapping[str, str] = field(default_factory=dict)
    mode: str = "deadletter"
    """For malformed lines of CSV and JSON: `deadletter` makes bad rows; the others are modes of Spark's reader."""
    kafka: Mapping[str, str] | None = None
    """Options of Spark's Kafka source, to compare timestamps with the retention of the topics."""


@dataclass(frozen=True)
class DryRun:
    """The effect of a backfill: messages by topic, bad rows by problem, and a warning.

    The warning comes from `RetentionCheck`.
    """

    topics: Mapping[str, tuple[int, int]]
    """The messages of each topic, and the bytes of their keys and values."""
    bad: Mapping[str, int]
    warning: str | None = None

    @property
    def rows(self) -> int:
        """Return the number of messages."""
        return sum(rows for rows, _ in self.topics.values())


def backfill(spark: SparkSession, plan: Backfill, progress: Progress | None = None) -> int:
    """Send the remaining messages and return their number. Raise Spark's StreamingQueryException."""
    display = progress or Progress("backfill")
    options = parse_options(plan.sink)  # raises before any file is read
    register(spark)  # for sessions without Spark's lookup of data sources
    file_count = len(spark.read.format("text").load(plan.path).inputFiles())  # lists the files, without reading them
    files = FileProgress.read(plan.checkpoint, file_count, plan.files_per_chunk)
    stages = RunningStages(spark, shuffled=plan.tasks_per_chunk is not None)
    stream = read_messages(spark, plan)
    topic = "" if "topic" in stream.columns else options.topic or ""
    committed = _CommittedChunks(files, RetentionCheck(spark, plan.kafka), topic)
    query = (
        stream.writeStream.format("bruce")
        .options(**{"fence": "true", **plan.sink})
        .option("checkpointLocation", plan.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        unit = "messages delivered" if options.dead_letter_path is None else "rows delivered or written as dead letters"
        return _show_progress(query, committed, stages, display, unit)
    finally:
        query.stop()


def read_messages(spark: SparkSession, plan: Backfill) -> DataFrame:
    """Return the stream of the plan's messages, in the columns of the sink.

    Set a least number of file splits in the session, unless it has one. By default Spark splits files by the number of
    cores. A chunk that is repeated with fewer cores, after an executor died, would not have the ledger's tasks.
    """
    if spark.conf.get(_MIN_SPLITS, None) is None:
        spark.conf.set(_MIN_SPLITS, str(plan.files_per_chunk))
    stream = _select_messages(_read_files(spark, plan, streaming=True), plan)
    if "timestamp" in stream.columns:
        stream = stream.observe(_OLDEST_METRIC, _oldest_timestamp(stream))
    return stream if plan.tasks_per_chunk is None else stream.repartition(plan.tasks_per_chunk)


def _show_progress(
    query: StreamingQuery, committed: _CommittedChunks, stages: RunningStages, progress: Progress, unit: str
) -> int:
    """Show the progress until the query ends; return the number of rows."""
    meter = ProgressMeter(unit, committed.files.done_fraction())
    while not query.awaitTermination(_POLL_INTERVAL_S):
        committed.count(query, progress)
        running = stages.counts()
        done = committed.files.done_fraction(running.ended_fraction)
        progress.show(meter.describe(committed.rows + running.rows, done))
    committed.count(query, progress)
    progress.show_line(
        f"{meter.summarize(committed.rows)}, {committed.chunks} chunk{'' if committed.chunks == 1 else 's'}"
    )
    return committed.rows


@dataclass
class FileProgress:
    """The files of a backfill by chunk, `total` in all.

    `planned` has the number of files of each chunk that Spark has begun.
    """

    total: int
    files_per_chunk: int
    planned: Mapping[int, int] = field(default_factory=dict)
    committed: int = -1
    """The number of the last committed chunk; -1: none."""

    @classmethod
    def read(cls, checkpoint: str, total: int, files_per_chunk: int) -> Self:
        """Return the progress that Spark's checkpoint records.

        Its files in `sources/0` list the files of each chunk; `commits` has a file for each committed chunk.
        """
        chunk_of = {}
        for text in read_texts(f"{checkpoint}/sources/0").values():
            for line in text.splitlines():
                if line.startswith("{"):  # not the version of the format
                    entry = json.loads(line)
                    chunk_of[entry["path"]] = entry["batchId"]
        chunks = [int(name) for name in read_texts(f"{checkpoint}/commits") if name.isdigit()]
        return cls(total, files_per_chunk, Counter(chunk_of.values()), max(chunks, default=-1))

    def done_fraction(self, running: float = 0.0) -> float:
        """Return the done fraction of all files: the committed chunks, and the fraction `running` of the next."""
        done = sum(self._files(chunk) for chunk in range(self.committed + 1))
        return min((done + running * self._files(self.committed + 1)) / max(self.total, 1), 1.0)

    def _files(self, chunk: int) -> int:
        return self.planned.get(chunk, self.files_per_chunk)


@dataclass
class _CommittedChunks:
    """The chunks that this query committed: each call of `count` adds the new ones of the query's latest reports."""

    files: FileProgress
    retention: RetentionCheck
    topic: str
    """The topic of all rows; empty if they have a column for it."""
    rows: int = 0
    chunks: int = 0
    _last: int = -1

    def count(self, query: StreamingQuery, progress: Progress) -> None:
        """Count chunks that were not counted before, and warn of old messages once."""
        for report in query.recentProgress:
            rows = report.numInputRows  # Spark Connect leaves report["numInputRows"] empty
            if report["batchId"] > self._last and rows:
                self._last = self.files.committed = report["batchId"]
                self.rows += rows
                self.chunks += 1
                observed = report.observedMetrics.get(_OLDEST_METRIC)
                oldest_ms = None if observed is None else _observed_ms(observed.asDict())
                if oldest_ms is not None:
                    self.retention.warn_once({self.topic: oldest_ms}, progress)


def _oldest_timestamp(frame: DataFrame) -> Column:
    return F.min(F.unix_millis(frame["timestamp"])).alias("oldest_ms")


def _observed_ms(observed: Mapping[str, Any]) -> int | None:
    """Return the oldest timestamp; Spark Connect 4.3 reports a row's values and schema instead of its fields."""
    time_ms: int | None = observed["values"][0] if "schema" in observed else observed.get("oldest_ms")
    return time_ms


def dry_run(spark: SparkSession, plan: Backfill) -> DryRun:
    """Read all files and count the messages without sending any. Raise `OptionError` and `SchemaError`.

    The limits for rows are those of the daemon on this host, or the default limits without a daemon.
    """
    from bruce_mp.spark.dry_run import count_messages  # noqa: PLC0415 - Arrow and numpy: slow to import

    frame = _select_messages(_read_files(spark, plan, streaming=False), plan)
    options = parse_options(plan.sink)
    check_columns(frame.dtypes, options.topic)
    topics: dict[str, tuple[int, int]] = {}
    bad = Counter[str]()
    for count in count_messages(frame, options):
        if count.problem is None:
            topics[count.topic or ""] = (count.rows, count.bytes)
        else:
            bad[count.problem] += count.rows
    return DryRun(topics, bad, _retention_warning(spark, frame, plan))


def _retention_warning(spark: SparkSession, frame: DataFrame, plan: Backfill) -> str | None:
    if "timestamp" not in frame.columns:
        return None
    topic = frame["topic"] if "topic" in frame.columns else F.lit(parse_options(plan.sink).topic)
    rows = frame.groupBy(topic.alias("topic")).agg(_oldest_timestamp(frame)).where("topic is not null").collect()
    oldest_ms = {row["topic"]: row["oldest_ms"] for row in rows if row["oldest_ms"] is not None}
    return RetentionCheck(spark, plan.kafka).warning(oldest_ms)


def _read_files(spark: SparkSession, plan: Backfill, *, streaming: bool) -> DataFrame:
    if plan.format not in FORMATS:
        raise OptionError(f"Format '{plan.format}' is not known: give one of {', '.join(FORMATS)}.")
    if plan.mode not in MODES:
        raise OptionError(f"Mode '{plan.mode}' is not known: give one of {', '.join(MODES)}.")
    options = {**_reader_defaults(plan), **plan.reader}
    inferred = spark.read.format(plan.format).options(**options).load(plan.path).schema
    schema = _explicit_schema(inferred, plan) if plan.format in _FORMATS_WITH_MODE else inferred
    if not streaming:
        return spark.read.format(plan.format).schema(schema).options(**options).load(plan.path)
    path, chosen = plan.path, {**options, "maxFilesPerTrigger": str(plan.files_per_chunk)}
    local = Path(path.removeprefix("file://"))
    if local.is_file():  # a stream reads folders and globs
        path, chosen["pathGlobFilter"] = str(local.parent), local.name
    return spark.readStream.format(plan.format).schema(schema).options(**chosen).load(path)


def _reader_defaults(plan: Backfill) -> dict[str, str]:
    header = {"header": "true"} if plan.format == "csv" else {}
    if plan.format not in _FORMATS_WITH_MODE:
        return header
    if plan.mode == "deadletter":
        return {**header, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return {**header, "mode": plan.mode.upper()}


def _explicit_schema(inferred: StructType, plan: Backfill) -> StructType:
    """Return the schema for reading; in mode `deadletter` its last column has the text of malformed lines."""
    fields = [column for column in inferred.fields if column.name != CORRUPT_COLUMN]
    return StructType([*fields, StructField(CORRUPT_COLUMN, StringType())] if plan.mode == "deadletter" else fields)


def _select_messages(frame: DataFrame, plan: Backfill) -> DataFrame:
    """Return the columns of the sink, by the rules of `Backfill`."""
    expressions = {
        "topic": plan.topic,
        "key": plan.key,
        "value": plan.value,
        "partition_key": plan.partition_key and f"cast({plan.partition_key} as int)",
        "timestamp": plan.timestamp and f"cast({plan.timestamp} as timestamp)",
        "headers": None,
    }
    has_value = "value" in frame.columns
    defaults = {name: name for name in expressions if has_value and name in frame.columns}
    content = ", ".join(f"`{name}`" for name in frame.columns if name != CORRUPT_COLUMN)
    defaults.setdefault("value", f"to_json(struct({content}))")
    columns = {name: expression or defaults.get(name) for name, expression in expressions.items()}
    chosen = {name: expression for name, expression in columns.items() if expression}
    if CORRUPT_COLUMN in frame.columns:  # an expression over the columns of a malformed line may fail
        chosen = {name: f"if({CORRUPT_COLUMN} is null, {expression}, null)" for name, expression in chosen.items()}
        chosen[CORRUPT_COLUMN] = CORRUPT_COLUMN
    return frame.selectExpr(*[f"{expression} as {name}" for name, expression in chosen.items()])
