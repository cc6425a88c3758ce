"""Lands what is in Kafka as facts: a data sink of the audit's own, whose tasks count instead of copying.

DIR/facts      see `FACTS`
DIR/latencies  see `LATENCIES`

A task writes its files aside; the commit moves them to where they are read.  A commit's files are named after it, so
that a micro-batch that Spark repeats replaces itself.  Being a sink and no `mapInArrow`, it needs no pandas, and a
streaming query remembers by its checkpoint what has been landed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FACTS_DIRECTORY", "FORMAT", "LATENCIES_DIRECTORY", "LandingSource"]

FORMAT: Final = "bruce-landing"
FACTS_DIRECTORY: Final = "facts"
LATENCIES_DIRECTORY: Final = "latencies"
_ASIDE: Final = "_aside"
_NAMES: Final = (FACTS_DIRECTORY, LATENCIES_DIRECTORY)


@dataclass
class Landed(WriterCommitMessage):
    """The name under which a task wrote its files aside; both directories have one."""

    name: str


class LandingSource(DataSource):
    """`format("bruce-landing")`; its path is the directory.  Takes the columns of `messages.columns`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's signature
        return LandingWriter(self.options["path"])

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        return LandingStreamWriter(self.options["path"])


class LandingWriter(DataSourceArrowWriter):
    """Lands a batch read."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _land(self._directory, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._directory, messages, uuid4().hex)


class LandingStreamWriter(DataSourceStreamArrowWriter):
    """Lands micro-batches."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _land(self._directory, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _commit(self._directory, messages, f"{batchId:08}")


def _land(directory: str, batches: Iterator[pa.RecordBatch]) -> Landed:
    import pyarrow.parquet as pq  # noqa: PLC0415 - Arrow and numpy: only where tasks run

    from bruce_mp.spark.audit.tally import FACTS, LATENCIES, Tally  # noqa: PLC0415

    system, root = open_directory(f"{directory}/{_ASIDE}")
    tally, name = Tally(), uuid4().hex
    with ExitStack() as stack:
        facts, latencies = (
            stack.enter_context(
                pq.ParquetWriter(f"{root}/{kind}-{name}", schema, filesystem=system, compression="zstd")
            )
            for kind, schema in zip(_NAMES, (FACTS, LATENCIES), strict=True)
        )
        for batch in batches:
            tally.take(batch)
            if tally.full:
                facts.write_table(tally.rows())
        facts.write_table(tally.rows())
        latencies.write_table(tally.latencies())
    return Landed(name)


def _commit(directory: str, messages: Sequence[WriterCommitMessage | None], commit: str) -> None:
    """Task by task into place.  A commit that was interrupted is repeated whole, with files of other names aside."""
    system, root = open_directory(directory)
    for kind in _NAMES:
        system.create_dir(f"{root}/{kind}", recursive=True)
        for number, message in enumerate(messages):
            if isinstance(message, Landed):
                target = f"{root}/{kind}/{commit}-{number:05}.parquet"
                system.move(f"{root}/{_ASIDE}/{kind}-{message.name}", target)
