"""Tell how many files of a backfill are done: Spark's checkpoint lists the files of each chunk.

Separate because it depends on the files of Spark's checkpoints, and the backfill only on Spark's interface.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bruce_mp.spark.storage import read_texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from pyspark.sql import SparkSession

__all__ = ["FileProgress", "count_files"]


def count_files(spark: SparkSession, path: str) -> int:
    """Return the number of files that a reader of `path` finds; none of them is read."""
    return len(spark.read.format("text").load(path).inputFiles())


@dataclass
class FileProgress:
    """The chunks of a backfill. `planned` are the files of those that earlier runs began, by chunk."""

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
