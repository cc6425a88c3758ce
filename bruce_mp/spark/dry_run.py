"""Count the messages of a DataFrame without sending them, and check its rows as the sink does.

A separate data source, `bruce_dry_run`, counts the rows, because PySpark passes Arrow batches to a data source even if
pandas is not installed. Spark does not call the data source's `commit` in the process of `count_messages`. So
`commit` writes the counts into a file, which `count_messages` reads.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.spark.channel import Channel
from bruce_mp.spark.encode import MessageEncoder, byte_sizes
from bruce_mp.spark.errors import TaskError
from bruce_mp.spark.validation import RowLimits, RowValidator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from bruce_mp.spark.options import SinkOptions

__all__ = ["count_messages"]

_TYPICAL_AUTHOR: Final = b"00000000-0000-0000-0000-000000000000/1000/1000/0"
"""The name of a task attempt, of typical length. It is a part of the stamp, and so of a message's size."""


class RowCount(NamedTuple):
    """The number of rows of one topic with one problem (None: without a problem), and the size of keys and values."""

    topic: str
    problem: str | None
    rows: int
    bytes: int


def count_messages(frame: DataFrame, options: SinkOptions) -> list[RowCount]:
    """Return the numbers of rows by topic and problem."""
    with tempfile.TemporaryDirectory(prefix="bruce-dry-run-") as directory:
        counts_file = Path(directory) / "counts.json"
        plan = {
            "topic": options.topic, "stamp": options.stamp, "partitioner": options.partitioner,
            "limits": _daemon_limits(options), "counts_file": str(counts_file),
        }  # fmt: skip
        frame.sparkSession.dataSource.register(DryRunDataSource)
        frame.write.format(DryRunDataSource.name()).mode("append").option("plan", json.dumps(plan)).save()
        return [RowCount(*count) for count in json.loads(counts_file.read_text())]


def _daemon_limits(options: SinkOptions) -> RowLimits:
    """Return the limits of the daemon on this host, or the default limits if no daemon answers."""
    try:
        with Channel(options.socket, options.timeout_ms, connect_timeout_ms=0) as channel:
            return RowLimits.of(channel.inquire(), options.max_record_bytes)
    except TaskError:
        return RowLimits.of(None, options.max_record_bytes)


class DryRunDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bruce_dry_run"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's signature
        return _CountingWriter(json.loads(self.options["plan"]))


@dataclass
class _CountCommit(WriterCommitMessage):
    counts: list[RowCount]


class _CountingWriter(DataSourceArrowWriter):
    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        topic = self._plan["topic"] and self._plan["topic"].encode()
        partitioner = Partitioner(self._plan["partitioner"])
        # The time zone affects neither counts nor sizes.
        encoder = MessageEncoder(topic, _TYPICAL_AUTHOR if self._plan["stamp"] else None, partitioner, "UTC")
        validator = RowValidator(encoder, RowLimits(*self._plan["limits"]))
        counts = (count for batch in iterator for count in _count_batch(encoder, validator, batch))
        return _CountCommit(_sum_counts(counts))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        counts = (count for message in messages if isinstance(message, _CountCommit) for count in message.counts)
        Path(self._plan["counts_file"]).write_text(json.dumps(_sum_counts(counts)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing, because nothing was sent."""


def _count_batch(encoder: MessageEncoder, validator: RowValidator, batch: pa.RecordBatch) -> list[RowCount]:
    rows = encoder.convert(batch)
    problems = np.full(rows.count, None, object)
    for bad in validator.find_bad_rows(rows):
        problems[bad.row] = bad.problem.summary
    default_topic = pa.scalar((encoder.topic or b"").decode())
    topics = pa.repeat(default_topic, rows.count) if rows.topic is None else rows.topic.cast(pa.string())
    sizes = byte_sizes(rows.value) + (0 if rows.key is None else byte_sizes(rows.key))
    table = pa.table({"topic": topics, "problem": pa.array(problems, pa.string()), "size": sizes})
    counts = table.group_by(["topic", "problem"]).aggregate([("size", "count"), ("size", "sum")])
    return [RowCount(*row.values()) for row in counts.to_pylist()]


def _sum_counts(counts: Iterable[RowCount]) -> list[RowCount]:
    """Add up the counts of each topic and problem."""
    rows: Counter[tuple[str, str | None]] = Counter()
    sizes: Counter[tuple[str, str | None]] = Counter()
    for count in counts:
        rows[count.topic, count.problem] += count.rows
        sizes[count.topic, count.problem] += count.bytes
    return [RowCount(*key, rows[key], sizes[key]) for key in rows]  # key: topic and problem
