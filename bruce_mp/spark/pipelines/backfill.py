"""Backfill topics from files, in chunks; a chunk is committed when Kafka has all its messages.

The files are read as a stream that ends behind the last file (`availableNow`), so Spark's checkpoint records the
committed chunks. After a kill, the next run continues with the interrupted chunk. Unfinished tasks of this chunk have
left no messages, because their attempts are fenced. The messages of finished tasks are sent again.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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

    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["Backfill", "DryRun", "FileProgress", "backfill", "dry_run", "read_messages"]

FORMATS: Final = ("parquet", "csv", "json", "text")
_POLL_S: Final = 1
_SPLITS: Final = "spark.sql.files.minPartitionNum"
_OLDEST: Final = "bruce_oldest"
"""The name of an observed metric in StreamingQueryProgress."""
CORRUPT: Final = "_corrupt_record"
MODES: Final = ("deadletter", "failfast", "permissive")
_WITH_MODE: Final = frozenset({"csv", "json"})


@dataclass(frozen=True)
class Backfill:
    """The plan of a backfill.

    `path` is a file, a folder or a glob of `format`. Expressions are Spark SQL over the files' columns. Without an
    expression, a column of that name is used; without a column `value`, all columns as JSON. `sink` are options of
    `format("bruce")`. `tasks_per_chunk` splits chunks evenly (None: as Spark reads the files). The messages of a fenced
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
    """For malformed rows of CSV and JSON: bad rows of the sink, or as Spark's modes of this name treat them."""
    kafka: Mapping[str, str] | None = None
    """Options of Spark's Kafka source, to compare timestamps with the retention of the topics."""


@dataclass(frozen=True)
class DryRun:
    """The effect of a backfill: messages and bytes by topic, and rows that cannot be messages by reason."""

    topics: Mapping[str, tuple[int, int]]
    bad: Mapping[str, int]
    warning: str | None = None

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.topics.values())


def backfill(spark: SparkSession, plan: Backfill, progress: Progress | None = None) -> int:
    """Send the remaining messages and return their number. Raise Spark's StreamingQueryException."""
    display = progress or Progress("backfill")
    options = parse_options(plan.sink)  # before any file is read
    register(spark)  # for sessions without Spark's lookup of data sources
    found = len(spark.read.format("text").load(plan.path).inputFiles())  # reads none of them
    files = FileProgress.read(plan.checkpoint, found, plan.files_per_chunk)
    stages = RunningStages(spark, shuffled=plan.tasks_per_chunk is not None)
    stream = read_messages(spark, plan)
    topic = "" if "topic" in stream.columns else options.topic or ""
    done = _CommittedChunks(files, RetentionCheck(spark, plan.kafka), topic)
    query = (
        stream.writeStream.format("bruce")
        .options(**{"fence": "true", **plan.sink})
        .option("checkpointLocation", plan.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        unit = "messages delivered" if options.dead_letter_path is None else "rows delivered or written as dead letters"
        return _show_progress(query, done, stages, display, unit)
    finally:
        query.stop()


def read_messages(spark: SparkSession, plan: Backfill) -> DataFrame:
    """Return the stream of the plan's messages, in the columns of the sink.

    The session gets a fixed number of splits, unless it has one: by default Spark splits files by the number of cores,
    so a chunk that is repeated after an executor died would have other tasks, and the ledger would not know them.
    """
    if spark.conf.get(_SPLITS, None) is None:
        spark.conf.set(_SPLITS, str(plan.files_per_chunk))
    stream = _messages(_read(spark, plan, streaming=True), plan)
    if "timestamp" in stream.columns:
        stream = stream.observe(_OLDEST, _oldest(stream))
    return stream if plan.tasks_per_chunk is None else stream.repartition(plan.tasks_per_chunk)


def _show_progress(
    query: StreamingQuery, done: _CommittedChunks, stages: RunningStages, progress: Progress, unit: str
) -> int:
    meter = ProgressMeter(unit, done.files.part())
    while not query.awaitTermination(_POLL_S):
        done.count(query, progress)
        running = stages.counts()
        progress.show(meter.text(done.rows + running.rows, done.files.part(running.part)))
    done.count(query, progress)
    progress.finish(f"{meter.summary(done.rows)}, {done.chunks} chunk{'' if done.chunks == 1 else 's'}")
    return done.rows


@dataclass
class FileProgress:
    """The chunks of a backfill. `planned` are the files of those that earlier runs began, by chunk.

    The files of Spark's checkpoint list the files of each chunk.
    """

    total: int
    files_per_chunk: int
    planned: Mapping[int, int] = field(default_factory=dict)
    committed: int = -1
    """The last committed chunk."""

    @classmethod
    def read(cls, checkpoint: str, total: int, files_per_chunk: int) -> Self:
        """Return the progress that the checkpoint records."""
        chunk_of = {}
        for text in read_texts(f"{checkpoint}/sources/0").values():
            for line in text.splitlines():
                if line.startswith("{"):
                    entry = json.loads(line)
                    chunk_of[entry["path"]] = entry["batchId"]
        chunks = [int(name) for name in read_texts(f"{checkpoint}/commits") if name.isdigit()]
        return cls(total, files_per_chunk, Counter(chunk_of.values()), max(chunks, default=-1))

    def part(self, running: float = 0.0) -> float:
        """Return the part of all files in committed chunks, and `running` of the next chunk, 0 to 1."""
        done = sum(self._files(chunk) for chunk in range(self.committed + 1))
        return min((done + running * self._files(self.committed + 1)) / max(self.total, 1), 1.0)

    def _files(self, chunk: int) -> int:
        return self.planned.get(chunk, self.files_per_chunk)


@dataclass
class _CommittedChunks:
    """The chunks that this run committed, from the query's repeated reports of its newest hundred."""

    files: FileProgress
    retention: RetentionCheck
    topic: str
    """The topic of all rows; empty if they have a column for it."""
    rows: int = 0
    chunks: int = 0
    _last: int = -1
    _has_warned: bool = False

    def count(self, query: StreamingQuery, progress: Progress) -> None:
        """Count new reports, and warn of old messages once."""
        for report in query.recentProgress:
            rows = report.numInputRows  # a property, which Spark Connect fills in, unlike the item of this name
            if report["batchId"] > self._last and rows:
                self._last = self.files.committed = report["batchId"]
                self.rows += rows
                self.chunks += 1
                self._check_oldest(report.observedMetrics.get(_OLDEST), progress)

    def _check_oldest(self, observed: Row | None, progress: Progress) -> None:
        oldest = None if observed is None else _observed_ms(observed.asDict())
        if oldest is None or self._has_warned:
            return
        warning = self.retention.warning({self.topic: oldest})
        if warning:
            self._has_warned = True
            progress.finish(warning)


def _oldest(frame: DataFrame) -> Column:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    return F.min(F.unix_millis(frame["timestamp"])).alias("oldest_ms")


def _observed_ms(observed: Mapping[str, Any]) -> int | None:
    """Return the observed time.  Spark Connect 4.3 reports a row's values and schema where others report its fields."""
    time_ms: int | None = observed["values"][0] if "schema" in observed else observed.get("oldest_ms")
    return time_ms


def dry_run(spark: SparkSession, plan: Backfill) -> DryRun:
    """Read all files and count the messages without sending any. Raise `OptionError` and `SchemaError`.

    The rows are checked as the sink does, with the limits of the daemon on this host, or the default ones without it.
    """
    from bruce_mp.spark.dry_run import count_messages  # noqa: PLC0415 - Arrow and numpy: slow to import

    frame = _messages(_read(spark, plan, streaming=False), plan)
    options = parse_options(plan.sink)
    check_columns([(column.name, column.dataType.simpleString()) for column in frame.schema.fields], options.topic)
    topics: dict[str, tuple[int, int]] = {}
    bad: dict[str, int] = {}
    for topic, problem, rows, size in count_messages(frame, options):
        if problem is None:
            topics[topic or ""] = (rows, size)
        else:
            bad[problem] = bad.get(problem, 0) + rows
    return DryRun(topics, bad, _old_warning(spark, frame, plan))


def _old_warning(spark: SparkSession, frame: DataFrame, plan: Backfill) -> str | None:
    if "timestamp" not in frame.columns:
        return None
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    topic = frame["topic"] if "topic" in frame.columns else F.lit(parse_options(plan.sink).topic)
    rows = frame.groupBy(topic.alias("topic")).agg(_oldest(frame)).where("topic is not null").collect()
    oldest = {row["topic"]: row["oldest_ms"] for row in rows if row["oldest_ms"] is not None}
    return RetentionCheck(spark, plan.kafka).warning(oldest)


def _read(spark: SparkSession, plan: Backfill, *, streaming: bool) -> DataFrame:
    if plan.format not in FORMATS:
        raise OptionError(f"Format '{plan.format}' is not known: give one of {', '.join(FORMATS)}.")
    if plan.mode not in MODES:
        raise OptionError(f"Mode '{plan.mode}' is not known: give one of {', '.join(MODES)}.")
    options = {**_reader_defaults(plan), **plan.reader}
    batch = spark.read.format(plan.format).options(**options).load(plan.path)
    schema = _schema(batch.schema, plan) if plan.format in _WITH_MODE else batch.schema
    if not streaming:
        return spark.read.format(plan.format).schema(schema).options(**options).load(plan.path)
    source = _StreamInput.of(plan.path)
    return (
        spark.readStream.format(plan.format)
        .schema(schema)
        .options(**{**options, **source.options, "maxFilesPerTrigger": str(plan.files_per_chunk)})
        .load(source.path)
    )


def _reader_defaults(plan: Backfill) -> dict[str, str]:
    header = {"header": "true"} if plan.format == "csv" else {}
    if plan.format not in _WITH_MODE:
        return header
    if plan.mode == "deadletter":
        return {**header, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return {**header, "mode": plan.mode.upper()}


def _schema(inferred: StructType, plan: Backfill) -> StructType:
    """Return the schema; in mode `deadletter` its last column has the text of malformed rows."""
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - PySpark is slow

    fields = [column for column in inferred.fields if column.name != CORRUPT]
    return StructType([*fields, StructField(CORRUPT, StringType())] if plan.mode == "deadletter" else fields)


@dataclass(frozen=True)
class _StreamInput:
    """The input of a stream: a folder or a glob; a single file is a folder with a filter."""

    path: str
    options: Mapping[str, str]

    @staticmethod
    def of(path: str) -> _StreamInput:
        local = Path(path.removeprefix("file://"))
        if local.is_file():
            return _StreamInput(str(local.parent), {"pathGlobFilter": local.name})
        return _StreamInput(path, {})


def _messages(frame: DataFrame, plan: Backfill) -> DataFrame:
    """Return the columns of the sink."""
    expressions = {
        "topic": plan.topic,
        "key": plan.key,
        "value": plan.value,
        "partition_key": plan.partition_key and f"cast({plan.partition_key} as int)",
        "timestamp": plan.timestamp and f"cast({plan.timestamp} as timestamp)",
        "headers": None,
    }
    has_value = "value" in frame.columns
    columns = {
        name: expressions[name] or (name if has_value and name in frame.columns else None) for name in expressions
    }
    content = ", ".join(f"`{name}`" for name in frame.columns if name != CORRUPT)
    columns["value"] = columns["value"] or f"to_json(struct({content}))"
    chosen = {name: expression for name, expression in columns.items() if expression}
    if CORRUPT in frame.columns:  # an expression over the columns of a malformed row may fail
        chosen = {name: f"if({CORRUPT} is null, {expression}, null)" for name, expression in chosen.items()}
        chosen[CORRUPT] = CORRUPT
    return frame.selectExpr(*[f"{expression} as {name}" for name, expression in chosen.items()])
