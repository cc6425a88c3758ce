"""Keep rows that cannot be messages, with the reason: one Parquet file for each task attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bruce_mp.spark.storage import open_directory

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from bruce_mp.spark.ledger import TaskAttempt

__all__ = ["DeadLetters"]


class DeadLetters:
    """The dead letters of one attempt below `uri`; without a URI, none can be written."""

    def __init__(self, uri: str | None, attempt: TaskAttempt) -> None:
        self._uri = uri
        self._attempt = attempt
        self._writer: pq.ParquetWriter | None = None
        self.count = 0

    @property
    def wanted(self) -> bool:
        return self._uri is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: pa.RecordBatch, reasons: list[str]) -> None:
        """Append `rows` unchanged, with two more columns: `reason` and `writer`."""
        writers = pa.array([self._attempt.writer] * rows.num_rows)
        table = pa.Table.from_batches([rows])
        table = table.append_column("reason", pa.array(reasons)).append_column("writer", writers)
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)
        self.count += rows.num_rows

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        system, root = open_directory(self._uri or "")
        name = self._attempt.writer.replace("/", "-")
        return pq.ParquetWriter(f"{root}/{name}.parquet", schema, filesystem=system)
