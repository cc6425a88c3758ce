"""Check the columns of a DataFrame and their types on the driver, before any task runs.

The columns are those of Spark's Kafka sink (`key`, `value`, `topic`, `headers`), `partition_key`, `timestamp`, and
`_corrupt_record`, in which Spark's readers put input that they cannot parse. Types are compared by Spark's short names,
so this module needs no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.spark.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_columns"]

_BYTE_TYPES: Final = frozenset({"string", "binary"})
_HEADER_TYPES: Final = frozenset({"array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"})
_INTEGER_TYPES: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TYPES_BY_COLUMN: Final[Mapping[str, frozenset[str]]] = {
    "value": _BYTE_TYPES,
    "key": _BYTE_TYPES,
    "topic": frozenset({"string"}),
    "headers": _HEADER_TYPES,
    "partition_key": _INTEGER_TYPES,
    "timestamp": frozenset({"timestamp", "timestamp_ntz"}),
    "_corrupt_record": frozenset({"string"}),
}


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Raise `SchemaError`, which lists all problems, if the columns of a schema are wrong.

    `columns` are pairs of name and type (as `DataType.simpleString()` spells it), `topic` is the option `topic`.
    """
    given = {name for name, _ in columns}
    missing = _TYPES_BY_COLUMN.keys() - given
    # misspelled: names that differ from a missing column only by capital letters, with this column
    misspelled = {name.lower(): name for name in sorted(given) if name.lower() in missing}
    problems = [f"Column '{name}': spell it '{known}'." for known, name in misspelled.items()]
    spelled = [column for column in columns if column[0] not in misspelled.values()]
    problems += [problem for name, type_name in spelled if (problem := _find_problem(name, type_name))]
    given_or_misspelled = given | misspelled.keys()
    if "value" not in given_or_misspelled:
        problems.append("There is no column 'value': give this name to the message's bytes (string or binary).")
    if "topic" not in given_or_misspelled and topic is None:
        problems.append("There is neither a column 'topic' nor an option 'topic': give one.")
    if problems:
        raise SchemaError(" ".join(problems))


def _find_problem(name: str, type_name: str) -> str | None:
    if name == "partition":
        return (
            "Column 'partition' is not possible: the daemon chooses the partition, because a given partition may "
            "have no leader. Give 'partition_key' (an integer): the partition is its remainder when divided by the "
            "number of partitions. Or give 'key' and the option 'partitioner'."
        )
    if name not in _TYPES_BY_COLUMN:
        known = ", ".join(_TYPES_BY_COLUMN)
        return f"Column '{name}' is not known: columns are {known}. Drop it, or put it into 'value'."
    if type_name not in _TYPES_BY_COLUMN[name]:
        return f"Column '{name}' is {type_name}: it must be {' or '.join(sorted(_TYPES_BY_COLUMN[name]))}."
    return None
