"""Replay discarded or exported messages through a daemon, each message at most once.

The work proceeds file by file. Before any message of a file is sent, a *chunk* is written into the state directory: the
lines, by their hash and their number among equal lines. When the daemon has answered for all of them, one rename marks
the chunk as done. So the state knows every replayed message, also after its file was renamed. A kill in between leaves
a chunk in doubt: its messages may be in Kafka or not, and the user decides.

Messages of a topic are sent in the order of their lines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyarrow.fs import FileInfo, FileSelector

from bruce_mp.protocol.client.replay_rules import DoubtfulPolicy, LineFate, LineSelection, Replayed
from bruce_mp.spark import register
from bruce_mp.spark.audit.ranges import expressions
from bruce_mp.spark.errors import SinkError
from bruce_mp.spark.pipelines.discards import discard_table, parse_text
from bruce_mp.spark.pipelines.progress import Progress, ProgressMeter
from bruce_mp.spark.pipelines.retention import RetentionCheck
from bruce_mp.spark.pipelines.running_stages import RunningStages
from bruce_mp.spark.storage import file_size, open_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DoubtfulError", "replay"]

_INTENT: Final = ".intent"
_DONE: Final = ".done"
_COUNTED: Final = ("send", "already", "filtered", "no_message", "in_kafka", "abandoned")
"""Fates in the order of the fields of `Replayed`."""
_COLUMNS: Final = ("topic", "key", "value", "headers", "partition_key", "timestamp")


class DoubtfulError(SinkError):
    """A killed run left a chunk in doubt."""

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
) -> Replayed:
    """Send the selected messages that were not replayed before. Raise `DoubtfulError` and Spark's errors.

    `kafka` are options of Spark's Kafka source, to compare timestamps with the retention of the topics.
    """
    display = progress or Progress("replay")
    system, root = open_directory(state)
    _resolve_doubtful(system, root, doubtful)
    replays = _ReplayState(spark, system, root, state)
    meter = ProgressMeter(f"messages {'to send' if dry_run else 'sent'}")
    done = _Done(display, meter, list(map(file_size, files)), RetentionCheck(spark, kafka))
    for file in files:
        done.count(_replay_file(replays, file, None if dry_run else sink, selection or LineSelection(), done))
    display.finish(f"{done.meter.summary(done.total.sent)}, {len(files)} files")
    return done.total


@dataclass
class _Done:
    """The progress of a replay: files weigh as many bytes as they have."""

    display: Progress
    meter: ProgressMeter
    sizes: Sequence[int]
    retention: RetentionCheck
    total: Replayed = field(default_factory=Replayed)
    files: int = 0
    _has_warned: bool = False

    def warn(self, oldest_ms: Mapping[str, int]) -> None:
        """Warn once of messages that are older than their topic keeps messages."""
        warning = None if self._has_warned else self.retention.warning(oldest_ms)
        if warning:
            self._has_warned = True
            self.display.finish(warning)

    def count(self, found: Replayed) -> None:
        """Count a file as done."""
        self.total += found
        self.files += 1
        self.display.show(self.text())

    def text(self, rows: int = 0, rows_of_file: int = 0) -> str:
        """Describe the progress with `rows` of the present file."""
        current = self.sizes[self.files] * rows / rows_of_file if rows_of_file else 0
        part = (sum(self.sizes[: self.files]) + current) / max(sum(self.sizes), 1)
        return f"{self.meter.text(self.total.sent + rows, part)}, file {self.files} of {len(self.sizes)} done"


@dataclass(frozen=True)
class _ReplayState:
    """The session, and the state directory of the replay."""

    spark: SparkSession
    system: FileSystem
    root: str
    uri: str

    def replayed(self) -> DataFrame | None:
        """Return the chunks that earlier runs have sent, or None without any."""
        names = [entry.base_name for entry in _entries(self.system, self.root) if entry.base_name.endswith(_DONE)]
        if not names:
            return None
        return self.spark.read.parquet(*[f"{self.uri}/{name}" for name in names])


def _replay_file(
    state: _ReplayState, file: str, sink: Mapping[str, str] | None, selection: LineSelection, done: _Done
) -> Replayed:
    """Send the messages of a file, unless `sink` is None, and count its lines."""
    lines = _add_fate(_add_hash(discard_table(state.spark, [file])), state.replayed(), selection)
    name = f"{state.uri}/{uuid4().hex}{_INTENT}"
    groups = lines.groupBy("fate", "topic").agg(*expressions("count(*) as rows", "min(time_ms) as oldest_ms")).collect()
    counts = Counter[str]()
    for group in groups:
        counts[group["fate"]] += group["rows"]
    done.warn({group["topic"]: group["oldest_ms"] for group in groups if group["fate"] == "send"})
    outcome = Replayed(*(counts[fate] for fate in _COUNTED))
    if outcome.sent and sink is not None:
        lines.where("fate = 'send'").select("hash", "number", "position", *_COLUMNS).write.parquet(name)
        stages = RunningStages(state.spark, shuffled=True)
        with done.display.repeat(lambda: done.text(stages.counts().rows, outcome.sent)):
            _send(state.spark, name, sink)
        state.system.move(_path(state, name), _path(state, name).removesuffix(_INTENT) + _DONE)
    return outcome


def _path(state: _ReplayState, uri: str) -> str:
    return f"{state.root}/{uri.rpartition('/')[2]}"


def _send(spark: SparkSession, chunk: str, sink: Mapping[str, str]) -> None:
    """Send all messages of a topic from one task, because tasks overtake each other."""
    register(spark)  # for sessions without Spark's lookup of data sources
    lanes = spark.read.parquet(chunk).repartition("topic").sortWithinPartitions("position")
    messages = lanes.select(*_COLUMNS)
    messages.write.format("bruce").mode("append").options(**{"fence": "true", **sink}).save()


def _add_hash(lines: DataFrame) -> DataFrame:
    """Add the hash of each line and its number among equal lines."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    hashed = lines.withColumn("hash", F.sha2("line", 256))
    return hashed.withColumn("number", F.row_number().over(Window.partitionBy("hash").orderBy(F.lit(0))))


def _add_fate(lines: DataFrame, done: DataFrame | None, selection: LineSelection) -> DataFrame:
    """Add `fate` (send, already, filtered or no_message) and the columns of the sink."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    known = lines.withColumn("replayed", F.lit(False))
    if done is not None:
        marks = done.select("hash", "number").distinct().withColumn("replayed", F.lit(True))
        known = lines.join(marks, ["hash", "number"], "left").withColumn(
            "replayed", F.coalesce("replayed", F.lit(False))
        )
    rule = F.udf(lambda text: selection.fate_of(parse_text(text)).value, "string", useArrow=False)("line")
    fate = F.when(F.col("replayed") & (F.col("rule") == LineFate.SEND.value), "already").otherwise(F.col("rule"))
    ruled = known.withColumn("rule", rule)
    return ruled.withColumn("fate", fate).withColumn("timestamp", F.timestamp_millis("time_ms"))


def _resolve_doubtful(system: FileSystem, root: str, doubtful: DoubtfulPolicy) -> None:
    unfinished = [entry for entry in _entries(system, root) if entry.base_name.endswith(_INTENT)]
    if unfinished and doubtful is DoubtfulPolicy.REFUSE:
        raise DoubtfulError(
            f"{root}: a run was killed while it sent {len(unfinished)} chunks ({unfinished[0].base_name}, ...): their "
            "messages may be in Kafka or not. Check Kafka, then run again with --doubtful send or --doubtful skip."
        )
    for entry in unfinished:
        if doubtful is DoubtfulPolicy.SKIP:
            system.move(entry.path, entry.path.removesuffix(_INTENT) + _DONE)
        else:
            system.delete_dir(entry.path)


def _entries(system: FileSystem, root: str) -> list[FileInfo]:
    return list(system.get_file_info(FileSelector(root)))
