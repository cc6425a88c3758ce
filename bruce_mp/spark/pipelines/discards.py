"""Read discard files and slab exports as a table with one row for each line.

`docs/slab.md` describes the format of a line, which is also that of Dory's discard files. If a line cannot be parsed,
all parsed columns of its row are null.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bruce_mp.protocol.client.messages import EmptyFields
from bruce_mp.protocol.client.replay_rules import line_of
from bruce_mp.spark.expressions import expressions
from bruce_mp.spark.storage import resolve_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from bruce_mp.protocol.client.discard_line import DiscardLine

__all__ = ["find_files", "parse_line", "parse_lines", "read_complete_lines", "read_discard_lines"]

_LINE_COLUMNS: Final = (
    "struct<now_ms bigint, time_ms bigint, event string, info string, topic string, key binary, value binary, "
    "partition_key int, headers array<struct<key string, value binary>>>"
)
"""The parsed columns: `now_ms` is the time when the line was written, `time_ms` the message's timestamp."""


_COMPRESSED: Final = r"[.](gz|bz2|deflate|snappy|lz4|zst|xz)$"
"""End of the name of a file that Spark decompresses. Its size does not show if its last line is complete."""


def find_files(spark: SparkSession, paths: Iterable[str]) -> list[str]:
    """Return each file that a path, a directory or a glob names, once. Raise Spark's error if a path has none."""
    uris = (uri for path in paths for uri in sorted(spark.read.text(path).inputFiles()))
    files = (unquote(uri.removeprefix("file://")) for uri in uris)
    return list({resolve_file(file)[1]: file for file in files}.values())


def read_discard_lines(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    """Return the columns `line` and `position` (which rises from line to line of a file), and `_LINE_COLUMNS`."""
    files = list(map(_literal, find_files(spark, paths)))
    lines = spark.read.text(files).selectExpr("value as line", "monotonically_increasing_id() as position")
    return parse_lines(lines)


def _literal(file: str) -> str:
    """Return a glob that matches only this file."""
    return re.sub(r"[][*?{}\\]", r"\\\g<0>", file)


def read_complete_lines(spark: SparkSession, file: str) -> tuple[DataFrame, int]:
    """Return the lines of a file that end with a newline, and the number of last lines that do not.

    The columns are `line` and `position`, as in `read_discard_lines`. The lines are those that the file has now, also
    if the daemon adds lines before Spark reads the file.
    """
    values = spark.read.text(_literal(file), lineSep="\n").selectExpr(
        "value",
        "monotonically_increasing_id() as position",
        "_metadata.file_path as file",
        "_metadata.file_size as size",
    )
    # Spark lists the sizes now. It reads each line that begins within or at the size, and the last one perhaps without
    # its newline. So only the last line can end beyond the size: it is cut, or it is new.
    sizes = values.groupBy("file", "size").agg(
        *expressions("sum(octet_length(value) + 1) as read", "max(position) as last")
    )
    ends = sizes.selectExpr(
        "file",
        f"if(read > size and not file rlike '{_COMPRESSED}', last, last + 1) as end",
        "read = size + 1 as is_cut",
    ).collect()
    bounds = spark.createDataFrame([(row["file"], row["end"]) for row in ends], "file string, end bigint")
    complete = values.join(F.broadcast(bounds), "file").where("position < end")
    # `trim` reads characters, so only lines that need it go through it: other ones may have bytes that are no UTF-8.
    line = "if(endswith(value, '\r'), trim(TRAILING '\r' FROM value), value) as line"
    return complete.selectExpr(line, "position"), sum(row["is_cut"] for row in ends)


def parse_lines(lines: DataFrame) -> DataFrame:
    """Return the columns `line` and `position`, and `_LINE_COLUMNS`."""
    parsed = lines.withColumn("parsed", F.udf(_parse_columns, _LINE_COLUMNS, useArrow=False)("line"))
    return parsed.select("line", "position", "parsed.*")


def parse_line(text: str) -> DiscardLine | None:
    """Parse a line from the text that Spark made of its bytes; return None if the line has another format."""
    return line_of(text.encode("utf-8", "surrogateescape"))


def _parse_columns(text: str) -> tuple[Any, ...] | None:
    line = parse_line(text)
    if line is None:
        return None
    empty = EmptyFields(line.empty)
    # A key or value without bytes is null, unless the client marked it as empty.
    key = line.key if line.key or EmptyFields.EMPTY_KEY in empty else None
    value = line.value if line.value or EmptyFields.EMPTY_VALUE in empty else None
    headers = [(name.decode("utf-8", "replace"), content) for name, content in line.headers] or None
    topic = line.topic.decode("utf-8", "backslashreplace") or None
    times = (line.now_ms, line.timestamp_ms)
    return (*times, line.event.value, line.info, topic, key, value, _signed(line.partition_key), headers)


def _signed(partition_key: int | None) -> int | None:
    """Return the 32 bits of a partition key as a signed integer."""
    return partition_key if partition_key is None or partition_key < 1 << 31 else partition_key - (1 << 32)
