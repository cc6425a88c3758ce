"""Check the columns of a DataFrame and their types on the driver, before any task runs.

The conventions are those of Spark's Kafka sink (`key`, `value`, `topic`, `headers`) with two more columns,
`partition_key` and `timestamp`, and the column `_corrupt_record` of Spark's readers. The encoder converts the types
that Spark would cast implicitly.
Types are compared by Spark's short names, so this module needs no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_columns"]

_BYTES: Final = frozenset({"string", "binary"})
_HEADERS: Final = frozenset({"array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"})
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": frozenset({"string"}),
    "headers": _HEADERS,
    "partition_key": _INTEGERS,
    "timestamp": frozenset({"timestamp", "timestamp_ntz"}),
    "_corrupt_record": frozenset({"string"}),
}


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Check (name, type) pairs of a schema; `topic` is the option of that name.

    Types are spelled as by `DataType.simpleString()`. Raise `SchemaError`, which lists all problems.
    """
    names = [name for name, _ in columns]
    problems = [problem for name, kind in columns if (problem := _problem(name, kind))]
    if "value" not in names:
        problems.append("There is no column 'value': give this name to the message's bytes (string or binary).")
    if "topic" not in names and topic is None:
        problems.append("There is neither a column 'topic' nor an option 'topic': give one.")
    if problems:
        raise SchemaError(" ".join(problems))


def _problem(name: str, kind: str) -> str | None:
    if name == "partition":
        return (
            "Column 'partition' is not possible: the daemon chooses the partition, because a given partition may "
            "have no leader. Give 'partition_key' (an integer): the partition is its remainder by their number. Or "
            "give 'key' and the option 'partitioner'."
        )
    if name not in _TYPES:
        return f"Column '{name}' is not known: columns are {', '.join(_TYPES)}. Drop it, or put it into 'value'."
    if kind not in _TYPES[name]:
        return f"Column '{name}' is {kind}: it must be {' or '.join(sorted(_TYPES[name]))}."
    return None
