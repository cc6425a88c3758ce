"""Read discard files and slab exports as a table: one row a line, parsed by column.

`docs/slab.md` describes the format of a line, which the ancestors' files share. An unparsable line has a null `event`,
so that it can be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bruce_mp.protocol.client.messages import EmptyFields
from bruce_mp.protocol.client.replay_rules import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bruce_mp.protocol.client.discard_line import DiscardLine

__all__ = ["discard_table", "parse_text"]

_ROW: Final = (
    "struct<now_ms bigint, time_ms bigint, event string, info string, topic string, key binary, value binary, "
    "partition_key int, headers array<struct<key string, value binary>>>"
)


def discard_table(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the columns line, position (rises with the place in the file), and those of `_ROW`."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - Spark's own convention

    lines = spark.read.text(list(paths)).selectExpr("value as line", "monotonically_increasing_id() as position")
    parsed = lines.withColumn("parsed", F.udf(_row_of, _ROW, useArrow=False)("line"))
    return parsed.select("line", "position", "parsed.*")


def parse_text(text: str) -> DiscardLine | None:
    """Return the parsed line of Spark's text, or None for other text."""
    return line_of(text.encode("utf-8", "surrogateescape"))


def _row_of(text: str) -> tuple[Any, ...] | None:
    line = parse_text(text)
    if line is None:
        return None
    empty = EmptyFields(line.empty)
    # Without bytes, key and value are empty only if the client chose that, else null.
    key = line.key if line.key or EmptyFields.EMPTY_KEY in empty else None
    value = line.value if line.value or EmptyFields.EMPTY_VALUE in empty else None
    headers = [(name.decode("utf-8", "replace"), content) for name, content in line.headers] or None
    topic = line.topic.decode("utf-8", "backslashreplace") or None
    times = (line.now_ms, line.timestamp_ms)
    return (*times, line.event.value, line.info, topic, key, value, _signed(line.partition_key), headers)


def _signed(partition_key: int | None) -> int | None:
    """Return the 32 bits of a partition key as a signed integer."""
    return partition_key if partition_key is None or partition_key < 1 << 31 else partition_key - (1 << 32)
