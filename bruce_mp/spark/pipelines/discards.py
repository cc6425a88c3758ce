"""Read discard files and slab exports as a table: one row a line, parsed by column.

`docs/slab.md` describes the format of a line, which the ancestors' files share. An unparsable line has a null `event`,
so that it can be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["discard_table"]

_LINE: Final = (
    r"^now: ([0-9]+) ts: (-?[0-9]+) event: ([A-Z]+) info: (\\S+) topic: [0-9]+\\[(.*?)\\] "
    r"key: [0-9]+\\[([A-Za-z0-9+/=]*)\\] msg: [0-9]+\\[([A-Za-z0-9+/=]*)\\](?: pkey: ([0-9]+))?"
    r"(?: hdrs: (\\S+))?(?: empty: ([0-9]+))?"
)
_GROUPS: Final = {
    "now_ms": "cast(nullif({}, '') as bigint)",
    "time_ms": "cast(nullif({}, '') as bigint)",
    "event": "nullif({}, '')",
    "info": "nullif({}, '')",
    "topic": "nullif({}, '')",
    "key": "nullif(unbase64({}), cast('' as binary))",
    "value": "unbase64({})",
    "partition_key": "cast(nullif({}, '') as bigint)",
    "headers": "transform(split(nullif({}, ''), ','), pair -> named_struct("
    "'key', cast(unbase64(split(pair, ':')[0]) as string), "
    "'value', if(split(pair, ':')[1] = '-', null, unbase64(split(pair, ':')[1]))))",
    "empty": "cast(coalesce(nullif({}, ''), '0') as int)",
}
"""Each column's expression over its group."""
_SIGNED: Final = (
    "cast(if(partition_key >= 2147483648, partition_key - 4294967296, partition_key) as int) as partition_key"
)
"""The 32 bits of a partition key as a signed integer."""
_CHOSEN: Final = (
    "if(key is null and (empty & 4) != 0, cast('' as binary), key) as key",
    "if(length(value) = 0 and (empty & 16) = 0, null, value) as value",
)
"""Key and value: without bytes they are empty only if the client chose that, else null."""
_DERIVED: Final = frozenset({"partition_key", "key", "value", "empty"})
"""Columns that the final selection replaces or omits."""


def discard_table(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the columns line, position (rises with the place in the file), and those of `_GROUPS` but `empty`."""
    lines = spark.read.text(list(paths)).selectExpr("value as line", "monotonically_increasing_id() as position")
    columns = [
        f"{expression.format(_group(number))} as {name}" for number, (name, expression) in enumerate(_GROUPS.items(), 1)
    ]
    parsed = lines.selectExpr("line", "position", *columns)
    return parsed.selectExpr(*[name for name in parsed.columns if name not in _DERIVED], _SIGNED, *_CHOSEN)


def _group(number: int) -> str:
    return f"regexp_extract(line, '{_LINE}', {number})"
