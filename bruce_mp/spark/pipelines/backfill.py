"""Backfill topics from files, in chunks of files; a chunk is committed when Kafka has all its messages.

A chunk is a micro-batch of a stream that ends after the last file (`availableNow`), so Spark's checkpoint records the
committed chunks. After a kill, the next start repeats the interrupted chunk. Its tasks that had not ended have left no
messages in Kafka, because their attempts are fenced. Its tasks that had ended send their messages again, unless a
ledger records that they were sent.
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
"""The name, in `observedMetrics`, of the oldest timestamp of a chunk."""
CORRUPT_COLUMN: Final = "_corrupt_record"
"""The column with the text of a malformed line, which the sink treats as a bad row; null for other lines."""
MODES: Final = ("deadletter", "failfast", "permissive")
_FORMATS_WITH_MODE: Final = frozenset({"csv", "json"})
"""Formats with lines that may be malformed."""
_CSV_DEFAULTS: Final = {"header": "true", "columnPruning": "false"}
"""By default, Spark parses only the selected columns of a line, and so overlooks that it is malformed."""
_FILES_OF_ANY_AGE: Final = {"maxFileAge": "36500d"}
"""By default, a later run of Spark's stream ignores new files that are a week older than the newest one it has read."""


@dataclass(frozen=True)
class Backfill:
    """The plan of a backfill.

    `path` is a file, a folder or a glob of files in `format`. The fields `value` to `timestamp` are expressions in
    Spark SQL over the files' columns. If the files have a column `value`, the default of each of these fields is the
    files' column of the same name. Otherwise only `value` has a default: all columns as JSON.

    `checkpoint` is Spark's checkpoint directory. `sink` are options of `format("bruce")`, `reader` options of Spark's
    file reader. Each chunk is divided evenly among `tasks_per_chunk` tasks, because the messages of a fenced task must
    fit into the daemon's slab; None: Spark divides a chunk by its files.
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
    """The treatment of malformed lines of CSV and JSON: bad rows (`deadletter`), or as in Spark's mode of this name."""
    kafka: Mapping[str, str] | None = None
    """The options of `RetentionCheck`."""


@dataclass(frozen=True)
class DryRun:
    """The effect that a backfill would have."""

    topics: Mapping[str, tuple[int, int]]
    """By topic, the number of messages, and the size in bytes of their keys and values."""
    bad_row_counts: Mapping[str, int]
    """The number of bad rows by problem."""
    warning: str | None = None
    """The warning of `RetentionCheck`."""

    @property
    def message_count(self) -> int:
        return sum(rows for rows, _ in self.topics.values())


def backfill(spark: SparkSession, plan: Backfill, progress: Progress | None = None) -> int:
    """Send the messages of all chunks that are not committed, and return their number; raise Spark's errors."""
    display = progress or Progress("backfill")
    options = parse_options(plan.sink)  # raises before any file is read
    register(spark)  # for sessions without Spark's lookup of data sources
    file_count = len(spark.read.format("text").load(plan.path).inputFiles())  # lists the files, without reading them
    file_progress = FileProgress.read(plan.checkpoint, file_count, plan.files_per_chunk)
    stages = RunningStages(spark, shuffled=plan.tasks_per_chunk is not None)
    stream = read_messages(spark, plan)
    topic = "" if "topic" in stream.columns else options.topic or ""
    committed = _CommittedChunks(file_progress, RetentionCheck(spark, plan.kafka), topic)
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

    Set a minimum number of file splits in the session, unless the session has one. By default Spark splits files by the
    number of cores, which changes when an executor dies. If the chunk is then repeated, its rows would be in other
    tasks than those in the ledger.
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
    """Show the progress until the query ends; return the number of committed rows."""
    meter = ProgressMeter(unit, committed.file_progress.done_fraction())
    while not query.awaitTermination(_POLL_INTERVAL_S):
        committed.count(query, progress)
        running = stages.counts()
        done = committed.file_progress.done_fraction(running.ended_fraction)
        progress.show(meter.describe(committed.row_count + running.rows, done))
    committed.count(query, progress)
    chunks = f"{committed.chunk_count} chunk{'' if committed.chunk_count == 1 else 's'}"
    progress.show_line(f"{meter.summarize(committed.row_count)}, {chunks}")
    return committed.row_count


@dataclass
class FileProgress:
    """The progress of a backfill by number of files."""

    total: int
    """The number of all files."""
    files_per_chunk: int
    file_counts: Mapping[int, int] = field(default_factory=dict)
    """The number of files of each chunk that Spark has begun; every later chunk has `files_per_chunk`."""
    last_committed: int = -1
    """The number of the last committed chunk; -1: none."""

    @classmethod
    def read(cls, checkpoint: str, total: int, files_per_chunk: int) -> Self:
        """Return the progress that Spark's checkpoint records.

        In the checkpoint, the files in `sources/0` list the files of each chunk, and `commits` has a file for each
        committed chunk.
        """
        chunk_of = {}
        for text in read_texts(f"{checkpoint}/sources/0").values():
            for line in text.splitlines():
                if line.startswith("{"):  # the first line is the version of the format
                    entry = json.loads(line)
                    chunk_of[entry["path"]] = entry["batchId"]
        chunks = [int(name) for name in read_texts(f"{checkpoint}/commits") if name.isdigit()]
        return cls(total, files_per_chunk, Counter(chunk_of.values()), max(chunks, default=-1))

    def done_fraction(self, of_next_chunk: float = 0.0) -> float:
        """Return the done fraction of all files, if the next chunk is done by the fraction `of_next_chunk`."""
        done = sum(self._file_count(chunk) for chunk in range(self.last_committed + 1))
        return min((done + of_next_chunk * self._file_count(self.last_committed + 1)) / max(self.total, 1), 1.0)

    def _file_count(self, chunk: int) -> int:
        return self.file_counts.get(chunk, self.files_per_chunk)


@dataclass
class _CommittedChunks:
    """The numbers of chunks and rows that this query has committed."""

    file_progress: FileProgress
    retention: RetentionCheck
    topic: str
    """The topic of all rows; empty if the rows have a column `topic`."""
    row_count: int = 0
    chunk_count: int = 0
    _last_counted: int = -1

    def count(self, query: StreamingQuery, progress: Progress) -> None:
        """Count the chunks that are new in the query's latest reports; warn of old messages once."""
        for report in query.recentProgress:
            row_count = report.numInputRows  # Spark Connect leaves report["numInputRows"] empty
            if report["batchId"] > self._last_counted and row_count:
                self._last_counted = self.file_progress.last_committed = report["batchId"]
                self.row_count += row_count
                self.chunk_count += 1
                observed = report.observedMetrics.get(_OLDEST_METRIC)
                oldest_ms = None if observed is None else _observed_ms(observed.asDict())
                if oldest_ms is not None:
                    self.retention.warn_once({self.topic: oldest_ms}, progress)


def _oldest_timestamp(frame: DataFrame) -> Column:
    return F.min(F.unix_millis(frame["timestamp"])).alias("oldest_ms")


def _observed_ms(observed: Mapping[str, Any]) -> int | None:
    """Return the oldest timestamp in an observed row; Spark Connect 4.3 reports the row as values and a schema."""
    time_ms: int | None = observed["values"][0] if "schema" in observed else observed.get("oldest_ms")
    return time_ms


def dry_run(spark: SparkSession, plan: Backfill) -> DryRun:
    """Read all files and count the messages without sending any. Raise `OptionError` and `SchemaError`."""
    from bruce_mp.spark.dry_run import count_messages  # noqa: PLC0415 - Arrow and numpy: slow to import

    frame = _select_messages(_read_files(spark, plan, streaming=False), plan)
    options = parse_options(plan.sink)
    check_columns(frame.dtypes, options.topic)
    topics: dict[str, tuple[int, int]] = {}
    bad_row_counts = Counter[str]()
    for count in count_messages(frame, options):
        if count.problem is None:
            topics[count.topic or ""] = (count.rows, count.bytes)
        else:
            bad_row_counts[count.problem] += count.rows
    return DryRun(topics, bad_row_counts, _retention_warning(spark, frame, plan))


def _retention_warning(spark: SparkSession, frame: DataFrame, plan: Backfill) -> str | None:
    if "timestamp" not in frame.columns:
        return None
    topic = frame["topic"] if "topic" in frame.columns else F.lit(parse_options(plan.sink).topic)
    rows = frame.groupBy(topic.alias("topic")).agg(_oldest_timestamp(frame)).where("topic is not null").collect()
    oldest_times = {row["topic"]: row["oldest_ms"] for row in rows if row["oldest_ms"] is not None}
    return RetentionCheck(spark, plan.kafka).warning(oldest_times)


def _read_files(spark: SparkSession, plan: Backfill, *, streaming: bool) -> DataFrame:
    if plan.format not in FORMATS:
        raise OptionError(f"Format '{plan.format}' is not known: give one of {', '.join(FORMATS)}.")
    if plan.mode not in MODES:
        raise OptionError(f"Mode '{plan.mode}' is not known: give one of {', '.join(MODES)}.")
    options = {**_reader_defaults(plan), **plan.reader}
    inferred = spark.read.format(plan.format).options(**options).load(plan.path).schema
    schema = _explicit_schema(inferred, plan) if plan.format in _FORMATS_WITH_MODE else inferred
    if plan.format == "csv" and not _has_generated_names(spark, plan, options):
        # A file with other columns than the first one, or in another order, is an error.
        options = {"enforceSchema": "false", **options}
    if not streaming:
        return spark.read.format(plan.format).schema(schema).options(**options).load(plan.path)
    path, chosen = plan.path, {**_FILES_OF_ANY_AGE, **options, "maxFilesPerTrigger": str(plan.files_per_chunk)}
    local = Path(path.removeprefix("file://"))
    if local.is_file():  # a stream reads folders and globs, but no single file
        path, chosen["pathGlobFilter"] = str(local.parent), local.name
    return spark.readStream.format(plan.format).schema(schema).options(**chosen).load(path)


def _has_generated_names(spark: SparkSession, plan: Backfill, options: Mapping[str, Any]) -> bool:
    """Return True if a CSV header has empty or equal names, which Spark replaces by ones with numbers.

    Spark would not find its own names in the header.
    """
    without_header = {**{name: value for name, value in options.items() if name.lower() != "header"}, "header": "false"}
    first_line = spark.read.format(plan.format).options(**without_header).load(plan.path).head(1)
    names = [(name or "").lower() for line in first_line for name in line]
    return "" in names or len(set(names)) < len(names)


def _reader_defaults(plan: Backfill) -> Mapping[str, str]:
    defaults = _CSV_DEFAULTS if plan.format == "csv" else {}
    if plan.format not in _FORMATS_WITH_MODE:
        return defaults
    if plan.mode == "deadletter":
        return {**defaults, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return {**defaults, "mode": plan.mode.upper()}


def _explicit_schema(inferred: StructType, plan: Backfill) -> StructType:
    """Return the inferred schema; in mode `deadletter` it ends with the column for malformed lines."""
    fields = [column for column in inferred.fields if column.name != CORRUPT_COLUMN]
    return StructType([*fields, StructField(CORRUPT_COLUMN, StringType())] if plan.mode == "deadletter" else fields)


def _select_messages(frame: DataFrame, plan: Backfill) -> DataFrame:
    """Return the columns of the sink, with the expressions and defaults that `Backfill` describes."""
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
