"""Replay discarded or exported messages through a daemon, each message at most once.

Files are replayed one after the other. The messages of a file are first written as a *chunk* into the state directory,
with the hash of each line and the line's number among the equal lines of its log (`replay_rules.py`). So the state
directory identifies every replayed message, even after its file is renamed. The chunk's name ends with `.part` while
the chunk is written, `.intent` while its messages are sent, and `.done` after the daemon has answered for all of them.
A kill while messages are sent leaves the chunk in doubt: its messages may be in Kafka or not, and the user decides
(`DoubtfulPolicy`).

Up to release 1.0.0 each file was a log of its own. A state directory of these releases has for each line the numbers 1
to N, where N is the number of messages that were sent, so the other equal lines of the log are still sent, each once.

Messages of a topic are sent in the order of their lines, and of the files of each log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyarrow.fs import FileInfo, FileSelector
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.protocol.client.replay_rules import (
    DoubtfulPolicy,
    LineFate,
    LineSelection,
    ReplayCounts,
    in_replay_order,
    log_name,
)
from bruce_mp.spark import register
from bruce_mp.spark.errors import SinkError
from bruce_mp.spark.expressions import expressions
from bruce_mp.spark.pipelines.discards import find_files, parse_line, parse_lines, read_complete_lines
from bruce_mp.spark.pipelines.progress import Progress, ProgressMeter
from bruce_mp.spark.pipelines.retention import RetentionCheck
from bruce_mp.spark.pipelines.running_stages import RunningStages
from bruce_mp.spark.storage import open_directory, resolve_file, total_size

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DoubtfulError", "replay"]

_INCOMPLETE: Final = ".part"
_UNCONFIRMED: Final = ".intent"
_DONE: Final = ".done"
_FATES: Final = ("send", "already", "filtered", "no_message", "in_kafka", "abandoned")
"""The values of the column `fate`, which says how a line is treated; in the order of the fields of `ReplayCounts`."""
_SINK_COLUMNS: Final = ("topic", "key", "value", "headers", "partition_key", "timestamp")


class DoubtfulError(SinkError):
    """A killed replay left a chunk in doubt."""

    condition = "BRUCE_DOUBTFUL"


def replay(
    spark: SparkSession,
    files: Sequence[str],
    state: str,
    sink: Mapping[str, str],
    *,
    selection: LineSelection | None = None,
    doubtful: DoubtfulPolicy = DoubtfulPolicy.REFUSE,
    dry_run: bool = False,
    kafka: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ReplayCounts:
    """Send the selected messages that were not replayed before. Raise `DoubtfulError` and Spark's errors.

    `state` is the state directory, a path or URI. `sink` are options of `format("bruce")`, `kafka` those of
    `RetentionCheck`. If `dry_run` is True, only count the messages.
    """
    display = progress or Progress("replay")
    system, root = open_directory(state)
    replay_state = _ReplayState(spark, system, root, state)
    if dry_run:
        replay_state.plan_doubtful(doubtful)
    else:
        replay_state.resolve_doubtful(doubtful)
    meter = ProgressMeter(f"messages {'to send' if dry_run else 'sent'}")
    log_files = _find_logs(spark, files)
    replay_progress = _ReplayProgress(display, meter, list(map(total_size, log_files)), RetentionCheck(spark, kafka))
    for lines in _read_files(spark, log_files, display):
        replay_progress.count_file(
            _replay_lines(replay_state, lines, None if dry_run else sink, selection or LineSelection(), replay_progress)
        )
    display.show_line(f"{replay_progress.meter.summarize(replay_progress.total.sent)}, {len(log_files)} files")
    return replay_progress.total


@dataclass
class _ReplayProgress:
    """The progress of a replay by sizes of files; `total` has the numbers of lines in the files that are done."""

    display: Progress
    meter: ProgressMeter
    file_sizes: Sequence[int]
    retention: RetentionCheck
    total: ReplayCounts = field(default_factory=ReplayCounts)
    done_file_count: int = 0

    def count_file(self, outcome: ReplayCounts) -> None:
        """Add the outcome of the current file, and show the progress."""
        self.total += outcome
        self.done_file_count += 1
        self.display.show(self.describe())

    def describe(self, sent_count: int = 0, count_to_send: int = 0) -> str:
        """Describe the progress when `sent_count` of the current file's `count_to_send` messages are sent."""
        current_bytes = self.file_sizes[self.done_file_count] * sent_count / count_to_send if count_to_send else 0
        done_bytes = sum(self.file_sizes[: self.done_file_count]) + current_bytes
        text = self.meter.describe(self.total.sent + sent_count, done_bytes / max(sum(self.file_sizes), 1))
        return f"{text}, file {self.done_file_count} of {len(self.file_sizes)} done"


@dataclass
class _ReplayState:
    """The state directory: its `uri` for `spark`, and its path `root` in the file system `system`.

    `done_suffixes` are those of the chunks with replayed lines.
    """

    spark: SparkSession
    system: FileSystem
    root: str
    uri: str
    done_suffixes: tuple[str, ...] = (_DONE,)

    def replayed_lines(self) -> DataFrame | None:
        """Return the lines of all chunks that are sent, or were skipped in doubt; None if there is no such chunk."""
        chunks = [chunk for suffix in self.done_suffixes for chunk in self._list_chunks(suffix)]
        paths = [f"{self.uri}/{chunk.base_name}" for chunk in chunks]
        return self.spark.read.parquet(*paths) if paths else None

    def rename(self, chunk: str, old_suffix: str, new_suffix: str) -> None:
        self.system.move(f"{self.root}/{chunk}{old_suffix}", f"{self.root}/{chunk}{new_suffix}")

    def plan_doubtful(self, doubtful: DoubtfulPolicy) -> None:
        """Count the chunks in doubt as sent (SKIP) or as not sent (SEND), and leave the directory unchanged.

        Raise `DoubtfulError` if there are chunks in doubt and the policy is REFUSE.
        """
        self._refuse_doubtful(doubtful)
        if doubtful is DoubtfulPolicy.SKIP:
            self.done_suffixes = (_DONE, _UNCONFIRMED)

    def resolve_doubtful(self, doubtful: DoubtfulPolicy) -> None:
        """Mark the chunks in doubt as sent (SKIP) or as not sent (SEND), and remove incomplete chunks.

        Raise `DoubtfulError` if there are chunks in doubt and the policy is REFUSE.
        """
        for entry in self._list_chunks(_INCOMPLETE):
            self.system.delete_dir(entry.path)
        for entry in self._refuse_doubtful(doubtful):
            if doubtful is DoubtfulPolicy.SKIP:
                self.system.move(entry.path, entry.path.removesuffix(_UNCONFIRMED) + _DONE)
            else:  # SEND: without their chunk, the messages count as not sent
                self.system.delete_dir(entry.path)

    def _refuse_doubtful(self, doubtful: DoubtfulPolicy) -> list[FileInfo]:
        """Return the chunks in doubt; raise `DoubtfulError` if there are any and the policy is REFUSE."""
        unconfirmed = self._list_chunks(_UNCONFIRMED)
        if unconfirmed and doubtful is DoubtfulPolicy.REFUSE:
            raise DoubtfulError(
                f"{self.root}: a replay ended while it sent {len(unconfirmed)} chunks ({unconfirmed[0].base_name}, "
                "...): their messages may be in Kafka or not. Check Kafka, then run again with --doubtful send or "
                "--doubtful skip."
            )
        return unconfirmed

    def _list_chunks(self, suffix: str) -> list[FileInfo]:
        entries = self.system.get_file_info(FileSelector(self.root))
        return [entry for entry in entries if entry.base_name.endswith(suffix)]


def _find_logs(spark: SparkSession, files: Sequence[str]) -> dict[str, str]:
    """Return each file's log by the path of the file, in the order of the replay; a directory or glob is one log."""
    logs: dict[str, str] = {}
    identities: set[Hashable] = set()
    for given in files:
        for file in find_files(spark, [given]):
            path, identity = resolve_file(file)
            if identity not in identities:
                identities.add(identity)
                logs[path] = log_name(resolve_file(given)[0])
    return {path: logs[path] for path in in_replay_order(logs)}


def _read_files(spark: SparkSession, log_files: Mapping[str, str], display: Progress) -> Iterator[DataFrame]:
    """Yield the parsed lines of each file, with their hashes and numbers."""
    earlier_lines: dict[str, DataFrame] = {}
    for file, log in log_files.items():
        lines, cut_count = read_complete_lines(spark, file)
        if cut_count:
            display.show_line(f"{file}: {cut_count:,} last lines without a newline are incomplete, and are not sent")
        earlier = earlier_lines.get(log)
        yield _add_hash(parse_lines(lines), earlier)
        earlier_lines[log] = lines if earlier is None else earlier.union(lines)


def _replay_lines(
    state: _ReplayState,
    lines: DataFrame,
    sink: Mapping[str, str] | None,
    selection: LineSelection,
    replay_progress: _ReplayProgress,
) -> ReplayCounts:
    """Send the selected messages of a file, or only count them if `sink` is None; return the numbers of lines."""
    lines = _add_fate(lines, state.replayed_lines(), selection)
    groups = lines.groupBy("fate", "topic").agg(*expressions("count(*) as rows", "min(time_ms) as oldest_ms")).collect()
    counts = Counter[str]()
    for group in groups:
        counts[group["fate"]] += group["rows"]
    oldest_times = {group["topic"]: group["oldest_ms"] for group in groups if group["fate"] == "send"}
    replay_progress.retention.warn_once(oldest_times, replay_progress.display)
    outcome = ReplayCounts(*(counts[fate] for fate in _FATES))
    if outcome.sent and sink is not None:
        chunk = uuid4().hex
        messages = lines.where("fate = 'send'").select("hash", "number", "position", *_SINK_COLUMNS)
        messages.write.parquet(f"{state.uri}/{chunk}{_INCOMPLETE}")
        state.rename(chunk, _INCOMPLETE, _UNCONFIRMED)
        stages = RunningStages(state.spark, shuffled=True)
        with replay_progress.display.repeat(lambda: replay_progress.describe(stages.counts().rows, outcome.sent)):
            _send(state.spark, f"{state.uri}/{chunk}{_UNCONFIRMED}", sink)
        state.rename(chunk, _UNCONFIRMED, _DONE)
    return outcome


def _send(spark: SparkSession, chunk: str, sink: Mapping[str, str]) -> None:
    """Send a chunk. One task sends all messages of a topic, because several tasks would overtake each other."""
    register(spark)  # for sessions without Spark's lookup of data sources
    by_topic = spark.read.parquet(chunk).repartition("topic").sortWithinPartitions("position")
    by_topic.select(*_SINK_COLUMNS).write.format("bruce").mode("append").options(**{"fence": "true", **sink}).save()


def _add_hash(lines: DataFrame, earlier_lines: DataFrame | None) -> DataFrame:
    """Add the hash of each line, and the line's number among equal lines.

    `earlier_lines` are those of the log's files before this one, and have the lower numbers; None if this is the first.
    """
    hashed = lines.withColumn("hash", F.sha2("line", 256))
    any_order = F.lit(0)  # equal lines may have their numbers in any order
    numbered = hashed.withColumn("number", F.row_number().over(Window.partitionBy("hash").orderBy(any_order)))
    if earlier_lines is None:
        return numbered
    counts = earlier_lines.groupBy(F.sha2("line", 256).alias("hash")).agg(F.count("*").alias("earlier_count"))
    # The state directory may have chunks of earlier releases, whose numbers are of the type int.
    number = F.expr("cast(number + coalesce(earlier_count, 0) as int)")
    return numbered.join(counts, "hash", "left").withColumn("number", number).drop("earlier_count")


def _add_fate(lines: DataFrame, replayed_lines: DataFrame | None, selection: LineSelection) -> DataFrame:
    """Add the columns `fate` (one of `_FATES`) and `timestamp`, which the sink needs."""
    marked = lines.withColumn("replayed", F.lit(False))
    if replayed_lines is not None:
        replayed_keys = replayed_lines.select("hash", "number").distinct().withColumn("replayed", F.lit(True))
        marked = lines.join(replayed_keys, ["hash", "number"], "left").fillna(False, ["replayed"])
    line_fate = F.udf(lambda text: selection.fate_of(parse_line(text)).value, "string", useArrow=False)("line")
    is_repeated = F.col("replayed") & (F.col("line_fate") == LineFate.SEND.value)
    fate = F.when(is_repeated, "already").otherwise(F.col("line_fate"))
    fated = marked.withColumn("line_fate", line_fate).withColumn("fate", fate)
    return fated.withColumn("timestamp", F.timestamp_millis("time_ms"))
