"""Find the rows that cannot be messages: the one check of the sink, its dead letters and the dry run.

The limits of sizes are the daemon's, which the sink asks when it connects.  Each problem has a summary, by which rows
are counted, and a text with the figures of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bruce_mp.spark.encode import LONGEST_HEADERS, lengths
from bruce_mp.spark.options import is_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from bruce_mp.protocol.client.inquiry import InquiryAnswer
    from bruce_mp.spark.encode import Ints, MessageEncoder, Rows

__all__ = ["DEFAULT_LIMITS", "RowLimits", "RowProblem", "RowValidator"]

_LONGEST_HEADER_KEY: Final = 32_767
_PARTITION_KEYS: Final = (-(2**31), 2**32 - 1)
_TOPIC_RULE: Final = "Kafka allows 1 to 249 letters, digits, '.', '_' and '-'"

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class RowLimits(NamedTuple):
    """The largest message with its size field, and the largest sum of key, value and headers, in bytes."""

    message: int
    payload: int
    option: int | None = None
    """The option `maxRecordBytes`, which may only lower the daemon's limit."""

    @classmethod
    def of(cls, answer: InquiryAnswer | None, option: int | None) -> RowLimits:
        """Return the limits of a daemon; an older one has the defaults."""
        if answer is None:
            return DEFAULT_LIMITS._replace(option=option)
        return cls(answer.largest_message, answer.largest_payload, option)


DEFAULT_LIMITS: Final = RowLimits(2 * 1024 * 1024 + 4, 999_974)
"""Those of a daemon with the default configuration."""


@dataclass(frozen=True)
class _Measured:
    """The rows of a batch with the figures that the checks need."""

    rows: Rows
    headers: Ints
    payload: Ints
    limits: RowLimits


class RowProblem(NamedTuple):
    """A kind of bad row; `describe` returns the text for one row."""

    summary: str
    find: Callable[[_Measured], Mask]
    describe: Callable[[_Measured, int], str]


class RowValidator:
    """Checks the rows of one task's encoder."""

    def __init__(self, encoder: MessageEncoder, limits: RowLimits) -> None:
        self._encoder = encoder
        self._limits = limits

    def find(self, rows: Rows) -> list[tuple[RowProblem, int, str]]:
        """Return each bad row with its first problem and the text about it, in the order of rows."""
        measured = self._measure(rows)
        found: dict[int, tuple[RowProblem, int, str]] = {}
        for problem in PROBLEMS:
            mask = problem.find(measured)
            for row in np.flatnonzero(mask).tolist() if mask.any() else ():
                if row not in found:
                    found[row] = (problem, row, problem.describe(measured, row))
        return [found[row] for row in sorted(found)]

    def _measure(self, rows: Rows) -> _Measured:
        headers = np.broadcast_to(self._encoder.headers_sizes(rows), rows.count)
        payload = headers + lengths(rows.value) + (0 if rows.key is None else lengths(rows.key))
        return _Measured(rows, headers, payload, self._limits)


def _none(found: _Measured) -> Mask:
    return np.zeros(found.rows.count, np.bool_)


def _to_mask(column: pa.Array) -> Mask:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)


def _is_corrupt(found: _Measured) -> Mask:
    return _none(found) if found.rows.corrupt is None else _to_mask(found.rows.corrupt.is_valid())


def _lacks_topic(found: _Measured) -> Mask:
    return _none(found) if found.rows.topic is None else _to_mask(found.rows.topic.is_null())


def _has_invalid_topic(found: _Measured) -> Mask:
    """Check each different topic once, because a batch has few."""
    if found.rows.topic is None:
        return _none(found)
    names = pc.unique(found.rows.topic.drop_null()).to_pylist()
    invalid = [name for name in names if not is_topic_name(name.decode("latin-1"))]
    return _to_mask(pc.is_in(found.rows.topic, pa.array(invalid, pa.binary()))) if invalid else _none(found)


def _has_long_header_key(found: _Measured) -> Mask:
    longest = found.rows.header_keys
    return _none(found) if longest is None else longest > _LONGEST_HEADER_KEY


def _has_large_partition_key(found: _Measured) -> Mask:
    column = found.rows.partition_key
    if column is None:
        return _none(found)
    low, high = (pa.scalar(bound, pa.int64()) for bound in _PARTITION_KEYS)
    numbers = column.cast(pa.int64())
    return _to_mask(pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater(numbers, high)), False))


def _describe_partition_key(found: _Measured, row: int) -> str:
    number = found.rows.partition_key[row].as_py() if found.rows.partition_key is not None else 0
    return f"its partition_key is {number}, and {_PARTITION_KEYS[0]} to {_PARTITION_KEYS[1]} are allowed"


def _describe_topic(found: _Measured, row: int) -> str:
    name = found.rows.topic[row].as_py() if found.rows.topic is not None else b""
    return f"its topic is {name.decode('utf-8', 'replace')[:80]!r} with {len(name)} bytes, and {_TOPIC_RULE}"


def _describe_corrupt(found: _Measured, row: int) -> str:
    text = found.rows.corrupt[row].as_py() if found.rows.corrupt is not None else ""
    return f"its input is malformed: {text[:200]!r}"


PROBLEMS: Final = (
    RowProblem("malformed input", _is_corrupt, _describe_corrupt),
    RowProblem("no topic", _lacks_topic, lambda _, __: "its topic is null, and there is no option 'topic'"),
    RowProblem("a topic that Kafka does not allow", _has_invalid_topic, _describe_topic),
    RowProblem("a partition_key above 32 bits", _has_large_partition_key, _describe_partition_key),
    RowProblem(
        "larger than maxRecordBytes",
        lambda found: _none(found) if found.limits.option is None else found.rows.sizes > found.limits.option,
        lambda found, row: (
            f"it has {found.rows.sizes[row]} bytes, and option maxRecordBytes allows {found.limits.option}"
        ),
    ),
    RowProblem(
        "larger than input.max_stream_size",
        lambda found: found.rows.sizes > found.limits.message,
        lambda found, row: (
            f"it has {found.rows.sizes[row]} bytes, and input.max_stream_size of the daemon allows "
            f"{found.limits.message}"
        ),
    ),
    RowProblem(
        "larger than batching.message_max_bytes",
        lambda found: found.payload > found.limits.payload,
        lambda found, row: (
            f"its key, value and headers have {found.payload[row]} bytes, and batching.message_max_bytes of the daemon "
            f"allows {found.limits.payload}"
        ),
    ),
    RowProblem(
        "headers above 65,535 bytes",
        lambda found: found.headers > LONGEST_HEADERS,
        lambda found, row: (
            f"its headers have {found.headers[row]} bytes with the stamp, and {LONGEST_HEADERS} are allowed"
        ),
    ),
    RowProblem(
        "a header key above 32,767 bytes",
        _has_long_header_key,
        lambda _, __: f"a key of its headers has more than {_LONGEST_HEADER_KEY} bytes",
    ),
)
"""All kinds of bad rows, in the order in which a row is judged."""
